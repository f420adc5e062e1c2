package fleet

import (
	"context"
	"time"

	"go.uber.org/zap"

	"basegate/gateway/config"
)

// contains reports whether a recurring window contains a time. An hour that the local clock repeats is in the window both times, and
// a window within an hour that the clock skips contains no time.
func contains(w config.Window, t time.Time) bool {
	local := t.In(w.Location)
	clock := time.Duration(local.Hour())*time.Hour + time.Duration(local.Minute())*time.Minute +
		time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	if w.From < w.To {
		return w.Days.Has(local.Weekday()) && clock >= w.From && clock < w.To
	}
	yesterday := (local.Weekday() + 6) % 7
	return w.Days.Has(local.Weekday()) && clock >= w.From || w.Days.Has(yesterday) && clock < w.To
}

// overlaps reports whether a recurring window contains a time of a period. It begins and ends on whole minutes.
func overlaps(w config.Window, from, to time.Time) bool {
	for t := from; t.Before(to); t = t.Truncate(time.Minute).Add(time.Minute) {
		if contains(w, t) {
			return true
		}
	}
	return contains(w, to)
}

// BookedWindow is a single warm window that an operator has booked.
type BookedWindow struct {
	ID    int64     `json:"id"`
	Model string    `json:"model"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
}

// inWarmWindow reports whether a recurring or booked window of the model contains a time of a period.
func (f *Fleet) inWarmWindow(m *Model, from, to time.Time) bool {
	for _, w := range m.config.WarmWindows {
		if overlaps(w, from, to) {
			return true
		}
	}
	for _, b := range f.BookedWindows(m.ID()) {
		if !to.Before(b.From) && from.Before(b.To) {
			return true
		}
	}
	return false
}

// BookedWindows returns the booked windows of a model that have not ended.
func (f *Fleet) BookedWindows(model string) []BookedWindow {
	var all []BookedWindow
	for _, b := range *f.booked.Load() {
		if b.Model == model {
			all = append(all, b)
		}
	}
	return all
}

// reconcileInterval is the interval at which idle times, windows and commands are checked.
const reconcileInterval = 500 * time.Millisecond

// runReconciler polls the database and reconciles the models until ctx ends. Before the booked windows, and what the leader has
// published, have been read it reconciles nothing: it would end an operator's stop, and stop a model that a window keeps warm.
func (f *Fleet) runReconciler(ctx context.Context) {
	ticker := time.NewTicker(reconcileInterval)
	defer ticker.Stop()
	windowsRead := f.db == nil
	for {
		if f.db != nil {
			windowsRead = f.pollDatabase(ctx) || windowsRead
		}
		if windowsRead && (f.cluster == nil || f.cluster.known) {
			f.reconcile(time.Now())
		}
		if !f.syncUntil(ctx, ticker.C) {
			return
		}
	}
}

// reconcile starts the models that should be warm at the given time and drains idle backends of the others. A model is
// started before its window begins, by the boot estimate, and does not idle out until then.
func (f *Fleet) reconcile(now time.Time) {
	for _, m := range f.BaseModels() {
		keepWarm := f.inWarmWindow(m, now, now.Add(m.warmLead()))
		start := keepWarm && f.leads()
		for _, r := range m.replicas {
			if !f.leads() {
				r.running = 0 // so that the minute begins anew
				continue
			}
			r.scale(now, keepWarm)
		}
		for _, b := range m.backends {
			b.reconcile(keepWarm)
			b.mu.Lock()
			if c := b.cfg().Replicas; !keepWarm && (c == nil || c.Min == 0) {
				b.life.stoppedByOperator = false // an operator's stop lasts until the end of the window
			}
			state, stopped := b.life.state, b.life.stoppedByOperator
			b.mu.Unlock()
			if stopped || state == Ready || state == Starting {
				start = false
			}
		}
		if start {
			if err := m.Warm("warm window"); err != nil {
				f.log.Debug("keep model warm", zap.String("model", m.ID()), zap.Error(err))
			}
		}
	}
}
