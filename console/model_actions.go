package console

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"basegate/fleet"
)

// formTime is how a browser sends a field of type datetime-local.
const formTime = "2006-01-02T15:04"

// modelAction is what an administrator can do with a model in place.
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

// pathModel returns the model in the path.
func (c *Console) pathModel(r *request) (*fleet.Model, error) {
	m, ok := c.fleet.Model(r.param("model"))
	if !ok {
		return nil, errNotFound
	}
	return m, nil
}

// controlModel warms a model, stops it or puts it to sleep.
func (c *Console) controlModel(r *request) error {
	m, err := c.pathModel(r)
	if err != nil {
		return err
	}
	action, ok := modelActions[r.param("action")]
	if !ok {
		return errNotFound
	}
	if err := action.run(m, "requested by an administrator"); err != nil {
		return &problem{status: http.StatusConflict, title: "Nothing was changed", text: m.ID() + ": " + err.Error() + "."}
	}
	if err := c.auditLog.Record(r.ctx(), action.audit, m.ID(), ""); err != nil {
		return err
	}
	return c.redirectDone(r, modelPath(m.ID()), fmt.Sprintf(action.done, m.ID()))
}

// bookWindow books a window in which a model is kept warm.
func (c *Console) bookWindow(r *request) error {
	m, err := c.pathModel(r)
	if err != nil {
		return err
	}
	view := adminModelsView{From: r.field("from"), To: r.field("to"), Booking: m.ID()}
	from, err := time.Parse(formTime, view.From)
	field := "from"
	var to time.Time
	if err == nil {
		to, err = time.Parse(formTime, view.To)
		field = "to"
	}
	if err != nil || !m.Controls().Warm {
		view.Problem = invalid("Enter a date and a time in UTC, such as 2026-12-24 18:00.").on(field)
		if !m.Controls().Warm {
			view.Problem = invalid("The gateway cannot start this model: no backend of it has a launch or sleep section.")
		}
		return c.showModels(r, view.Problem.status, view)
	}
	_, err = fleet.AddWindow(r.ctx(), c.db, fleet.BookedWindow{Model: m.ID(), From: from, To: to})
	if errors.Is(err, fleet.ErrEmptyWindow) {
		view.Problem = invalid("A window must end after it begins, and in the future.").on("to")
		return c.showModels(r, view.Problem.status, view)
	}
	if err != nil {
		return err
	}
	detail := formatWindow(from, to)
	if err := c.auditLog.Record(r.ctx(), "book window", m.ID(), detail); err != nil {
		return err
	}
	return c.redirectDone(r, modelPath(m.ID()), fmt.Sprintf("%s is kept warm: %s.", m.ID(), detail))
}

// removeWindow removes a booked window.
func (c *Console) removeWindow(r *request) error {
	m, err := c.pathModel(r)
	if err != nil {
		return err
	}
	id, err := strconv.ParseInt(r.param("window"), 10, 64)
	if err != nil {
		return errNotFound
	}
	for _, b := range c.fleet.BookedWindows(m.ID()) {
		if b.ID != id {
			continue
		}
		if err := fleet.RemoveWindow(r.ctx(), c.db, id); err != nil && !errors.Is(err, fleet.ErrNoWindow) {
			return err
		}
		detail := formatWindow(b.From, b.To)
		if err := c.auditLog.Record(r.ctx(), "remove window", m.ID(), detail); err != nil {
			return err
		}
		return c.redirectDone(r, modelPath(m.ID()), fmt.Sprintf("%s: window removed (%s).", m.ID(), detail))
	}
	return errNotFound
}

// formatWindow formats a booked window in UTC.
func formatWindow(from, to time.Time) string {
	const layout = "2 Jan 2006, 15:04"
	return from.UTC().Format(layout) + " to " + to.UTC().Format(layout) + " UTC"
}
