package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"basegate/config"
)

const (
	// failedFor is how long a backend that could not be launched is left alone.
	failedFor = 30 * time.Second
	// overdue is when to ask again after a boot that takes longer than it was expected to.
	overdue = 5 * time.Second
	// wakeTimeout bounds a wake where no launch says how long a boot may take.
	wakeTimeout = 5 * time.Minute
)

// errBootFailed is why a command that brings a backend up is ended.
var errBootFailed = errors.New("the boot has failed")

// BootingError says that the model is being started for whoever asked.
type BootingError struct {
	Elapsed  time.Duration // since the start
	Estimate time.Duration // of the whole boot
	RetryIn  time.Duration // what is left of it, or a little where it takes longer
}

// Error implements error.
func (*BootingError) Error() string { return "the model is starting" }

// FailedError says that the model could not be started.
type FailedError struct {
	Reason  string
	RetryIn time.Duration // until it is tried again
}

// Error implements error.
func (e *FailedError) Error() string { return "the model could not be started: " + e.Reason }

// life is where a backend stands on its way from one state to another. It changes only under the backend's lock, and its
// state only by the machine's table.
type life struct {
	state   State
	reason  string // why it is not ready, in words
	since   time.Time
	changes int64                   // of the state, so far
	begun   time.Time               // of the launch or wake, while starting; of the failure, when failed
	waking  bool                    // starting is a wake
	halting bool                    // the stop, or the way to sleep, is under way and cannot be called off
	doze    bool                    // draining ends in sleep
	used    time.Time               // when a request last began or ended, or it was asked for
	abort   context.CancelCauseFunc // ends the launch or wake; nil before the first
	held    bool                    // an operator stopped it: no window starts it again until it is asked for
}

// managed tells whether the backend is ours to launch or to wake.
func (b *Backend) managed() bool { return b.policy().Launch != nil || b.policy().Sleep != nil }

func (b *Backend) policy() *config.Backend { return b.config.Load() }

// pass is one step of the machine; b.mu is held. It returns false where the event changes nothing.
func (b *Backend) pass(e event, reason string) bool {
	next, ok := machine[b.life.state][e]
	if !ok {
		return false
	}
	now := b.clock()
	from := b.life.state
	b.life.state, b.life.reason, b.life.since = next, reason, now
	b.life.changes++
	switch next {
	case Ready:
		b.life.used, b.life.held = now, false
		if from == Starting {
			b.booted(now.Sub(b.life.begun))
		}
	case Starting:
		b.life.begun = now
	case Failed:
		b.life.begun = now
		if b.life.abort != nil {
			b.life.abort(errBootFailed)
		}
	case Stopped, Asleep, Draining, Unreachable:
	}
	b.log.Info("backend changed", zap.String("from", string(from)), zap.String("to", string(next)), zap.String("reason", reason))
	b.moves.note(from, next)
	return true
}

// happen is an event from outside.
func (b *Backend) happen(e event, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(e, reason)
}

// want makes sure that the backend is on its way, however many ask. A drain that has stopped nothing yet is called off.
func (b *Backend) want(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life.used, b.life.held = b.clock(), false
	if b.life.halting || b.life.state == Failed && b.clock().Sub(b.life.begun) < failedFor {
		return
	}
	b.life.waking = b.life.state == Asleep
	launch := b.policy().Launch
	if !b.life.waking && launch == nil && b.life.state != Draining {
		return // nobody here can start it
	}
	if !b.pass(wanted, reason) || b.life.state != Starting {
		return
	}
	if b.life.waking {
		b.begin("wake", func(ctx context.Context) error { return b.post(ctx, "/wake_up", "") })
		return
	}
	b.begin("launch", func(ctx context.Context) error { return b.execute(ctx, launch.Start, b.isUp) })
}

// begin does what brings a backend up; what brings it to ready is the probe. A command that does not return may be the
// model itself: it is ended only where the boot fails. b.mu is held.
func (b *Backend) begin(what string, do func(context.Context) error) {
	b.crew.run(func(ctx context.Context) {
		ctx, abort := context.WithCancelCause(ctx)
		defer abort(nil)
		b.mu.Lock()
		b.life.abort = abort
		b.mu.Unlock()
		b.probeSoon() // and often, while it starts
		if err := do(ctx); err != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
			b.happen(spoiled, fmt.Sprintf("%s: %v", what, err))
		}
		b.probeSoon()
	})
}

// isUp tells whether the backend has come up, and nobody has stopped it since.
func (b *Backend) isUp() bool {
	state, _ := b.State()
	return state == Ready
}

func (b *Backend) bootTimeout() time.Duration {
	if launch := b.policy().Launch; launch != nil {
		return launch.BootTimeout
	}
	return wakeTimeout
}

// retire begins the drain; it ends at once where nothing is under way. doze puts the backend to sleep, where it can be.
// What cannot be stopped from here, or does not run, stays as it is.
func (b *Backend) retire(doze bool, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	doze = doze && b.policy().Sleep != nil
	if !doze && (b.policy().Launch == nil || len(b.policy().Launch.Stop) == 0) {
		return
	}
	if b.pass(retiring, reason) {
		b.life.doze = doze
		b.haltIfDrained()
	}
}

// haltIfDrained stops a draining backend, or puts it to sleep, once nothing is under way at it; b.mu is held.
func (b *Backend) haltIfDrained() {
	if b.life.state != Draining || b.life.halting || b.inFlight > 0 {
		return
	}
	b.life.halting = true
	doze := b.life.doze
	b.crew.run(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, b.bootTimeout())
		defer cancel()
		e, err := b.halt(ctx, doze)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.life.halting = false
		b.life.used = b.clock()
		if err != nil {
			b.pass(spoiled, fmt.Sprintf("stop: %v", err))
			return
		}
		b.pass(e, b.life.reason)
	})
}

// halt stops the backend, or puts it to sleep.
func (b *Backend) halt(ctx context.Context, doze bool) (event, error) {
	if doze {
		return dozed, b.post(ctx, "/sleep", fmt.Sprintf("level=%d", b.policy().Sleep.Level))
	}
	return halted, b.execute(ctx, b.policy().Launch.Stop, func() bool { return false })
}

// tend does what time brings: a boot that takes too long, and a backend that nobody uses. keep says that a warm window
// wants it.
func (b *Backend) tend(keep bool) {
	b.mu.Lock()
	now, l := b.clock(), b.life
	idle := now.Sub(l.used)
	busy := b.inFlight > 0
	b.mu.Unlock()
	launch, sleep := b.policy().Launch, b.policy().Sleep
	switch {
	case l.state == Starting && now.Sub(l.begun) > b.bootTimeout():
		b.happen(spoiled, fmt.Sprintf("it did not answer within %v", b.bootTimeout()))
	case keep || busy:
	case (l.state == Ready || l.state == Asleep) && launch != nil && launch.IdleAfter > 0 && idle >= launch.IdleAfter:
		b.retire(false, fmt.Sprintf("nobody has used it for %v", launch.IdleAfter))
	case l.state == Ready && sleep != nil && sleep.IdleAfter > 0 && idle >= sleep.IdleAfter:
		b.retire(true, fmt.Sprintf("nobody has used it for %v", sleep.IdleAfter))
	}
}

// hold takes the backend for one attempt. A managed one is taken only when it is ready: between that look and the count
// no drain can begin.
func (b *Backend) hold() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.managed() && b.life.state != Ready {
		return false
	}
	b.inFlight++
	b.life.used = b.clock()
	return true
}

func (b *Backend) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	b.life.used = b.clock()
	b.haltIfDrained()
}

// estimate is how long a boot of the backend takes: the median of those that were measured, or what is configured.
func (b *Backend) estimate() time.Duration {
	if measured := b.boots.median(); measured > 0 {
		return measured
	}
	if launch := b.policy().Launch; launch != nil {
		return launch.BootEstimate
	}
	return 0
}

// booting is what whoever asks is told of a boot.
func (b *Backend) booting() *BootingError {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &BootingError{Estimate: b.estimate()}
	if b.life.state == Starting {
		e.Elapsed = b.clock().Sub(b.life.begun)
	}
	if e.RetryIn = e.Estimate - e.Elapsed; e.RetryIn <= 0 {
		e.RetryIn = overdue
	}
	return e
}

// refused is the failure of a backend that is being left alone; nil where it is not.
func (b *Backend) refused() *FailedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := failedFor - b.clock().Sub(b.life.begun)
	if b.life.state != Failed || left <= 0 {
		return nil
	}
	return &FailedError{Reason: b.life.reason, RetryIn: left}
}
