package proxy

import (
	"context"
	"time"
)

// watchdog cancels an attempt at a backend that is silent for too long. The time that the gateway and a slow client take
// does not count.
type watchdog struct {
	timer   *time.Timer
	left    time.Duration // how long the backend may still be silent
	resumed time.Time
}

// start begins to wait for the backend. cancel is called with errTimeout after that much silence.
func (w *watchdog) start(left time.Duration, cancel context.CancelCauseFunc) {
	w.left, w.resumed = left, time.Now()
	w.timer = time.AfterFunc(left, func() { cancel(errTimeout) })
}

// stop stops waiting. It may be called more than once.
func (w *watchdog) stop() { w.timer.Stop() }

// progress is called when the backend has sent something that counts: from now on it may be silent for left.
func (w *watchdog) progress(left time.Duration) { w.left = left }

// noProgress is called, before resume, when the backend has sent something that does not count.
func (w *watchdog) noProgress() { w.left -= time.Since(w.resumed) }

// resume waits for the backend again.
func (w *watchdog) resume() {
	w.resumed = time.Now()
	w.timer.Reset(w.left)
}
