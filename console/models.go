package console

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	apierr "basegate/errors"
	"basegate/fleet"
)

type modelRow struct {
	*fleet.Model
	Label    string // of the status
	Meaning  string // of the status, as a predicate
	Level    string // CSS class: good, warn or bad
	Down     bool   // no backend answers, and the gateway cannot start one
	Starting bool
	Warmable bool
	Activity modelActivity
}

func newModelRow(m *fleet.Model) modelRow {
	row, status := modelRow{Model: m}, m.Status()
	estimate, failed, booting := formatBrief(m.BootEstimate()), m.BootFailure(), m.Boot()
	open, isOpen := errors.AsType[*fleet.BreakerOpenError](m.CheckServable(fleet.Caller{}))
	switch {
	case status == fleet.StatusWarm:
		row.Label, row.Meaning, row.Level = "Ready", "responds at once", "good"
	case booting != nil:
		row.Label, row.Meaning, row.Level, row.Starting = "Starting", "will be ready in about "+formatBrief(booting.RetryIn), "warn", true
	case failed != nil && failed.RetryIn > 0:
		row.Label, row.Meaning, row.Level = "Boot failed", "could not be started. Next boot attempt in "+formatBrief(failed.RetryIn), "bad"
	case failed != nil:
		row.Label, row.Meaning, row.Level, row.Warmable = "Boot failed", "could not be started; boots again on request, in about "+estimate, "bad", true
	case isOpen:
		row.Label, row.Meaning, row.Level, row.Down = "Down", "has failed too often. Next trial in "+formatBrief(open.RetryIn), "bad", true
	case m.BootEstimate() > 0:
		row.Label, row.Meaning, row.Level, row.Warmable = "Cold", "boots in about "+estimate, "warn", true
	default:
		row.Label, row.Meaning, row.Level, row.Down = "Down", "does not respond", "bad", true
	}
	return row
}

func (c *Console) warmModel(r *request, m *fleet.Model) error {
	if err := m.Warm("requested at the console"); err != nil {
		if public, ok := errors.AsType[*apierr.Error](m.APIError(err)); ok {
			return newProblem(public.Code.Status(), "The model cannot be started", public.Message)
		}
		if errors.Is(err, fleet.ErrNotManaged) {
			return newProblem(http.StatusConflict, "The model cannot be started", "No backend of "+m.ID()+" is one that the gateway can start.")
		}
		// Users may not see the launch command, which the error may name.
		c.Log.Warn("warm model", zap.String("model", m.ID()), zap.Error(err))
		return newProblem(http.StatusBadGateway, "The model cannot be started",
			"Starting "+m.ID()+" failed, and the reason has been logged. Tell an administrator if it persists.")
	}
	err := c.AuditLog.Record(r.ctx(), "warm model", m.ID(), "")
	return c.redirectDone(r, err, "/dashboard#models", m.ID()+" is starting.")
}

// formTime is how a browser sends a field of type datetime-local.
const formTime = "2006-01-02T15:04"

type modelAction struct {
	run   func(m *fleet.Model, reason string) error
	audit string // the action in the audit log
	done  string // what the page says; has the model's id
}

var modelActions = map[string]modelAction{
	"warm":  {(*fleet.Model).Warm, "warm model", "%s: start requested."},
	"stop":  {(*fleet.Model).Stop, "stop model", "%s: stop requested. Running requests are completed first."},
	"sleep": {(*fleet.Model).Sleep, "sleep model", "%s: sleep requested. Running requests are completed first."},
}

// modelPath returns the place of a model on the administrators' page.
func modelPath(id string) string { return "/admin/models#model-" + id }

func (c *Console) pathModel(r *request) (*fleet.Model, error) {
	m, ok := c.Fleet.Model(r.param("model"))
	if !ok {
		return nil, errNotFound
	}
	return m, nil
}

func (c *Console) controlModel(r *request, m *fleet.Model) error {
	action, ok := modelActions[r.param("action")]
	if !ok {
		return errNotFound
	}
	if err := action.run(m, "requested by an administrator"); err != nil {
		return newProblem(http.StatusConflict, "Nothing was changed",
			m.ID()+": "+err.Error()+".")
	}
	err := c.AuditLog.Record(r.ctx(), action.audit, m.ID(), "")
	return c.redirectDone(r, err, modelPath(m.ID()), fmt.Sprintf(action.done, m.ID()))
}

// bookWindow books a window in which a model is kept warm.
func (c *Console) bookWindow(r *request, m *fleet.Model) error {
	view := adminModelsView{From: r.field("from"), To: r.field("to"), Booking: m.ID()}
	from, fromErr := time.Parse(formTime, view.From)
	to, toErr := time.Parse(formTime, view.To)
	var err error
	badTime := invalid("Enter a date and a time in UTC, such as 2026-12-24 18:00.")
	switch {
	case !m.Controls().Warm:
		view.Problem = invalid("The gateway cannot start this model: no backend of it has a launch or sleep section.")
	case fromErr != nil:
		view.Problem = badTime.on("from")
	case toErr != nil:
		view.Problem = badTime.on("to")
	default:
		_, err = fleet.AddWindow(r.ctx(), c.DB, fleet.BookedWindow{Model: m.ID(), From: from, To: to})
	}
	if errors.Is(err, fleet.ErrEmptyWindow) {
		view.Problem = invalid("A window must end after it begins, and in the future.").on("to")
	}
	if view.Problem != nil {
		return c.showModels(r, view.Problem.status, view)
	}
	if err != nil {
		return err
	}
	detail := formatWindow(from, to)
	err = c.AuditLog.Record(r.ctx(), "book window", m.ID(), detail)
	return c.redirectDone(r, err, modelPath(m.ID()), fmt.Sprintf("%s is kept warm: %s.", m.ID(), detail))
}

func (c *Console) removeWindow(r *request, m *fleet.Model) error {
	id, err := strconv.ParseInt(r.param("window"), 10, 64)
	if err != nil {
		return errNotFound
	}
	for _, b := range c.Fleet.BookedWindows(m.ID()) {
		if b.ID != id {
			continue
		}
		if err := fleet.RemoveWindow(r.ctx(), c.DB, id); err != nil && !errors.Is(err, fleet.ErrNoWindow) {
			return err
		}
		detail := formatWindow(b.From, b.To)
		err := c.AuditLog.Record(r.ctx(), "remove window", m.ID(), detail)
		return c.redirectDone(r, err, modelPath(m.ID()), fmt.Sprintf("%s: window removed (%s).", m.ID(), detail))
	}
	return errNotFound
}

func formatWindow(from, to time.Time) string {
	const layout = "2 Jan 2006, 15:04"
	return from.UTC().Format(layout) + " to " + to.UTC().Format(layout) + " UTC"
}
