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
	if p.Refresh(l.settings.Payer) != nil {
		return // the key has been disabled meanwhile
	}
	balance := r.bucket.balance(&p)
	for _, c := range balance.appendCaps(make([]Exceeded, 0, maxCaps)) {
		before := c.Used - c.Meter.of(input, output)
		for _, percent := range []int64{UsedUp, NearlyUsed} {
			if threshold := c.Limit * percent; before*100 < threshold && c.Used*100 >= threshold {
				l.raise(&p, balance.withReset(c), r.bucket, percent)
				break
			}
		}
	}
}

// raiseRefusal raises the alarm of a cap that has refused a request because it is used up, or nearly so. It does that
// once in the cap's window, unless the cap is changed. l.mu is held.
func (l *Ledger) raiseRefusal(p *Payer, refusal *Exceeded, b bucket) {
	if l.settings.Alarm != nil && refusal.Limit > 0 && refusal.Used*100 >= refusal.Limit*refusalThreshold && *b.raised(refusal) < UsedUp {
		l.raise(p, refusal, b, UsedUp)
	}
}

func (l *Ledger) raise(p *Payer, c *Exceeded, b bucket, percent int64) {
	*b.raised(c) = uint8(percent)
	l.settings.Alarm(Alarm{Cap: *c, Percent: int(percent), Key: p.Key, Account: p.Account})
}

// raised returns where the percentage of a cap's last alarm is.
func (b bucket) raised(c *Exceeded) *uint8 {
	m := b.key
	if c.Scope == Account {
		m = b.account
	}
	switch {
	case c.Window == Day:
		return &m.days[b.date.day].raised
	case c.Meter == Input:
		return &m.input.raised
	case c.Meter == Output:
		return &m.output.raised
	default:
		return &m.raised
	}
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
