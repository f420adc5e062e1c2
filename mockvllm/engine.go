package mockvllm

import (
	"sync"
	"sync/atomic"
	"time"

	"basegate/internal/wait"
)

// engine is the state of the simulated server process and its engine: alive, dead, or exited.
type engine struct {
	dead    atomic.Bool   // the process reports a dead engine
	aborts  atomic.Int64  // how often running requests were aborted; a request compares it with the count at its start
	changed chan struct{} // receives after exit and revival

	mu      sync.Mutex
	exited  bool          // connections are refused
	restart *time.Timer   // nil if no restart is scheduled
	woken   chan struct{} // closed at wake-up; nil while awake
}

// setExited ends the process, and schedules its restart unless that is after 0, or restarts it.
func (e *engine) setExited(exited bool, restartAfter time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restart != nil {
		e.restart.Stop()
	}
	e.exited = exited
	if restartAfter > 0 {
		e.restart = time.AfterFunc(restartAfter, func() { e.setExited(false, 0) })
	}
	wait.Wake(e.changed)
}

func (e *engine) hasExited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exited
}

// sleep puts the engine to sleep and aborts running requests. Those that come wait until it wakes up.
func (e *engine) sleep() {
	e.aborts.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
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
