package budget

import (
	"slices"
	"time"
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

// windowEnd returns the end of the day or of the month.
func (d Date) windowEnd(w Window) time.Time {
	if w == Day {
		d.day++
	} else {
		d.month, d.day = d.month+1, 0
	}
	return d.Start()
}

// counter counts the tokens that one cap limits.
type counter struct {
	used     int64 // settled
	reserved int64 // by requests in flight
}

// monthCounters are the counters of one owner in one month.
type monthCounters struct {
	month         int
	input, output counter
	days          [31]counter // input and output
}

// counters returns the counters in the form that caps are evaluated on.
func (m *monthCounters) counters(day int) Counters {
	today := &m.days[day]
	return Counters{
		MonthInput: m.input.used, MonthOutput: m.output.used, Day: today.used,
		ReservedInput: m.input.reserved, ReservedOutput: m.output.reserved, ReservedDay: today.reserved,
	}
}

// reserve adds the tokens of a reservation, or removes them if they are negative.
func (m *monthCounters) reserve(day int, input, output int64) {
	m.days[day].reserved += input + output
	m.input.reserved += input
	m.output.reserved += output
}

// charge adds used tokens.
func (m *monthCounters) charge(day int, input, output int64) {
	m.days[day].used += input + output
	m.input.used += input
	m.output.used += output
}

// Counters returns the counters of a date, which are zero if there are none.
func (o *Owner) Counters(d Date) (c Counters) {
	if o == nil {
		return c
	}
	for _, m := range o.months {
		if m.month == d.month {
			return m.counters(d.day)
		}
	}
	return c
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
	return slices.ContainsFunc(o.months, func(m *monthCounters) bool { return m.month == month && m.input.reserved+m.output.reserved > 0 })
}

func (o *Owner) dropMonth(month int) {
	o.months = slices.DeleteFunc(o.months, func(m *monthCounters) bool { return m.month == month })
}
