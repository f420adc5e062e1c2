package console

import (
	"context"
	"errors"
	"net/http"

	"go.uber.org/zap"

	apierr "basegate/errors"
	"basegate/fleet"
)

// Warmer starts a model that is not running. It returns when the boot has begun, not when it has finished.
type Warmer func(ctx context.Context, model string) error

// statusStarting is the status in GET /v1/models of a model that is booting.
const statusStarting = "starting"

// modelRow is a model as the dashboard shows it.
type modelRow struct {
	ID         string
	Checkpoint string
	Precision  string
	Context    int64  // tokens; 0 while unknown
	Status     string // as in GET /v1/models
	Meaning    string // of the status, as a predicate
	Level      string // CSS class: good, warn or bad
	Down       bool   // no backend answers, and the gateway cannot start one
	Starting   bool
	Warmable   bool
	Activity   modelActivity
}

func (c *Console) modelRows() []modelRow {
	var rows []modelRow
	for _, m := range c.fleet.Models() {
		rows = append(rows, c.modelRow(m))
	}
	return rows
}

func (c *Console) modelRow(m *fleet.Model) modelRow {
	row := modelRow{
		ID: m.ID(), Checkpoint: m.Checkpoint(), Precision: m.Precision(), Context: m.MaxModelLen(), Status: m.Status(),
	}
	boot := m.BootEstimate()
	failed, hasFailed := errors.AsType[*fleet.BootFailedError](m.CheckServable(fleet.Caller{}))
	switch {
	case row.Status == fleet.StatusWarm:
		row.Meaning, row.Level = "responds at once", "good"
	case row.Status == statusStarting:
		row.Meaning, row.Level, row.Starting = "is starting, about "+formatDuration(boot), "warn", true
	case hasFailed:
		row.Meaning, row.Level = "could not be started. Next boot attempt in "+formatDuration(failed.RetryIn), "bad"
	case boot > 0:
		row.Meaning, row.Level = "is not running; starts on request in about "+formatDuration(boot), "warn"
		row.Warmable = c.warm != nil
	default:
		row.Meaning, row.Level, row.Down = "is down", "bad", true
	}
	return row
}

func (c *Console) warmModel(r *request) error {
	if c.warm == nil {
		return errNotFound
	}
	m, ok := c.fleet.Model(r.param("model"))
	if !ok {
		return errNotFound
	}
	if err := c.warm(r.ctx(), m.ID()); err != nil {
		if public, ok := errors.AsType[*apierr.Error](err); ok {
			return &problem{status: public.Code.Status(), title: "The model cannot be started", text: public.Message}
		}
		c.log.Warn("warm model", zap.String("model", m.ID()), zap.Error(err))
		return &problem{
			status: http.StatusBadGateway, title: "The model cannot be started",
			text: "Starting " + m.ID() + " failed, and the reason has been logged. Tell an administrator if it persists.",
		}
	}
	if err := c.auditLog.Record(r.ctx(), "warm model", m.ID(), ""); err != nil {
		return err
	}
	return c.redirectDone(r, "/dashboard#models", m.ID()+" is starting.")
}
