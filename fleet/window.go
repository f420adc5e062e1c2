package fleet

import (
	"context"
	"time"

	"go.uber.org/zap"

	"basegate/config"
)

// inside tells whether a moment lies in a recurring window. It is asked of each moment anew and keeps nothing, so no
// change of the clocks can skip a window or open it twice: an hour that the clocks repeat is inside both times, and a
// window of an hour that they leave out is not.
func inside(w config.Window, at time.Time) bool {
	local := at.In(w.Location)
	clock := time.Duration(local.Hour())*time.Hour + time.Duration(local.Minute())*time.Minute +
		time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	if w.From < w.To {
		return w.Days.Has(local.Weekday()) && clock >= w.From && clock < w.To
	}
	yesterday := (local.Weekday() + 6) % 7
	return w.Days.Has(local.Weekday()) && clock >= w.From || w.Days.Has(yesterday) && clock < w.To
}

// BookedWindow is a window that somebody has booked.
type BookedWindow struct {
	ID    int64     `json:"id"`
	Model string    `json:"model"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
}

// warm tells whether a window wants the model at a moment.
func (f *Fleet) warm(m *Model, at time.Time) bool {
	for _, w := range m.config.WarmWindows {
		if inside(w, at) {
			return true
		}
	}
	for _, b := range f.BookedWindows(m.ID()) {
		if !at.Before(b.From) && at.Before(b.To) {
			return true
		}
	}
	return false
}

// BookedWindows lists the windows of a model that somebody has booked and that are not over.
func (f *Fleet) BookedWindows(model string) []BookedWindow {
	var all []BookedWindow
	for _, b := range *f.booked.Load() {
		if b.Model == model {
			all = append(all, b)
		}
	}
	return all
}

// tendInterval is how often the fleet looks at idle times, windows and orders.
const tendInterval = 500 * time.Millisecond

// tend does what time and the operator bring.
func (f *Fleet) tend(ctx context.Context) {
	beat := time.NewTicker(tendInterval)
	defer beat.Stop()
	for {
		if f.store != nil {
			f.obey(ctx)
		}
		f.look(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
	}
}

// look keeps each model as warm as its windows want at a moment, and lets its backends idle out otherwise. A window begins
// early by what a boot takes.
func (f *Fleet) look(at time.Time) {
	for _, m := range f.Models() {
		keep := f.warm(m, at) || f.warm(m, at.Add(m.BootEstimate()))
		wanted := keep
		for _, b := range m.backends {
			b.tend(keep)
			b.mu.Lock()
			if !keep {
				b.life.held = false // its window is over, and with it the operator's stop
			}
			state, held := b.life.state, b.life.held
			b.mu.Unlock()
			if held || state == Ready || state == Starting {
				wanted = false
			}
		}
		if wanted {
			if err := m.Warm("a warm window wants it"); err != nil {
				f.log.Debug("keep model warm", zap.String("model", m.ID()), zap.Error(err))
			}
		}
	}
}
