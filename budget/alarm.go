package budget

// Thresholds of alarms, in percent of a cap.
const (
	NearlyUsed = 80
	UsedUp     = 100
)

// refusalThreshold is the percentage of a cap from which a refusal counts as UsedUp: what is left of a cap may be too
// little for any request, so that its last token is never used.
const refusalThreshold = 95

// Alarm reports that a cap is nearly used, or used up.
type Alarm struct {
	Cap     Exceeded // with what is used of it
	Percent int      // NearlyUsed or UsedUp
	Key     string   // id of the key that was charged or refused
	Account string   // id
}

// raiseAlarms raises the alarms of the caps that the charge of a request takes over a threshold. l.mu is held.
func (l *Ledger) raiseAlarms(r *reservation, input, output int64) {
	if l.settings.Alarm == nil {
		return
	}
	p := Payer{Key: r.request.KeyID, Account: r.request.AccountID}
	if l.refreshCaps(&p) != nil {
		return // the key has been disabled meanwhile
	}
	caps := r.bucket.capChecks(&p)
	for i := range caps.all() {
		c := &caps.list[i]
		before := c.counter.used - c.meter.of(input, output)
		for _, percent := range []int64{UsedUp, NearlyUsed} {
			if threshold := c.limit * percent; before*100 < threshold && c.counter.used*100 >= threshold {
				l.raise(c.counter, Alarm{Cap: *c.exceeded(r.bucket.date), Percent: int(percent), Key: p.Key, Account: p.Account})
				break
			}
		}
	}
}

// raiseRefusal raises the alarm of a cap that has refused a request because it is used up, or nearly so. It does that
// once in the cap's window, unless the cap is changed. l.mu is held.
func (l *Ledger) raiseRefusal(p *Payer, refusal *Exceeded, b bucket) {
	if l.settings.Alarm == nil || refusal == nil || refusal.Limit == 0 || refusal.Used*100 < refusal.Limit*refusalThreshold {
		return
	}
	caps := b.capChecks(p)
	for i := range caps.all() {
		c := &caps.list[i]
		if c.scope == refusal.Scope && c.window == refusal.Window && c.meter == refusal.Meter && c.counter.raised < UsedUp {
			l.raise(c.counter, Alarm{Cap: *refusal, Percent: UsedUp, Key: p.Key, Account: p.Account})
		}
	}
}

func (l *Ledger) raise(c *counter, a Alarm) {
	c.raised = uint8(a.Percent)
	l.settings.Alarm(a)
}

// of returns the tokens that the meter counts.
func (m Meter) of(input, output int64) int64 {
	switch m {
	case Input:
		return input
	case Output:
		return output
	case Total:
	}
	return input + output
}
