package console

import (
	"time"
)

// month is a calendar month, UTC.
type month struct {
	begin time.Time
}

func monthOf(t time.Time) month {
	year, m, _ := t.UTC().Date()
	return month{time.Date(year, m, 1, 0, 0, 0, 0, time.UTC)}
}

// parseMonth reads 2026-11; what is no month is the present one.
func parseMonth(text string, now time.Time) month {
	begin, err := time.Parse("2006-01", text)
	if err != nil || begin.After(now) || begin.Year() < 2000 {
		return monthOf(now)
	}
	return month{begin}
}

func (m month) end() time.Time { return m.begin.AddDate(0, 1, 0) }

func (m month) days() int { return m.end().AddDate(0, 0, -1).Day() }

// ID is the month in addresses.
func (m month) ID() string { return m.begin.Format("2006-01") }

// Name is the month in words.
func (m month) Name() string { return m.begin.Format("January 2006") }

// monthsOffered is how far back the picker goes.
const monthsOffered = 24

// recentMonths lists months from the present one back.
func recentMonths(now time.Time) []month {
	all := make([]month, monthsOffered)
	for i := range all {
		all[i] = month{monthOf(now).begin.AddDate(0, -i, 0)}
	}
	return all
}

// earliestToProject is how much of a month must have passed before its end is guessed at.
const earliestToProject = 24 * time.Hour

// projection is how much will have been used at the end of the month if it goes on as it has so far; ok is false for a
// month that is over or has only begun.
func (m month) projection(used int64, now time.Time) (tokens int64, ok bool) {
	passed, whole := now.Sub(m.begin), m.end().Sub(m.begin)
	if passed < earliestToProject || passed >= whole {
		return 0, false
	}
	return int64(float64(used) * whole.Seconds() / passed.Seconds()), true
}

// reaches is when a cap will have been used up if it goes on so; ok is false where that is not within the month.
func (m month) reaches(used, limit int64, now time.Time) (at time.Time, ok bool) {
	tokens, ok := m.projection(used, now)
	if !ok || used >= limit || tokens <= limit {
		return time.Time{}, false
	}
	passed := now.Sub(m.begin).Seconds()
	return m.begin.Add(time.Duration(passed * float64(limit) / float64(used) * float64(time.Second))), true
}
