package usage

import (
	"slices"
	"strconv"
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
	table string
	width int64 // of a period; 0 for months
}

var (
	hours     = &level{"usage_hours", hourMicros}
	days      = &level{"usage_days", dayMicros}
	latencies = &level{"usage_latencies", dayMicros}
	tagDays   = &level{"usage_tag_days", dayMicros}
	tagMonths = &level{"usage_tag_months", 0}
)

// number returns the period that contains a time. Months count from January of the year 0.
func (l *level) number(at int64) int64 {
	if l.width > 0 {
		return at / l.width
	}
	year, month, _ := time.UnixMicro(at).UTC().Date()
	return int64(year)*12 + int64(month) - 1
}

func (l *level) start(period int64) int64 {
	if l.width > 0 {
		return period * l.width
	}
	return time.Date(0, time.Month(period+1), 1, 0, 0, 0, 0, time.UTC).UnixMicro()
}

// column returns the expression for the period of a row of requests.
func (l *level) column(d *dialect) string {
	if l.width > 0 {
		return `time / ` + strconv.FormatInt(l.width, 10)
	}
	return d.month
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
