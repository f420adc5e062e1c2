package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/console/history"
	"basegate/fleet"
)

type adminModelsView struct {
	Notices  []string
	Models   []adminModel
	From, To string   // of the form that books a window, in UTC
	Booking  string   // id of the model whose form has the problem
	Adding   string   // the model to which an adapter was to be added, or of which one was to be removed
	Problem  *problem // why no window was booked, or no adapter changed; nil if it was not tried
}

type adminModel struct {
	modelRow
	LastHour pastHour
	Rows     []adminBackend
	Booked   []fleet.BookedWindow // warm windows that are not over
}

type adminBackend struct {
	*fleet.Backend
	Status, Reason string
	Level          string // CSS class of the status: good, warn or bad
	NextBoot       string // when a failed boot is tried again; empty if none has failed
	Health         health // empty if the backend does not respond
	Engine         string // what vLLM says of its load; empty if that is not known
	Changing       bool   // it is starting or draining
	LastHour       pastHour
	Findings       []fleet.Finding
	Outcomes       []outcome // of the last attempts, the newest first
}

// health is what the breaker knows of a backend.
type health struct{ Text, Level string }

var healthOf = map[breaker.State]health{
	breaker.Closed: {"Healthy", "good"}, breaker.HalfOpen: {"Breaker half-open", "warn"}, breaker.Open: {"Breaker open", "bad"},
}

// pastHour is how a model or a backend has served in the last 60 minutes.
type pastHour struct {
	Requests int
	Failed   int
	P50, P95 string // of the time to the first token
}

type outcome struct {
	Time  time.Time
	Class string
	Level string // CSS class: good, warn or bad
}

func (c *Console) adminModelsPage(r *request) error {
	from := c.clock().UTC().Truncate(time.Hour).Add(time.Hour)
	return c.showModels(r, http.StatusOK, adminModelsView{From: from.Format(formTime), To: from.Add(2 * time.Hour).Format(formTime)})
}

func (c *Console) showModels(r *request, status int, view adminModelsView) error {
	view.Notices = c.Notices()
	hour := c.History.Totals(time.Hour)
	for _, m := range c.Fleet.BaseModels() {
		model := adminModel{
			modelRow: newModelRow(m), Booked: c.Fleet.BookedWindows(m.ID()),
			LastHour: newPastHour(hour, history.Key{Model: m.ID()}),
		}
		for _, b := range m.Backends() {
			backend := newAdminBackend(m, b)
			backend.LastHour = newPastHour(hour, history.Key{Model: m.ID(), Backend: b.Name})
			model.Rows = append(model.Rows, backend)
		}
		view.Models = append(view.Models, model)
	}
	return c.renderStatus(r, status, "admin-models", "Models and backends", view)
}

// newPastHour returns the figures of a series; those of a series without requests are zero.
func newPastHour(hour map[history.Key]*history.Totals, k history.Key) pastHour {
	t := cmp.Or(hour[k], new(history.Totals))
	return pastHour{
		int(t.Requests), int(t.Failed), formatKnown(t.FirstToken(.5), formatSeconds), formatKnown(t.FirstToken(.95), formatSeconds),
	}
}

func newAdminBackend(m *fleet.Model, b *fleet.Backend) adminBackend {
	state, reason := b.State()
	row := adminBackend{
		Backend: b, Status: string(state), Reason: reason, Level: "bad", Changing: state == fleet.Starting || state == fleet.Draining,
		Findings: b.LaunchFindings(),
	}
	if failed := b.BootFailure(); failed != nil && failed.RetryIn > 0 {
		row.NextBoot = "Next boot attempt in " + formatBrief(failed.RetryIn)
	} else if failed != nil {
		row.NextBoot = "Next boot attempt: at the next request"
	}
	if e := b.Engine(); e != nil {
		percent := func(part float64) string { return formatPercent(100 * part) }
		row.Engine = fmt.Sprintf("%d running, %d waiting; cache: %s used, %s hits", e.Running, e.Waiting, formatKnown(e.Cache, percent), formatKnown(e.HitRate, percent))
	}
	if state == fleet.Ready || b.Breaker() != breaker.Closed {
		row.Health = healthOf[b.Breaker()]
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
		breaker.AdapterGone, breaker.ClientGone:
		return "warn"
	default:
		return "bad"
	}
}
