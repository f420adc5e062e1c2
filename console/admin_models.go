package console

import (
	"cmp"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/fleet"
)

// adminModelsView is the data of the administrators' page of the models.
type adminModelsView struct {
	Notices []string
	Models  []adminModel
}

// adminModel is a model on the administrators' page.
type adminModel struct {
	modelRow
	Backends  []adminBackend
	Calendars []calendar           // of the configured warm windows, one for each time zone
	Booked    []fleet.BookedWindow // warm windows that are not over
}

// adminBackend is a backend on the administrators' page.
type adminBackend struct {
	Name, GPU, State, Reason string
	Level                    string // CSS class of the state: good, warn or bad
	Breaker                  breaker.State
	InFlight                 int64
	Version                  string
	Outcomes                 []outcome // of the last attempts, the newest first
}

// outcome is the outcome of one attempt.
type outcome struct {
	Time  time.Time
	Class string
	Level string // CSS class: good, warn or bad
}

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

func (c *Console) adminModelsPage(r *request) error {
	var view adminModelsView
	if c.notices != nil {
		view.Notices = c.notices()
	}
	for _, m := range c.fleet.Models() {
		model := adminModel{modelRow: c.modelRow(m), Calendars: calendars(m), Booked: c.fleet.BookedWindows(m.ID())}
		for _, b := range m.Backends() {
			model.Backends = append(model.Backends, newAdminBackend(b))
		}
		view.Models = append(view.Models, model)
	}
	return c.render(r, "admin-models", "Models and backends", view)
}

func newAdminBackend(b *fleet.Backend) adminBackend {
	state, reason := b.State()
	row := adminBackend{
		Name: b.Name, GPU: b.GPU, State: string(state), Reason: reason, Level: "bad",
		Breaker: b.Breaker(), InFlight: b.InFlight(), Version: b.Version(),
	}
	switch state {
	case fleet.Ready:
		row.Level = "good"
	case fleet.Starting, fleet.Stopped, fleet.Asleep, fleet.Draining:
		row.Level = "warn"
	case fleet.Unreachable, fleet.Failed:
	}
	for _, o := range slices.Backward(b.RecentAttempts()) {
		row.Outcomes = append(row.Outcomes, outcome{o.Time, o.Class.String(), outcomeLevel(o.Class)})
	}
	return row
}

// outcomeLevel returns the CSS class of an outcome: bad if the backend caused it, warn if the client or the load did.
func outcomeLevel(c breaker.Class) string {
	switch c {
	case breaker.Success:
		return "good"
	case breaker.ClientError, breaker.ContextLength, breaker.Busy, breaker.TooLarge, breaker.LocalFault,
		breaker.ClientGone:
		return "warn"
	case breaker.OutOfMemory, breaker.OutOfMemoryDead, breaker.EngineDead, breaker.ServerError, breaker.Aborted,
		breaker.Malformed, breaker.Truncated, breaker.Refused, breaker.Reset, breaker.TimedOut, breaker.Misconfigured:
	}
	return "bad"
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
