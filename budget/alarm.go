package budget

import "time"

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

// alarms are the caps of an owner of which UsedUp has been raised in the windows of a date, a bit for each.
type alarms struct {
	date Date
	caps uint8
}

// bit returns the bit of a cap.
func (c *Exceeded) bit() uint8 {
	switch {
	case c.Window == Day:
		return dayBit
	case c.Meter == Input:
		return 1 << 2
	case c.Meter == Output:
		return 1 << 3
	default:
		return 1
	}
}

const dayBit = 1 << 1

// in returns the alarms in the windows of a date.
func (r *alarms) in(d Date) *alarms {
	if r.date.month != d.month {
		r.caps = 0
	} else if r.date != d {
		r.caps &^= dayBit
	}
	r.date = d
	return r
}

// raiseAlarms raises the alarms of the caps that the charge of a request takes over a threshold.
func (a *Account) raiseAlarms(k *Owner, of Date, input, output int64) {
	if !k.Caps.Any() && !a.Caps.Any() {
		return
	}
	balance := a.balance(of.Start(), k)
	for _, c := range balance.appendCaps(make([]Exceeded, 0, maxCaps)) {
		before := c.Used - c.Meter.of(input, output)
		for _, percent := range [...]int64{UsedUp, NearlyUsed} {
			if threshold := c.Limit * percent; before*100 < threshold && c.Used*100 >= threshold {
				a.raise(k, of, balance.withReset(c), int(percent))
				break
			}
		}
	}
}

// raiseRefusal raises the alarm of a cap that has refused a request because it is used up, or nearly so. It does that
// once in the cap's window, unless the cap is changed.
func (a *Account) raiseRefusal(now time.Time, k *Owner, refusal *Exceeded) {
	today := DateOf(now)
	if refusal.Limit > 0 && refusal.Used*100 >= refusal.Limit*refusalThreshold && a.ownerOf(k, refusal).alarms.in(today).caps&refusal.bit() == 0 {
		a.raise(k, today, refusal, UsedUp)
	}
}

func (a *Account) raise(k *Owner, in Date, c *Exceeded, percent int) {
	raised := a.ownerOf(k, c).alarms.in(in)
	raised.caps &^= c.bit()
	if percent == UsedUp {
		raised.caps |= c.bit()
	}
	a.Changes.Alarms = append(a.Changes.Alarms, Alarm{Cap: *c, Percent: percent, Key: k.ID, Account: a.ID})
}

// ownerOf returns the owner of a cap.
func (a *Account) ownerOf(k *Owner, c *Exceeded) *Owner {
	if c.Scope == ScopeAccount {
		return &a.Owner
	}
	return k
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
