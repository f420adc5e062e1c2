package console

import (
	"cmp"
	"time"

	"basegate/fleet"
)

// calendar is a week of warm windows in one time zone.
type calendar struct {
	Zone string
	Days []calendarDay // from Monday
}

type calendarDay struct {
	Name  string
	Spans []daySpan
}

// daySpan is a part of a day. From and Width are percentages of the day.
type daySpan struct {
	From, Width float64
	Text        string
}

// weekdays are in the order of the calendar.
var weekdays = []time.Weekday{
	time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday, time.Sunday,
}

// calendars returns the configured warm windows of a model. A window that passes midnight is two spans.
func calendars(m *fleet.Model) []calendar {
	var all []calendar
	for _, w := range m.WarmWindows() {
		zone := w.Location.String()
		at := 0
		for at < len(all) && all[at].Zone != zone {
			at++
		}
		if at == len(all) {
			all = append(all, emptyWeek(zone))
		}
		for i, day := range weekdays {
			if !w.Days.Has(day) {
				continue
			}
			text := clockText(w.From) + "–" + clockText(w.To)
			if w.To > w.From {
				all[at].add(i, w.From, w.To, text)
				continue
			}
			all[at].add(i, w.From, wholeDay, text)
			if w.To > 0 {
				all[at].add((i+1)%len(weekdays), 0, w.To, text)
			}
		}
	}
	return all
}

const wholeDay = 24 * time.Hour

// emptyWeek returns a calendar without windows.
func emptyWeek(zone string) calendar {
	c := calendar{Zone: cmp.Or(zone, "UTC"), Days: make([]calendarDay, len(weekdays))}
	for i, day := range weekdays {
		c.Days[i].Name = day.String()
	}
	return c
}

// add adds a span to a day; 0 is Monday.
func (c *calendar) add(day int, from, to time.Duration, text string) {
	percentage := func(d time.Duration) float64 { return 100 * d.Hours() / wholeDay.Hours() }
	c.Days[day].Spans = append(c.Days[day].Spans, daySpan{percentage(from), percentage(to - from), text})
}

// clockText formats a time of day as hours and minutes.
func clockText(d time.Duration) string {
	if d == wholeDay {
		return "24:00"
	}
	return time.Time{}.Add(d).Format("15:04")
}
