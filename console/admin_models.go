package console

import (
	"cmp"
	"time"

	"basegate/breaker"
	"basegate/fleet"
)

// watchedModel is a model as an administrator sees it.
type watchedModel struct {
	modelRow
	Backends  []watchedBackend
	Calendars []calendar
	Booked    []fleet.BookedWindow // that are not over
}

// watchedBackend is a backend with its breaker.
type watchedBackend struct {
	Name, GPU, State, Reason string
	Level                    string // good, warn or bad
	Breaker                  breaker.State
	InFlight                 int64
	Version                  string
	Outcomes                 []outcome // the newest first
}

// outcome is what became of one attempt.
type outcome struct {
	Time  time.Time
	Class string
	Level string // good, warn or bad
}

// calendar is a week of warm windows by the clocks of one place.
type calendar struct {
	Zone string
	Days []calendarDay // from Monday
}

type calendarDay struct {
	Name  string
	Spans []daySpan
}

// daySpan is a part of a day; From and Width are percentages of it.
type daySpan struct {
	From, Width float64
	Text        string
}

func (c *Console) watchModels(r *request) error {
	var all []watchedModel
	for _, m := range c.fleet.Models() {
		w := watchedModel{modelRow: c.modelRow(m), Calendars: calendars(m), Booked: c.fleet.Booked(m.ID())}
		for _, b := range m.Backends() {
			w.Backends = append(w.Backends, watch(b))
		}
		all = append(all, w)
	}
	return c.render(r, "admin-models", "Models and backends", all)
}

func watch(b *fleet.Backend) watchedBackend {
	state, reason := b.State()
	w := watchedBackend{
		Name: b.Name, GPU: b.GPU, State: string(state), Reason: reason, Level: "bad",
		Breaker: b.Breaker(), InFlight: b.InFlight(), Version: b.Version(),
	}
	switch state {
	case fleet.Ready:
		w.Level = "good"
	case fleet.Starting, fleet.Stopped, fleet.Asleep, fleet.Draining:
		w.Level = "warn"
	case fleet.Unreachable, fleet.Failed:
	}
	seen := b.Outcomes()
	for i := range seen {
		o := seen[len(seen)-1-i]
		w.Outcomes = append(w.Outcomes, outcome{o.Time, o.Class.String(), outcomeLevel(o.Class)})
	}
	return w
}

// outcomeLevel tells what speaks against a backend from what only a client did.
func outcomeLevel(c breaker.Class) string {
	switch c {
	case breaker.Success:
		return "good"
	case breaker.ClientError, breaker.ContextLength, breaker.Busy, breaker.ClientGone:
		return "warn"
	case breaker.OutOfMemory, breaker.OutOfMemoryDead, breaker.EngineDead, breaker.ServerError, breaker.Aborted,
		breaker.Garbled, breaker.Truncated, breaker.Refused, breaker.Reset, breaker.TimedOut:
	}
	return "bad"
}

// week is in the order in which people look at it.
var week = []time.Weekday{time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday, time.Sunday}

// calendars draws the configured windows, a week for each time zone.
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
		for i, day := range week {
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
				all[at].add((i+1)%len(week), 0, w.To, text)
			}
		}
	}
	return all
}

const wholeDay = 24 * time.Hour

func emptyWeek(zone string) calendar {
	c := calendar{Zone: cmp.Or(zone, "UTC"), Days: make([]calendarDay, len(week))}
	for i, day := range week {
		c.Days[i].Name = day.String()
	}
	return c
}

func (c *calendar) add(day int, from, to time.Duration, text string) {
	share := func(d time.Duration) float64 { return 100 * d.Hours() / wholeDay.Hours() }
	c.Days[day].Spans = append(c.Days[day].Spans, daySpan{share(from), share(to - from), text})
}

func clockText(d time.Duration) string {
	if d == wholeDay {
		return "24:00"
	}
	return time.Time{}.Add(d).Format("15:04")
}
