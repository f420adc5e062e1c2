package cluster

// Epoch returns the number of this gateway and of its epoch, for what else ends with it: the leases of batches, say. ok is
// false while the gateway has no epoch.
func (l *Ledger) Epoch() (gateway int32, number int64, ok bool) {
	e := l.epoch.Load()
	if e == nil {
		return 0, 0, false
	}
	select {
	case <-e.fenced:
		return 0, 0, false
	default:
		return e.gateway, e.number, true
	}
}
