package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/gateway/config"
)

const (
	// failureCooldown is how long a backend is not booted again after its boot has failed.
	failureCooldown = 30 * time.Second
	// overdueRetry is the suggested retry delay if a boot takes longer than estimated.
	overdueRetry = 5 * time.Second
	// wakeTimeout limits a wake if there is no launch section with a boot timeout.
	wakeTimeout = 5 * time.Minute
)

// Causes for aborting the command that boots a backend.
var (
	errBootFailed  = errors.New("the boot has failed")
	errBootStopped = errors.New("an operator has stopped the boot")
)

// BootingError is returned if the model is starting.
type BootingError struct {
	Elapsed  time.Duration // since the start
	Estimate time.Duration // of the whole boot
	RetryIn  time.Duration // the rest of the estimate, or a few seconds if the boot takes longer
}

// Error implements error.
func (*BootingError) Error() string { return "the model is starting" }

// BootFailedError is returned if the model could not be started.
type BootFailedError struct {
	Reason  string
	RetryIn time.Duration // until the next boot is possible
}

// Error implements error.
func (e *BootFailedError) Error() string { return "the model could not be started: " + e.Reason }

// lifecycle is the state of a backend and the data that its transitions need. Backend.mu guards it; only
// Backend.transition changes the state.
type lifecycle struct {
	state  State
	reason string // why the backend is not ready

	probeFailed bool // a probe has failed since the backend was last ready: it may have been restarted

	since   time.Time // of the last transition
	changes int64     // number of transitions so far

	boot *boot // the last launch or wake; nil before the first

	drainedFrom  State // the state before draining
	drainToSleep bool  // draining ends in sleep instead of a stop
	stopping     bool  // the stop command or the request to sleep is running, so the drain cannot be cancelled

	lastUsed          time.Time // when a request last began or ended, a start was last requested, or the backend became ready
	requested         time.Time // lastUsed without the latter; zero: never
	stoppedByOperator bool      // no warm window starts the backend until a request or an operator does, or the window ends

	claim claim // with several gateways
}

// boot is one launch or wake of a backend. Backend.mu guards its fields, except ended.
type boot struct {
	wake        bool
	awaitsLease bool                    // the command has not begun, so a backend that is ready has been so before
	cancel      context.CancelCauseFunc // cancels the command; nil before the command runs
	cause       error                   // why the boot was aborted; nil if it was not
	ended       chan struct{}           // closed when the command has ended
}

// abort cancels the boot's command, or keeps it from starting. Backend.mu is held.
func (o *boot) abort(cause error) {
	o.cause = cause
	if o.cancel != nil {
		o.cancel(cause)
	}
}

// managed reports whether the gateway can launch or wake the backend.
func (b *Backend) managed() bool { return b.cfg().Launch != nil || b.cfg().Sleep != nil }

// cfg returns the current configuration of the backend.
func (b *Backend) cfg() *config.Backend { return b.config.Load() }

// transition applies an event to the state machine. It returns false if the event has no effect. b.mu is held.
func (b *Backend) transition(e event, reason string) bool {
	next, ok := transitionTable[b.life.state][e]
	if !ok {
		return false
	}
	now := b.clock()
	from, fromSince := b.life.state, b.life.since
	b.life.state, b.life.reason, b.life.since = next, reason, now
	b.life.changes++
	if next != Ready {
		b.turns.open()
	}
	switch next {
	case Ready:
		b.life.lastUsed, b.life.stoppedByOperator = now, false
		if b.life.probeFailed || from == Starting || from == Stopped || from == Failed {
			b.breaker.Reset() // what it has counted was before a restart
		}
		b.life.probeFailed = false
		if from == Starting {
			b.recordBoot(now.Sub(fromSince))
		}
	case Failed:
		if b.leads() {
			b.bootFailures.Add(1)
		}
		b.life.boot.abort(errBootFailed)
	case Draining:
		b.life.drainedFrom = from
	case Stopped:
		b.recallReport() // the next boot may run another command
	case Starting, Asleep, Unreachable:
	}
	b.commands.add(now, strings.TrimSuffix(fmt.Sprintf("%s → %s: %s", from, next, reason), ": "))
	b.log.Info("backend changed", zap.String("from", string(from)), zap.String("to", string(next)), zap.String("reason", reason))
	b.fleet.transitions.record(from, next)
	if b.leads() {
		b.emitTransition(from, next, reason)
	}
	b.settleClaim(from, next, reason)
	return true
}

// requestStart launches or wakes the backend, once for any number of concurrent calls. It cancels a drain that has not
// stopped anything yet, unless the backend was not ready before the drain.
func (b *Backend) requestStart(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touch()
	b.life.stoppedByOperator = false
	if b.life.state == Draining && b.life.claim.remote {
		b.cancelRemoteDrain(reason)
		return
	}
	b.life.claim.wanted = b.life.stopping
	if b.life.stopping || b.cooldown() > 0 || b.life.state == Draining && b.life.drainedFrom != Ready {
		return
	}
	wake, launch := b.life.state == Asleep, b.cfg().Launch
	if !wake && launch == nil && b.life.state != Draining {
		return // the gateway cannot start it
	}
	if !b.transition(eventStartRequested, reason) || b.life.state != Starting {
		return
	}
	b.life.boot = &boot{wake: wake, awaitsLease: true, ended: make(chan struct{})}
	if wake {
		b.commands.begin(b.life.since, "wake, "+reason+": POST /wake_up")
		b.runBoot("wake", reason, func(ctx context.Context, _ int64) error { return b.post(ctx, "/wake_up", "") })
		return
	}
	b.commands.begin(b.life.since, "launch, "+reason+": "+launch.Start[0])
	b.runBoot("launch", reason, func(ctx context.Context, fence int64) error {
		return b.execute(ctx, launch.Start, fence, func() bool { return b.is(Ready) }, func() bool { return b.is(Starting) })
	})
}

// runBoot runs the command or request that boots the backend, once the gateway has the lease. Only a probe makes the backend
// ready. A command that does not return may be the model itself, so it is cancelled only if the boot fails or is stopped.
// b.mu is held.
func (b *Backend) runBoot(what, reason string, do func(ctx context.Context, fence int64) error) {
	own := b.life.boot
	b.fleet.tasks.run(func(ctx context.Context) {
		defer close(own.ended)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		b.mu.Lock()
		own.cancel = cancel
		if own.cause != nil {
			cancel(own.cause)
		}
		b.mu.Unlock()
		fence, leading := b.claimBoot(ctx, own, reason)
		if !leading {
			return
		}
		b.mu.Lock()
		own.awaitsLease = false
		b.mu.Unlock()
		b.probeSoon() // while the backend starts, the next probes follow at short intervals
		err := do(ctx, fence)
		switch {
		case err == nil:
		case errors.Is(context.Cause(ctx), context.Canceled):
			b.abandonBoot(ctx, fence)
		default:
			b.failBoot(own, fmt.Sprintf("%s: %v", what, err))
		}
		b.probeSoon()
	})
}

// failBoot marks the backend as failed if the given boot is still in progress. A command that was the model itself also
// returns an error when it is stopped later.
func (b *Backend) failBoot(own *boot, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.boot == own && b.life.state == Starting {
		b.transition(eventFailed, reason)
	}
}

func (b *Backend) bootTimeout() time.Duration {
	if launch := b.cfg().Launch; launch != nil {
		return launch.BootTimeout
	}
	return wakeTimeout
}

// drainIdle drains a backend that has been idle for some time. It has no effect on a starting backend: a start was requested
// after the check for idleness.
func (b *Backend) drainIdle(toSleep bool, reason string, idle time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.state != Starting {
		b.requestDrain(toSleep, reason, idle)
	}
}

// requestSleep executes an operator's command to sleep: it drains a ready backend and puts it to sleep. It returns false if
// sleep is not configured.
func (b *Backend) requestSleep(reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg().Sleep == nil {
		return false
	}
	if b.life.state == Ready {
		b.life.stoppedByOperator = true
		b.requestDrain(true, reason, 0)
	}
	return true
}

// requestStop executes an operator's stop: it drains the backend, and then stops it or, without a stop command, puts it
// to sleep. It aborts a boot, except a wake that ends in sleep again. It returns false if the gateway can do neither.
func (b *Backend) requestStop(reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hasStopCommand() && b.cfg().Sleep == nil {
		return false
	}
	b.life.stoppedByOperator = true
	b.requestDrain(!b.hasStopCommand(), reason, 0)
	return true
}

func (b *Backend) hasStopCommand() bool {
	launch := b.cfg().Launch
	return launch != nil && len(launch.Stop) > 0
}

// drain begins a drain, which ends at once if no request is in flight. With toSleep the backend is then put to sleep,
// if sleep is configured, and otherwise stopped. drain has no effect if the backend does not run or the gateway can do
// neither. b.mu is held.
func (b *Backend) drain(toSleep bool, reason string) {
	toSleep = b.canSleep(toSleep)
	if !toSleep && !b.hasStopCommand() || !b.transition(eventDrainRequested, reason) {
		return
	}
	b.life.drainToSleep = toSleep
	if b.life.drainedFrom == Starting && (!toSleep || !b.life.boot.wake) { // vLLM finishes a wake even if its request is cancelled
		b.life.boot.abort(errBootStopped)
	}
	b.stopIfDrained()
}

func (b *Backend) canSleep(toSleep bool) bool { return toSleep && b.cfg().Sleep != nil }

// stopIfDrained stops a draining backend, or puts it to sleep, if no request is in flight. b.mu is held.
func (b *Backend) stopIfDrained() {
	if b.life.state != Draining || b.life.stopping || b.inFlight > 0 || !b.leads() {
		return
	}
	b.life.stopping = true
	toSleep, unfinished := b.life.drainToSleep, b.life.boot
	if b.life.drainedFrom != Starting && b.life.drainedFrom != Failed {
		unfinished = nil // a launch command that is still running is the model itself
	}
	b.fleet.tasks.run(func(ctx context.Context) {
		b.waitForBoot(ctx, unfinished)
		fence, committed := b.commitStop(ctx)
		if !committed {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, b.bootTimeout())
		defer cancel()
		e, err := b.runStop(ctx, toSleep, fence)
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.stillLeads(fence) {
			return
		}
		b.life.stopping = false
		b.life.lastUsed = b.clock()
		if err != nil {
			b.transition(eventFailed, fmt.Sprintf("stop: %v", err))
			return
		}
		b.transition(e, b.life.reason)
	})
}

// waitForBoot waits until the command of a boot has ended, since it could start what is then stopped or put to sleep.
// If it does not end within the boot timeout, waitForBoot aborts it. boot may be nil.
func (b *Backend) waitForBoot(ctx context.Context, boot *boot) {
	if boot == nil {
		return
	}
	timer := time.NewTimer(b.bootTimeout()) // for a wake, which drain does not abort
	defer timer.Stop()
	select {
	case <-boot.ended:
		return
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	b.mu.Lock()
	boot.abort(errBootStopped)
	b.mu.Unlock()
	select {
	case <-boot.ended:
	case <-ctx.Done():
	}
}

// runStop stops the backend or puts it to sleep, and returns the event for success.
func (b *Backend) runStop(ctx context.Context, toSleep bool, fence int64) (event, error) {
	if toSleep {
		return eventSlept, b.post(ctx, "/sleep", fmt.Sprintf("level=%d", b.cfg().Sleep.Level))
	}
	return eventStopped, b.execute(ctx, b.cfg().Launch.Stop, fence, func() bool { return false }, func() bool { return true })
}

// reconcile fails a boot that takes too long, and drains an idle backend unless keepWarm is set.
func (b *Backend) reconcile(keepWarm bool) {
	b.mu.Lock()
	b.repeatStop(b.clock())
	now, l := b.clock(), b.life
	idle := now.Sub(l.lastUsed)
	busy := b.inFlight > 0 || now.Before(l.claim.inUseUntil)
	b.mu.Unlock()
	launch, sleep := b.cfg().Launch, b.cfg().Sleep
	limit := b.bootTimeout()
	if l.claim.remote {
		limit += remoteBootGrace
	}
	switch {
	case l.state == Starting && now.Sub(l.since) > limit:
		reason := fmt.Sprintf("it did not answer within %v", b.bootTimeout())
		if difference := b.Mismatch(); difference != "" {
			reason = difference
		}
		b.failBoot(l.boot, reason)
	case keepWarm || busy:
	case (l.state == Ready || l.state == Asleep) && launch != nil && launch.IdleAfter > 0 && idle >= launch.IdleAfter:
		b.drainIdle(false, fmt.Sprintf("idle for %v", launch.IdleAfter), launch.IdleAfter)
	case l.state == Ready && sleep != nil && sleep.IdleAfter > 0 && idle >= sleep.IdleAfter:
		b.drainIdle(true, fmt.Sprintf("idle for %v", sleep.IdleAfter), sleep.IdleAfter)
	}
}

// acquire counts a new in-flight attempt, and returns false if the backend takes none: if it starts, sleeps or drains,
// if it is in cooldown, or if it is not ready and the gateway can launch it. No drain can begin between the check and
// the count.
func (b *Backend) acquire() (Run, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var run Run
	switch b.life.state {
	case Ready:
		run = Run{b, b.life.changes}
	case Starting, Asleep, Draining:
		return run, false
	case Stopped, Unreachable, Failed:
		if b.cfg().Launch != nil || b.cooldown() > 0 {
			return run, false
		}
	}
	b.inFlight++
	if b.inFlight >= b.readFrom { // a burst would fill the engine's queue before the next probe
		b.readFrom = 2 * b.inFlight
		b.readQueueSoon()
	}
	b.touch()
	return run, true
}

func (b *Backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inFlight--; b.inFlight < busyFrom {
		b.readFrom = burstFrom
	}
	b.touch()
	b.stopIfDrained()
}

// touch begins the idle time again. b.mu is held.
func (b *Backend) touch() {
	now := b.clock()
	b.life.lastUsed, b.life.requested = now, now
}

// bootEstimate returns the expected duration of a boot: the median of the measured ones, or the configured estimate.
func (b *Backend) bootEstimate() time.Duration {
	if measured := b.bootTimes.median(); measured > 0 {
		return measured
	}
	if launch := b.cfg().Launch; launch != nil {
		return launch.BootEstimate
	}
	return 0
}

// bootingError returns the progress of the boot.
func (b *Backend) bootingError() *BootingError {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &BootingError{Estimate: b.bootEstimate()}
	if b.life.state == Starting {
		e.Elapsed = b.clock().Sub(b.life.since)
	}
	if e.RetryIn = e.Estimate - e.Elapsed; e.RetryIn <= 0 {
		e.RetryIn = overdueRetry
	}
	return e
}

// cooldownError returns the failure of a backend in cooldown; nil if it is not in cooldown.
func (b *Backend) cooldownError() *BootFailedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.cooldown()
	if left == 0 {
		return nil
	}
	return &BootFailedError{Reason: b.life.reason, RetryIn: left}
}

// cooldown returns how much longer a failed backend is not booted again; 0 if it can be. b.mu is held.
func (b *Backend) cooldown() time.Duration {
	if b.life.state != Failed {
		return 0
	}
	return max(failureCooldown-b.clock().Sub(b.life.since), 0)
}
