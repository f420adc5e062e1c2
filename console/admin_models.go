package console

import (
	"net/http"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/console/history"
	"basegate/fleet"
)

// adminModelsView is the data of the administrators' page of the models.
type adminModelsView struct {
	Notices  []string
	Models   []adminModel
	From, To string   // of the form that books a window, in UTC
	Booking  string   // id of the model whose form has the problem
	Problem  *problem // why no window was booked; nil if it was not tried
}

// adminModel is a model on the administrators' page.
type adminModel struct {
	modelRow
	Controls  fleet.Controls
	LastHour  pastHour
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
	Held                     int // requests that wait here because its engine is full
	Version                  string
	Changing                 bool // it is starting or draining
	LastHour                 pastHour
	Findings                 []fleet.Finding
	Log                      []fleet.CommandLine // of the commands that boot and stop it
	Outcomes                 []outcome           // of the last attempts, the newest first
}

// pastHour is how a model or a backend has served in the last 60 minutes.
type pastHour struct {
	Requests int
	Failed   int
	P50, P95 string // of the time to the first token
}

// outcome is the outcome of one attempt.
type outcome struct {
	Time  time.Time
	Class string
	Level string // CSS class: good, warn or bad
}

func (c *Console) adminModelsPage(r *request) error {
	from := c.clock().UTC().Truncate(time.Hour).Add(time.Hour)
	return c.showModels(r, http.StatusOK, adminModelsView{From: from.Format(formTime), To: from.Add(2 * time.Hour).Format(formTime)})
}

// showModels renders the page of the models.
func (c *Console) showModels(r *request, status int, view adminModelsView) error {
	if c.notices != nil {
		view.Notices = c.notices()
	}
	hour := c.history.Totals(time.Hour)
	for _, m := range c.fleet.Models() {
		model := adminModel{
			modelRow: c.modelRow(m), Controls: m.Controls(), Calendars: calendars(m), Booked: c.fleet.BookedWindows(m.ID()),
			LastHour: newPastHour(hour, history.Key{Model: m.ID()}),
		}
		for _, b := range m.Backends() {
			backend := newAdminBackend(m, b)
			backend.LastHour = newPastHour(hour, history.Key{Model: m.ID(), Backend: b.Name})
			model.Backends = append(model.Backends, backend)
		}
		view.Models = append(view.Models, model)
	}
	return c.renderStatus(r, status, "admin-models", "Models and backends", view)
}

// newPastHour returns the figures of a series; those of a series without requests are zero.
func newPastHour(hour []history.Series, k history.Key) pastHour {
	h := pastHour{P50: unknown, P95: unknown}
	for _, s := range hour {
		if s.Key == k {
			h = pastHour{
				int(s.Total.Requests), int(s.Total.Failed),
				formatKnown(s.Total.FirstTokenP50, formatSeconds), formatKnown(s.Total.FirstTokenP95, formatSeconds),
			}
		}
	}
	return h
}

func newAdminBackend(m *fleet.Model, b *fleet.Backend) adminBackend {
	state, reason := b.State()
	row := adminBackend{
		Name: b.Name, GPU: b.GPU, State: string(state), Reason: reason, Level: "bad", Changing: state == fleet.Starting || state == fleet.Draining,
		Breaker: b.Breaker(), InFlight: b.InFlight(), Held: b.Held(), Version: b.Version(), Log: b.CommandLog(), Findings: b.LaunchFindings(),
	}
	switch state {
	case fleet.Ready:
		row.Level = "good"
		row.Findings = slices.Concat(row.Findings, m.ServedFindings(b), m.VersionFindings(b), b.ChatFindings())
		if !b.TokenizerKnown() {
			const text = "/tokenize has not answered, so the bytes of a prompt decide whether it fits"
			row.Findings = append(row.Findings, fleet.Finding{Failure: true, Text: text})
		}
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
	case breaker.OutOfMemory, breaker.OutOfMemoryDead, breaker.EngineDead, breaker.ServerError, breaker.RequestFailed,
		breaker.Ended, breaker.Aborted,
		breaker.Malformed, breaker.Truncated, breaker.Refused, breaker.Reset, breaker.TimedOut, breaker.Misconfigured:
	}
	return "bad"
}
