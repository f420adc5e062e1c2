package budget

import (
	"slices"
	"time"

	"basegate/budget/quota"
)

// Date is a calendar day in UTC.
type Date struct {
	month int // since January of the year 0
	day   int // of the month, from 0
}

// DateOf returns the day of a time.
func DateOf(t time.Time) Date {
	year, month, day := t.UTC().Date()
	return Date{month: year*12 + int(month) - 1, day: day - 1}
}

const secondsPerDay = 24 * 60 * 60

// DateOfDay returns the day with a number, counted since 1970.
func DateOfDay(n int64) Date { return DateOf(time.Unix(n*secondsPerDay, 0)) }

// Days returns the number of the day since 1970.
func (d Date) Days() int64 { return d.Start().Unix() / secondsPerDay }

// Start returns the first instant of the day.
func (d Date) Start() time.Time {
	return time.Date(0, time.Month(d.month+1), d.day+1, 0, 0, 0, 0, time.UTC)
}

// windowEnd returns the end of a window; zero if it has none.
func (d Date) windowEnd(w quota.Window) time.Time {
	switch w {
	case quota.Month:
		d.month, d.day = d.month+1, 0
	case quota.Day:
		d.day++
	default:
		return time.Time{}
	}
	return d.Start()
}

// shares reports whether both days are in the same window.
func (d Date) shares(w quota.Window, other Date) bool {
	switch w {
	case quota.Month:
		return d.month == other.month
	case quota.Day:
		return d == other
	default:
		return true
	}
}

// counter counts the tokens of one window.
type counter struct {
	used     quota.Tokens // settled
	reserved quota.Tokens // by requests in flight
}

// monthCounters are the counters of one owner in one month.
type monthCounters struct {
	month int
	all   counter
	days  [31]counter
}

// add adds used and reserved tokens.
func (c *counter) add(used, reserved quota.Tokens) {
	c.used, c.reserved = c.used.Plus(used), c.reserved.Plus(reserved)
}

// add adds used and reserved tokens of a day.
func (m *monthCounters) add(day int, used, reserved quota.Tokens) {
	m.all.add(used, reserved)
	m.days[day].add(used, reserved)
}

// Counters returns the counters of a date, which are zero if there are none.
func (o *Owner) Counters(d Date) (c Counters) {
	if o == nil {
		return c
	}
	c.set(quota.Life, &o.life)
	for _, m := range o.months {
		if m.month == d.month {
			c.set(quota.Month, &m.all)
			c.set(quota.Day, &m.days[d.day])
		}
	}
	return c
}

func (c *Counters) set(w quota.Window, to *counter) { c.Used[w], c.Reserved[w] = to.used, to.reserved }

func (c *Counters) counter(w quota.Window) counter { return counter{c.Used[w], c.Reserved[w]} }

// add adds used and reserved tokens to the windows of a date.
func (o *Owner) add(d Date, used, reserved quota.Tokens) {
	o.life.add(used, reserved)
	o.month(d.month).add(d.day, used, reserved)
}

// month returns the counters of one month, and creates them if they do not exist.
func (o *Owner) month(month int) *monthCounters {
	for _, m := range o.months {
		if m.month == month {
			return m
		}
	}
	m := &monthCounters{month: month}
	o.months = append(o.months, m)
	return m
}

// reserves reports whether requests in flight were admitted in a month.
func (o *Owner) reserves(month int) bool {
	return slices.ContainsFunc(o.months, func(m *monthCounters) bool { return m.month == month && m.all.reserved.Total() > 0 })
}

func (o *Owner) dropMonth(month int) {
	o.months = slices.DeleteFunc(o.months, func(m *monthCounters) bool { return m.month == month })
}
