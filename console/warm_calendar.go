package console

import (
	"cmp"
	"slices"
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

const (
	wholeDay = 24 * time.Hour
	weekDays = 7
)

// calendars returns the configured warm windows of a model. A window that passes midnight is two spans.
func calendars(m *fleet.Model) []calendar {
	var all []calendar
	for _, w := range m.WarmWindows() {
		zone := cmp.Or(w.Location.String(), "UTC")
		at := slices.IndexFunc(all, func(c calendar) bool { return c.Zone == zone })
		if at < 0 {
			at = len(all)
			all = append(all, newCalendar(zone))
		}
		for i := range weekDays {
			if !w.Days.Has(weekday(i)) {
				continue
			}
			text := clockText(w.From) + "–" + clockText(w.To)
			if w.To > w.From {
				all[at].add(i, w.From, w.To, text)
				continue
			}
			all[at].add(i, w.From, wholeDay, text)
			if w.To > 0 {
				all[at].add((i+1)%weekDays, 0, w.To, text)
			}
		}
	}
	return all
}

// weekday returns a day of the calendar; 0 is Monday.
func weekday(i int) time.Weekday { return time.Weekday((i + 1) % weekDays) }

func newCalendar(zone string) calendar {
	c := calendar{Zone: zone}
	for i := range weekDays {
		c.Days = append(c.Days, calendarDay{Name: weekday(i).String()})
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
