package mockvllm

import (
	"context"
	"sync"
	"time"
)

// The engine's state is that of the process behind the HTTP server: it may be asleep, and it may be dead.
type engine struct {
	mu           sync.Mutex
	diedAt       time.Time     // zero: alive
	exitAfter    time.Duration // from the death to the end of the process; zero: it stays
	restartAfter time.Duration // from there to a new process; zero: none
	changed      chan struct{} // has an element after a death or a revival
	sleepLevel   int           // of sleep; 0: awake
	woken        chan struct{} // closed at wake-up; nil while awake
	aborts       int           // counts the times that running requests were aborted
}

func newEngine() *engine { return &engine{changed: make(chan struct{}, 1)} }

// kill kills the engine, and after a while the process, as the fault wants it.
func (e *engine) kill(f *Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.diedAt.IsZero() {
		e.diedAt, e.exitAfter, e.restartAfter = time.Now(), f.ExitAfter, f.RestartAfter
		e.notifyChange()
	}
}

func (e *engine) revive() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.diedAt = time.Time{}
	e.notifyChange()
}

func (e *engine) notifyChange() {
	select {
	case e.changed <- struct{}{}:
	default: // the one before it has not been read yet, and says as much
	}
}

func (e *engine) dead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exitStateLocked()
	return !e.diedAt.IsZero()
}

// exited tells whether the process is gone, so that connections are refused.
func (e *engine) exited() bool {
	down, _ := e.exitState()
	return down
}

// exitState tells also for how long that holds; negative is until something happens.
func (e *engine) exitState() (bool, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exitStateLocked()
}

// exitStateLocked is where between death, exit and restart the process stands. It needs the lock.
func (e *engine) exitStateLocked() (down bool, remaining time.Duration) {
	const lasting = -1
	if e.diedAt.IsZero() || e.exitAfter == 0 {
		return false, lasting
	}
	since := time.Since(e.diedAt)
	switch {
	case since < e.exitAfter:
		return false, e.exitAfter - since
	case e.restartAfter == 0:
		return true, lasting
	case since < e.exitAfter+e.restartAfter:
		return true, e.exitAfter + e.restartAfter - since
	}
	e.diedAt = time.Time{}
	return false, lasting
}

// sleep puts the engine to sleep, which aborts what runs.
func (e *engine) sleep(level int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sleepLevel = level
	e.aborts++
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
}

func (e *engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sleepLevel = 0
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// sleepState is the level of sleep and whether the engine sleeps at all.
func (e *engine) sleepState() (level int, sleeping bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sleepLevel, e.woken != nil
}

// abortCount counts the aborts so far: a request compares it with the count when it began.
func (e *engine) abortCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aborts
}

// awaitWake waits until the engine is.
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
