package mockvllm

import (
	"sync"
	"time"
)

// engine is the state of the simulated server process and its engine: alive, dead, or exited.
type engine struct {
	mu        sync.Mutex
	isDead    bool          // the process reports a dead engine
	exitedAt  time.Time     // zero while the process runs
	restartIn time.Duration // from exit to a new process; 0 means no restart
	aborts    int           // how often running requests were aborted
	woken     chan struct{} // closed at wake-up; nil while awake
	changed   chan struct{} // receives after exit and revival
}

func newEngine() *engine { return &engine{changed: make(chan struct{}, 1)} }

// kill marks the engine dead.
func (e *engine) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isDead = true
}

// exit ends the process and schedules its restart. With abort, running requests end with what they have at their next
// token.
func (e *engine) exit(restartIn time.Duration, abort bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if abort {
		e.aborts++
	}
	e.exitedAt, e.restartIn = time.Now(), restartIn
	e.notifyChange()
}

// revive undoes kill and exit.
func (e *engine) revive() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isDead, e.exitedAt = false, time.Time{}
	e.notifyChange()
}

// sleep puts the engine to sleep and aborts running requests. Those that come wait until it wakes up.
func (e *engine) sleep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aborts++
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
}

func (e *engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// asleep returns a channel that is closed at wake-up, or nil if the engine is awake.
func (e *engine) asleep() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.woken
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
	return e.isDead
}

// exited reports whether the process has exited, so that connections are refused, and how long that lasts at most.
func (e *engine) exited() (bool, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	remaining := time.Hour
	if !e.exitedAt.IsZero() && e.restartIn > 0 {
		remaining = e.restartIn - time.Since(e.exitedAt)
	}
	if remaining <= 0 {
		e.exitedAt = time.Time{}
	}
	return !e.exitedAt.IsZero(), max(remaining, time.Millisecond)
}

// abortCount returns how often running requests were aborted. A request compares it with the count at its start.
func (e *engine) abortCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aborts
}
