package console

import "time"

// month is a calendar month in UTC.
type month struct {
	begin time.Time
}

func monthOf(t time.Time) month {
	year, m, _ := t.UTC().Date()
	return month{time.Date(year, m, 1, 0, 0, 0, 0, time.UTC)}
}

// parseMonth parses a month such as 2026-11. It returns the current month if the text is not a month, or if it is one
// in the future or before 2000.
func parseMonth(text string, now time.Time) month {
	begin, err := time.Parse("2006-01", text)
	if err != nil || begin.After(now) || begin.Year() < 2000 {
		return monthOf(now)
	}
	return month{begin}
}

func (m month) end() time.Time { return m.begin.AddDate(0, 1, 0) }

func (m month) days() int { return m.end().AddDate(0, 0, -1).Day() }

// ID returns the month as URLs have it.
func (m month) ID() string { return m.begin.Format("2006-01") }

// Name returns the month as pages show it.
func (m month) Name() string { return m.begin.Format("January 2006") }

// maxMonths is the number of months to choose from.
const maxMonths = 24

// recentMonths returns the last months, the current one first.
func recentMonths(now time.Time) []month {
	all := make([]month, maxMonths)
	for i := range all {
		all[i] = month{monthOf(now).begin.AddDate(0, -i, 0)}
	}
	return all
}

// minElapsed is the part of a month that must have passed before its usage is projected.
const minElapsed = 24 * time.Hour

// projection extrapolates the usage of a running month to its end. ok is false if the month is over or has only begun.
func (m month) projection(used int64, now time.Time) (tokens int64, ok bool) {
	elapsed, whole := now.Sub(m.begin), m.end().Sub(m.begin)
	if elapsed < minElapsed || elapsed >= whole {
		return 0, false
	}
	return int64(float64(used) * whole.Seconds() / elapsed.Seconds()), true
}

// exhaustion returns the time at which usage will reach the limit at its average rate so far. ok is false if that is
// not within the month.
func (m month) exhaustion(used, limit int64, now time.Time) (at time.Time, ok bool) {
	tokens, ok := m.projection(used, now)
	if !ok || used >= limit || tokens <= limit {
		return time.Time{}, false
	}
	elapsed := now.Sub(m.begin).Seconds()
	return m.begin.Add(time.Duration(elapsed * float64(limit) / float64(used) * float64(time.Second))), true
}
