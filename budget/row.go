package budget

import "time"

// Numbers are what a store keeps of an owner beside its caps, slots and state: the windows of one day, and of its month.
type Numbers struct {
	Day                           int64 // since 1970
	MonthInput, MonthOutput       int64 // used tokens
	DayUsed                       int64
	ReservedInput, ReservedOutput int64 // in the month
	ReservedDay                   int64
	Running, Waiting              int64
	Blocked                       int64 // 1 or 0
	Raised                        int64 // caps whose alarm UsedUp has been raised: month total 1, day 2, input 4, output 8
	Ticket                        int64
	LastUse                       int64 // microseconds since 1970; 0 is never
}

// Numbers returns what a store keeps of an owner on a day.
func (o *Owner) Numbers(today Date) Numbers {
	c := o.Counters(today)
	n := Numbers{
		Day: today.Days(), MonthInput: c.MonthInput, MonthOutput: c.MonthOutput, DayUsed: c.Day, ReservedInput: c.ReservedInput,
		ReservedOutput: c.ReservedOutput, ReservedDay: c.ReservedDay, Running: int64(o.Running), Waiting: int64(o.Waiting),
		Raised: int64(o.alarms.in(today).caps), Ticket: o.Ticket,
	}
	if o.Blocked {
		n.Blocked = 1
	}
	if !o.LastUse.IsZero() {
		n.LastUse = o.LastUse.UnixMicro()
	}
	return n
}

// Load replaces what the owner has by what a store has kept.
func (o *Owner) Load(n Numbers) {
	day := DateOfDay(n.Day)
	m := &monthCounters{
		month: day.month, input: counter{n.MonthInput, n.ReservedInput}, output: counter{n.MonthOutput, n.ReservedOutput},
	}
	m.days[day.day] = counter{n.DayUsed, n.ReservedDay}
	o.months = []*monthCounters{m}
	o.Running, o.Waiting, o.Blocked, o.Ticket = int(n.Running), int(n.Waiting), n.Blocked == 1, n.Ticket
	o.alarms = alarms{day, uint8(n.Raised)}
	if n.LastUse > 0 {
		o.LastUse = time.UnixMicro(n.LastUse).UTC()
	}
}
