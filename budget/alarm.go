package budget

import "basegate/budget/quota"

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
	Key     string   // id of the key that was charged or refused, or of its parent if the cap is that one's
	Account string   // id
}

// alarms are the caps of an owner of which UsedUp has been raised in the windows of a date, a bit for each.
type alarms struct {
	date Date
	caps uint64
}

// bit returns the bit of a cap.
func (l *limit) bit() uint64 { return 1 << l.id }

// in returns the alarms in the windows of a date.
func (r *alarms) in(d Date) *alarms {
	if r.date != d && r.caps != 0 {
		for id, k := range quota.Table {
			if !r.date.shares(k.Window, d) {
				r.caps &^= 1 << id
			}
		}
	}
	r.date = d
	return r
}

// raiseAlarms raises the alarms of the caps that the charge of a request takes over a threshold.
func (a *Account) raiseAlarms(k *Owner, of Date, charged quota.Tokens) {
	for _, l := range a.appendLimits(make([]limit, 0, maxLimits), k, of) {
		before := l.used - l.meter().Of(charged)
		for _, percent := range [...]int64{UsedUp, NearlyUsed} {
			if threshold := l.most * percent; before*100 < threshold && l.used*100 >= threshold {
				a.raise(k, of, &l, int(percent))
				break
			}
		}
	}
}

// raiseRefusal raises the alarm of a cap that has refused a request because it is used up, or nearly so. It does that
// once in the cap's window, unless a cap of its owner is changed.
func (a *Account) raiseRefusal(today Date, k *Owner, l *limit) {
	if l.most > 0 && l.used*100 >= l.most*refusalThreshold && a.ownerOf(k, l).alarms.in(today).caps&l.bit() == 0 {
		a.raise(k, today, l, UsedUp)
	}
}

func (a *Account) raise(k *Owner, in Date, l *limit, percent int) {
	o := a.ownerOf(k, l)
	raised := o.alarms.in(in)
	raised.caps &^= l.bit()
	if percent == UsedUp {
		raised.caps |= l.bit()
	}
	key := k.ID
	if o == k.Parent {
		key = o.ID
	}
	a.Changes.Alarms = append(a.Changes.Alarms, Alarm{Cap: *l.exceeded(in), Percent: percent, Key: key, Account: a.ID})
}

// ownerOf returns the owner of a cap.
func (a *Account) ownerOf(k *Owner, l *limit) *Owner {
	o := k
	for a.place(k, o) != l.owner {
		o = a.above(o)
	}
	return o
}
