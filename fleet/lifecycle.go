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

// Why a command that brings a backend up is ended.
var (
	errBootFailed  = errors.New("the boot has failed")
	errBootStopped = errors.New("an operator has stopped the boot")
)

// BootingError says that the model is being started for whoever asked.
type BootingError struct {
	Elapsed  time.Duration // since the start
	Estimate time.Duration // of the whole boot
	RetryIn  time.Duration // what is left of it, or a little where it takes longer
}

// Error implements error.
func (*BootingError) Error() string { return "the model is starting" }

// BootFailedError says that the model could not be started.
type BootFailedError struct {
	Reason  string
	RetryIn time.Duration // until it is tried again
}

// Error implements error.
func (e *BootFailedError) Error() string { return "the model could not be started: " + e.Reason }

// life is where a backend stands on its way from one state to another. It changes only under the backend's lock, and its
// state only by the machine's table.
type life struct {
	state   State
	reason  string // why it is not ready, in words
	since   time.Time
	changes int64     // of the state, so far
	begun   time.Time // of the launch or wake, while starting; of the failure, when failed
	boot    *boot     // the last launch or wake; nil before the first
	origin  State     // draining began in it
	halting bool      // the stop, or the way to sleep, is under way and cannot be called off
	doze    bool      // draining ends in sleep
	used    time.Time // when a request last began or ended, or it was asked for
	held    bool      // an operator stopped it: no window starts it again until it is asked for
}

// boot is one launch or wake. Its fields but ended change only under the backend's lock.
type boot struct {
	wake  bool
	abort context.CancelCauseFunc // ends the command; nil until it runs
	cause error                   // why it is ended; nil while it is not
	ended chan struct{}           // closed when the command has ended
}

// end ends the command, or sees to it that it does not begin; b.mu is held.
func (o *boot) end(cause error) {
	o.cause = cause
	if o.abort != nil {
		o.abort(cause)
	}
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
		b.life.boot.end(errBootFailed)
	case Draining:
		b.life.origin = from
	case Stopped, Asleep, Unreachable:
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

// want makes sure that the backend is on its way, however many ask. A drain that has stopped nothing yet is called off,
// unless it began at a backend that was not ready: there is nothing to go back to.
func (b *Backend) want(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life.used, b.life.held = b.clock(), false
	if b.life.halting || b.alone() > 0 || b.life.state == Draining && b.life.origin != Ready {
		return
	}
	wake, launch := b.life.state == Asleep, b.policy().Launch
	if !wake && launch == nil && b.life.state != Draining {
		return // nobody here can start it
	}
	if !b.pass(wanted, reason) || b.life.state != Starting {
		return
	}
	b.life.boot = &boot{wake: wake, ended: make(chan struct{})}
	if wake {
		b.begin("wake", func(ctx context.Context) error { return b.post(ctx, "/wake_up", "") })
		return
	}
	b.begin("launch", func(ctx context.Context) error { return b.execute(ctx, launch.Start, b.isUp, b.isStarting) })
}

// begin does what brings a backend up; what brings it to ready is the probe. A command that does not return may be the
// model itself: it is ended only where the boot fails or is stopped. b.mu is held.
func (b *Backend) begin(what string, do func(context.Context) error) {
	own := b.life.boot
	b.crew.run(func(ctx context.Context) {
		defer close(own.ended)
		ctx, abort := context.WithCancelCause(ctx)
		defer abort(nil)
		b.mu.Lock()
		own.abort = abort
		if own.cause != nil {
			abort(own.cause)
		}
		b.mu.Unlock()
		b.probeSoon() // and often, while it starts
		if err := do(ctx); err != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
			b.miscarry(own, fmt.Sprintf("%s: %v", what, err))
		}
		b.probeSoon()
	})
}

// miscarry is the failure of a boot. It counts while that boot is under way: a command that was the model itself fails too
// when it is stopped.
func (b *Backend) miscarry(own *boot, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.boot == own && b.life.state == Starting {
		b.pass(spoiled, reason)
	}
}

// isUp tells whether the backend has come up, and nobody has stopped it since.
func (b *Backend) isUp() bool {
	state, _ := b.State()
	return state == Ready
}

func (b *Backend) isStarting() bool {
	state, _ := b.State()
	return state == Starting
}

func (b *Backend) bootTimeout() time.Duration {
	if launch := b.policy().Launch; launch != nil {
		return launch.BootTimeout
	}
	return wakeTimeout
}

// retire drains a backend that nobody uses. One that is starting is left alone: somebody has asked for it since.
func (b *Backend) retire(doze bool, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.state != Starting {
		b.drain(doze, reason)
	}
}

// stop is the operator's order: the backend is stopped, or put to sleep where it cannot be, and a boot is ended. It
// returns false where neither can be done from here.
func (b *Backend) stop(reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stoppable() && b.policy().Sleep == nil {
		return false
	}
	b.life.held = true
	b.drain(!b.stoppable(), reason)
	return true
}

// stoppable tells whether a command stops the backend.
func (b *Backend) stoppable() bool {
	launch := b.policy().Launch
	return launch != nil && len(launch.Stop) > 0
}

// drain begins the drain; it ends at once where nothing is under way. doze puts the backend to sleep, where it can be.
// What cannot be stopped from here, or does not run, stays as it is. b.mu is held.
func (b *Backend) drain(doze bool, reason string) {
	doze = doze && b.policy().Sleep != nil
	if !doze && !b.stoppable() || !b.pass(retiring, reason) {
		return
	}
	b.life.doze = doze
	if b.life.origin == Starting && (!doze || !b.life.boot.wake) { // vLLM would go on with a wake
		b.life.boot.end(errBootStopped)
	}
	b.haltIfDrained()
}

// haltIfDrained stops a draining backend, or puts it to sleep, once nothing is under way at it; b.mu is held.
func (b *Backend) haltIfDrained() {
	if b.life.state != Draining || b.life.halting || b.inFlight > 0 {
		return
	}
	b.life.halting = true
	doze, unfinished := b.life.doze, b.life.boot
	if b.life.origin != Starting && b.life.origin != Failed {
		unfinished = nil // a command that still runs is the model itself
	}
	b.crew.run(func(ctx context.Context) {
		b.outlast(ctx, unfinished)
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

// outlast waits until nothing brings the backend up any more, which could undo the stop, or the way to sleep, that follows.
func (b *Backend) outlast(ctx context.Context, boot *boot) {
	if boot == nil {
		return
	}
	timer := time.NewTimer(b.bootTimeout()) // for a wake, which is not ended
	defer timer.Stop()
	select {
	case <-boot.ended:
		return
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	b.mu.Lock()
	boot.end(errBootStopped)
	b.mu.Unlock()
	select {
	case <-boot.ended:
	case <-ctx.Done():
	}
}

// halt stops the backend, or puts it to sleep.
func (b *Backend) halt(ctx context.Context, doze bool) (event, error) {
	if doze {
		return dozed, b.post(ctx, "/sleep", fmt.Sprintf("level=%d", b.policy().Sleep.Level))
	}
	return halted, b.execute(ctx, b.policy().Launch.Stop, func() bool { return false }, func() bool { return true })
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
		b.miscarry(l.boot, fmt.Sprintf("it did not answer within %v", b.bootTimeout()))
	case keep || busy:
	case (l.state == Ready || l.state == Asleep) && launch != nil && launch.IdleAfter > 0 && idle >= launch.IdleAfter:
		b.retire(false, fmt.Sprintf("nobody has used it for %v", launch.IdleAfter))
	case l.state == Ready && sleep != nil && sleep.IdleAfter > 0 && idle >= sleep.IdleAfter:
		b.retire(true, fmt.Sprintf("nobody has used it for %v", sleep.IdleAfter))
	}
}

// hold takes the backend for one attempt. One that is ours to launch is taken only when it is ready, and none while it
// starts, sleeps or drains, or is left alone. Between that look and the count no drain can begin.
func (b *Backend) hold() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.life.state {
	case Ready:
	case Starting, Asleep, Draining:
		return false
	case Stopped, Unreachable, Failed:
		if b.policy().Launch != nil || b.alone() > 0 {
			return false
		}
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
func (b *Backend) refused() *BootFailedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.alone()
	if left == 0 {
		return nil
	}
	return &BootFailedError{Reason: b.life.reason, RetryIn: left}
}

// alone is how much longer a backend that has failed is left alone; b.mu is held.
func (b *Backend) alone() time.Duration {
	if b.life.state != Failed {
		return 0
	}
	return max(failedFor-b.clock().Sub(b.life.begun), 0)
}
