package budget

import "basegate/budget/quota"

// Numbers are what a store keeps of an owner beside its caps, slots and state: the windows of one day.
type Numbers struct {
	Day int64 // since 1970
	Counters
	Running, Waiting, Queued int64

	Blocked int64 // 1 or 0
	Raised  int64 // caps whose alarm UsedUp has been raised: a bit for each, by quota.ID
	Ticket  int64
	LastUse int64 // microseconds since 1970; 0 is never

	LastAddress string
}

// Numbers returns what a store keeps of an owner on a day.
func (o *Owner) Numbers(today Date) Numbers {
	n := Numbers{
		Day: today.Days(), Counters: o.Counters(today), Running: int64(o.Running), Waiting: int64(o.Waiting), Queued: int64(o.Queued),
		Raised: int64(o.alarms.in(today).caps), Ticket: o.Ticket, LastAddress: o.LastUse.Address,
	}
	if o.Blocked {
		n.Blocked = 1
	}
	if !o.LastUse.Time.IsZero() {
		n.LastUse = o.LastUse.Time.UnixMicro()
	}
	return n
}

// Load replaces what the owner has by what a store has kept.
func (o *Owner) Load(n *Numbers) {
	day := DateOfDay(n.Day)
	m := &monthCounters{month: day.month, all: n.counter(quota.Month)}
	m.days[day.day] = n.counter(quota.Day)
	o.life, o.months = n.counter(quota.Life), []*monthCounters{m}
	o.Running, o.Waiting, o.Queued, o.Blocked, o.Ticket = int(n.Running), int(n.Waiting), int(n.Queued), n.Blocked == 1, n.Ticket
	o.alarms = alarms{day, uint64(n.Raised)}
	o.LastUse = NewUse(n.LastUse, n.LastAddress)
}
