package mockvllm

import (
	"context"
	"sync"
	"time"
)

// engine is the state of the simulated engine process behind the HTTP server: awake or asleep, alive or dead.
type engine struct {
	mu           sync.Mutex
	diedAt       time.Time     // zero while alive
	exitAfter    time.Duration // from death to process exit; 0 keeps the process, unless exits
	exits        bool          // the process exits at once, and its requests do not report a dead engine
	hangs        bool          // running requests hang instead of failing
	restartAfter time.Duration // from exit to a new process; 0 means no restart
	changed      chan struct{} // receives after death and revival
	sleepLevel   int           // 0 while awake
	woken        chan struct{} // closed at wake-up; nil while awake
	aborts       int           // how often running requests were aborted
}

func newEngine() *engine { return &engine{changed: make(chan struct{}, 1)} }

// kill marks the engine dead and schedules the process exit and restart of the fault.
func (e *engine) kill(f *Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.diedAt.IsZero() {
		e.diedAt, e.exitAfter, e.restartAfter, e.hangs = time.Now(), f.ExitAfter, f.RestartAfter, f.Kind == faultSigtermHang
		e.notifyChange()
	}
}

// exit ends the process at once and schedules the restart of the fault. With abort, running requests end with what
// they have at their next token.
func (e *engine) exit(f *Fault, abort bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if abort {
		e.aborts++
	}
	e.diedAt, e.exitAfter, e.restartAfter, e.exits = time.Now(), 0, f.RestartAfter, true
	e.notifyChange()
}

// revive undoes kill and exit.
func (e *engine) revive() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.diedAt, e.exits, e.hangs = time.Time{}, false, false
	e.notifyChange()
}

func (e *engine) notifyChange() {
	select {
	case e.changed <- struct{}{}:
	default: // a notification is already pending
	}
}

func (e *engine) dead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exitStateLocked()
	return !e.diedAt.IsZero() && !e.exits
}

// hanging reports whether running requests hang because the process is being ended.
func (e *engine) hanging() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hangs
}

// exited reports whether the process has exited, so that connections are refused.
func (e *engine) exited() bool {
	down, _ := e.exitState()
	return down
}

// exitState reports whether the process has exited, and how long that state lasts. A negative duration means until the
// next change.
func (e *engine) exitState() (bool, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exitStateLocked()
}

// exitStateLocked derives the state from the times of death, exit and restart. e.mu must be held.
func (e *engine) exitStateLocked() (down bool, remaining time.Duration) {
	const untilChange = -1
	if e.diedAt.IsZero() || e.exitAfter == 0 && !e.exits {
		return false, untilChange
	}
	since := time.Since(e.diedAt)
	switch {
	case since < e.exitAfter:
		return false, e.exitAfter - since
	case e.restartAfter == 0:
		return true, untilChange
	case since < e.exitAfter+e.restartAfter:
		return true, e.exitAfter + e.restartAfter - since
	}
	e.diedAt, e.exits = time.Time{}, false
	return false, untilChange
}

// sleep puts the engine to sleep and aborts running requests.
func (e *engine) sleep(level int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sleepLevel = level
	e.aborts++
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
}

// wake wakes the engine up; waiting requests run.
func (e *engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sleepLevel = 0
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// sleepState returns the sleep level and whether the engine is asleep.
func (e *engine) sleepState() (level int, sleeping bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sleepLevel, e.woken != nil
}

// abortCount returns how often running requests were aborted. A request compares it with the count at its start.
func (e *engine) abortCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aborts
}

// awaitWake blocks until the engine is awake or ctx ends.
func (e *engine) awaitWake(ctx context.Context) error {
	e.mu.Lock()
	woken := e.woken
	e.mu.Unlock()
	if woken == nil {
		return context.Cause(ctx)
	}
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
