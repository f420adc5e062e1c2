package budget

import "time"

// moment is a time as the windows see it.
type moment struct {
	month int // since the year 0
	day   int // of the month, from 0
}

func momentOf(t time.Time) moment {
	year, month, day := t.UTC().Date()
	return moment{month: year*12 + int(month) - 1, day: day - 1}
}

// start is the first instant of the moment's day.
func (m moment) start() time.Time {
	return time.Date(0, time.Month(m.month+1), m.day+1, 0, 0, 0, 0, time.UTC)
}

// resets is when the window that the moment lies in ends.
func (m moment) resets(w Window) time.Time {
	if w == Day {
		m.day++
	} else {
		m.month, m.day = m.month+1, 0
	}
	return m.start()
}

// tally is what one counter has.
type tally struct {
	used     int64 // settled
	reserved int64 // by requests in flight
}

// period holds what a key or an account spends in one month.
type period struct {
	month                int
	total, input, output tally
	days                 [31]tally // total
}

// reserve adds what a request may take; negative, it takes that back.
func (p *period) reserve(day int, input, output int64) {
	p.total.reserved += input + output
	p.days[day].reserved += input + output
	p.input.reserved += input
	p.output.reserved += output
}

// charge adds what was taken.
func (p *period) charge(day int, input, output int64) {
	p.total.used += input + output
	p.days[day].used += input + output
	p.input.used += input
	p.output.used += output
}

// periodsKept is how many months a party keeps. A clock that is set back finds what was spent then as it was left.
const periodsKept = 3

// party is a key or an account.
type party struct {
	periods []*period // the months in which something was charged or reserved, in order
	blocked bool      // whether reservations against this party's caps hold somebody up
	queue   []*waiter // of an account: who waits, in order of arrival
	turned  moment    // of an account: when the queue was last looked through
	used    time.Time // of a key: when its last request came
	noted   time.Time // of a key: what of that is in the table of uses
}

// period is the party's month. Making one may push the oldest out; dropped is that one's month, or -1.
func (p *party) period(month int) (found *period, dropped int) {
	at := len(p.periods)
	for at > 0 && p.periods[at-1].month >= month {
		at--
		if p.periods[at].month == month {
			return p.periods[at], -1
		}
	}
	found, dropped = &period{month: month}, -1
	p.periods = append(p.periods, nil)
	copy(p.periods[at+1:], p.periods[at:])
	p.periods[at] = found
	if len(p.periods) > periodsKept && at > 0 {
		dropped = p.periods[0].month
		p.periods = append(p.periods[:0:0], p.periods[1:]...)
	}
	return found, dropped
}
