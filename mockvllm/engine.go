package mockvllm

import (
	"context"
	"sync"
	"time"
)

// The engine's state is that of the process behind the HTTP server: it may be asleep, and it may be dead.
type engine struct {
	mu      sync.Mutex
	died    time.Time     // zero: alive
	exit    time.Duration // from the death to the end of the process; zero: it stays
	restart time.Duration // from there to a new process; zero: none
	changed chan struct{} // has an element after a death or a revival
	level   int           // of sleep; 0: awake
	woken   chan struct{} // closed at wake-up; nil while awake
	aborts  int           // counts the times that running requests were aborted
}

func newEngine() *engine { return &engine{changed: make(chan struct{}, 1)} }

// die kills the engine, and after a while the process, as the fault wants it.
func (e *engine) die(f *Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.died.IsZero() {
		e.died, e.exit, e.restart = time.Now(), f.ExitAfter, f.RestartAfter
		e.announce()
	}
}

func (e *engine) revive() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.died = time.Time{}
	e.announce()
}

func (e *engine) announce() {
	select {
	case e.changed <- struct{}{}:
	default: // the one before it has not been read yet, and says as much
	}
}

func (e *engine) dead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outage()
	return !e.died.IsZero()
}

// exited tells whether the process is gone, so that connections are refused.
func (e *engine) exited() bool {
	down, _ := e.exitedUntil()
	return down
}

// exitedUntil tells also for how long that holds; negative is until something happens.
func (e *engine) exitedUntil() (bool, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.outage()
}

// outage is where between death, exit and restart the process stands. It needs the lock.
func (e *engine) outage() (down bool, left time.Duration) {
	const lasting = -1
	if e.died.IsZero() || e.exit == 0 {
		return false, lasting
	}
	since := time.Since(e.died)
	switch {
	case since < e.exit:
		return false, e.exit - since
	case e.restart == 0:
		return true, lasting
	case since < e.exit+e.restart:
		return true, e.exit + e.restart - since
	}
	e.died = time.Time{}
	return false, lasting
}

// sleep puts the engine to sleep, which aborts what runs.
func (e *engine) sleep(level int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.level = level
	e.aborts++
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
}

func (e *engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.level = 0
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// asleep is the level of sleep and whether the engine sleeps at all.
func (e *engine) asleep() (level int, sleeping bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.level, e.woken != nil
}

// aborted counts the aborts so far: a request compares it with the count when it began.
func (e *engine) aborted() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aborts
}

// awake waits until the engine is.
func (e *engine) awake(ctx context.Context) error {
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
