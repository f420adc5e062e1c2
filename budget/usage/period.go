package usage

import (
	"slices"
	"time"
)

// Times are microseconds since the epoch, as in the tables.
const (
	hourMicros = int64(time.Hour / time.Microsecond)
	dayMicros  = 24 * hourMicros
)

// The range of times that a request may have; a Filter without bounds has these.
var (
	minTime = int64(0)
	maxTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
)

// level is a table of rollups, by the length of its periods.
type level struct {
	table  string
	sums   string                   // table of the sums over all keys, of user tags only
	number func(at int64) int64     // of the period that contains a time
	start  func(period int64) int64 // of a period
	perDay int64                    // periods in a day; 0 if a day is not a whole number of them
}

var (
	hours = &level{table: "usage_hours", number: numberBy(hourMicros), start: startBy(hourMicros), perDay: 24}
	days  = &level{table: "usage_days", number: numberBy(dayMicros), start: startBy(dayMicros), perDay: 1}

	tagDays   = &level{table: "usage_tag_days", sums: "usage_tag_day_sums", number: numberBy(dayMicros), start: startBy(dayMicros), perDay: 1}
	tagMonths = &level{table: "usage_tag_months", sums: "usage_tag_month_sums", number: monthNumber, start: monthStart}
)

func numberBy(width int64) func(int64) int64 { return func(at int64) int64 { return at / width } }
func startBy(width int64) func(int64) int64 {
	return func(period int64) int64 { return period * width }
}

// monthNumber counts months from January of the year 0.
func monthNumber(at int64) int64 {
	year, month, _ := time.UnixMicro(at).UTC().Date()
	return int64(year)*12 + int64(month) - 1
}

func monthStart(period int64) int64 {
	return time.Date(0, time.Month(period+1), 1, 0, 0, 0, 0, time.UTC).UnixMicro()
}

// segment is a part of a range of times: whole periods of a level, or times for which the rows have to be read.
type segment struct {
	level    *level // nil: rows
	from, to int64  // periods, or times; to is excluded
}

// split divides a range of times into the longest periods of the levels, which are given from the longest periods to the
// shortest. The parts left at its ends are read from the rows.
func split(from, to int64, levels ...*level) []segment {
	if from >= to {
		return nil
	}
	if len(levels) == 0 {
		return []segment{{from: from, to: to}}
	}
	l := levels[0]
	first, end := l.number(from), l.number(to)
	if l.start(first) < from {
		first++
	}
	if first >= end {
		return split(from, to, levels[1:]...)
	}
	whole := segment{level: l, from: first, to: end}
	before, after := split(from, l.start(first), levels[1:]...), split(l.start(end), to, levels[1:]...)
	return slices.Concat([]segment{whole}, before, after)
}

// bounds returns the range of times of a filter.
func (f *Filter) bounds() (from, to int64) {
	from, to = minTime, maxTime
	if !f.Since.IsZero() {
		from = max(from, f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		to = min(to, f.Until.UnixMicro())
	}
	return from, to
}
