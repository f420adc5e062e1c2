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
	RetryIn time.Duration // until the next boot is possible; 0: it is
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
	wanted       bool  // a start was requested during a drain that this gateway cannot cancel

	// With several gateways:
	drainIdle     time.Duration // the drain is cancelled if another gateway has used the backend since; 0: an operator's
	drained       bool          // no other gateway has requests in flight, or sends any before the drain ends
	stopBegan     time.Time     // when the stop command or the request to sleep was about to be run; zero: it was not
	stopDue       time.Time     // when a stop that was taken over is repeated; zero: no such
	usedElsewhere time.Time     // as requested, at other gateways
	published     entry         // what the leader has published last; without a state if this gateway leads and has yet to publish it
	heldElsewhere int           // requests that wait at other gateways because the backend's engine is full

	lastUsed          time.Time // when a request last began or ended, a start was last requested, or the backend became ready
	requested         time.Time // lastUsed without the latter; zero: never
	stoppedByOperator bool      // no warm window starts the backend until a request or an operator does, or the window ends
	role              role      // of a replica
	neededAt          time.Time // when a replica became ready, or the ones before it could last not have run its requests too
}

// boot is one launch or wake of a backend. Backend.mu guards its fields, except ended.
type boot struct {
	wake        bool
	pending     bool                    // the command has not begun anywhere, so a backend that is ready has been so before
	requestedAt int64                   // version of what the leader had published then
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
	b.life.drained, b.life.wanted, b.life.stopping, b.life.stopBegan, b.life.stopDue = false, false, false, time.Time{}, time.Time{}
	b.life.drainIdle = 0
	if next != Ready {
		b.turns.open()
	}
	switch next {
	case Ready:
		b.life.lastUsed, b.life.neededAt, b.life.stoppedByOperator = now, now, false
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
		b.engineRan.Store(0)
	case Starting, Asleep, Unreachable:
	}
	b.commands.add(now, strings.TrimSuffix(fmt.Sprintf("%s → %s: %s", from, next, reason), ": "))
	b.log.Info("backend changed", zap.String("from", string(from)), zap.String("to", string(next)), zap.String("reason", reason))
	b.fleet.transitions.record(from, next)
	if b.leads() {
		b.emitTransition(from, next, reason)
	}
	return true
}

// requestStart launches or wakes the backend, once for any number of concurrent calls. It cancels a drain, or if that is final,
// the start follows it. A gateway that does not lead asks the leader to.
func (b *Backend) requestStart(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start(reason)
}

// start is requestStart with b.mu held.
func (b *Backend) start(reason string) {
	b.touch()
	b.life.stoppedByOperator = false
	if b.life.state == Draining && (!b.leads() || b.drainIsFinal()) {
		if !b.life.wanted {
			b.life.wanted = true
			b.fleet.syncSoon()
		}
		return
	}
	if b.cooldown() > 0 {
		return
	}
	wake, launch := b.life.state == Asleep, b.cfg().Launch
	if !wake && launch == nil && b.life.state != Draining {
		return // the gateway cannot start it
	}
	if !b.transition(eventStartRequested, reason) || b.life.state != Starting {
		return
	}
	b.life.boot = &boot{wake: wake, pending: true, requestedAt: b.life.published.Version, ended: make(chan struct{})}
	if wake {
		b.commands.begin(b.life.since, "wake, "+reason+": POST /wake_up")
		b.runBoot(wakeFailed, func(ctx context.Context, _ int64) error { return b.post(ctx, "/wake_up", "") })
		return
	}
	b.commands.begin(b.life.since, "launch, "+reason+": "+launch.Start[0])
	b.runBoot(launchFailed, func(ctx context.Context, fence int64) error {
		last, err := b.execute(ctx, launch.Start, fence, func() bool { return b.is(Ready) }, func() bool { return b.is(Starting) })
		if err != nil {
			return err
		}
		launched, err := parseLaunched(last)
		if err != nil {
			return err
		}
		if b.moveTo(launched); b.unplaced() {
			return errNoAddress
		}
		return nil
	})
}

// drainIsFinal reports whether the backend drains and no start cancels that: it is being stopped, or was not ready before. b.mu is
// held.
func (b *Backend) drainIsFinal() bool {
	return b.life.state == Draining && (b.life.stopping || b.life.drainedFrom != Ready)
}

// runBoot runs the command or request that boots the backend, once the gateway leads. Only a probe makes the backend ready. A
// command that does not return may be the model itself, so it is cancelled only if the boot fails or is stopped. failed begins the
// reason of its failure. b.mu is held.
func (b *Backend) runBoot(failed string, do func(ctx context.Context, fence int64) error) {
	own := b.life.boot
	b.fleet.tasks.Run(func(ctx context.Context) {
		defer close(own.ended)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		b.mu.Lock()
		own.cancel = cancel
		if own.cause != nil {
			cancel(own.cause)
		}
		b.mu.Unlock()
		pending := func() bool { return b.boots(own) && own.pending }
		if b.shared() {
			b.probeSoon() // another gateway may have started it since the last probe
		}
		fence, leading := b.announce(ctx, pending)
		if leading && !own.wake && b.shared() {
			b.probe(ctx) // or while this one waited for the lead
			fence, leading = b.announce(ctx, pending)
		}
		if !leading {
			b.abandonBoot(ctx, own, true)
			return
		}
		b.mu.Lock()
		own.pending = false
		b.mu.Unlock()
		b.probeSoon() // while the backend starts, the next probes follow at short intervals
		err := do(ctx, fence)
		if err != nil && !b.abandonBoot(ctx, own, false) {
			b.failBoot(own, failed+err.Error())
		}
		b.probeSoon()
	})
}

// boots reports whether a boot is in progress and not aborted. b.mu is held.
func (b *Backend) boots(own *boot) bool {
	return b.life.boot == own && b.life.state == Starting && own.cause == nil
}

// abandonBoot reports whether the command of a boot was ended, or is still pending, because the fleet is closed, and lets another
// gateway begin it again at once.
func (b *Backend) abandonBoot(ctx context.Context, own *boot, pending bool) (closed bool) {
	closed = errors.Is(context.Cause(ctx), context.Canceled)
	b.mu.Lock()
	defer b.mu.Unlock()
	if closed && b.shared() && b.leads() && b.boots(own) && own.pending == pending {
		b.transition(eventAbandoned, "the gateway that booted it has stopped")
	}
	return closed
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
// after the check for idleness. No use at another gateway cancels the drain of a spare replica.
func (b *Backend) drainIdle(toSleep bool, reason string, idle time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.role == roleSpare {
		idle = 0
	}
	if b.life.state != Starting {
		b.drain(toSleep, reason, idle)
	}
}

// requestSleep executes an operator's command to sleep: it drains a ready backend that can sleep and puts it to sleep.
func (b *Backend) requestSleep(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg().Sleep != nil && b.life.state == Ready {
		b.life.stoppedByOperator = true
		b.drain(true, reason, 0)
	}
}

// requestStop executes an operator's stop: it drains the backend, and then stops it or, without a stop command, puts it
// to sleep. It aborts a boot, except a wake that ends in sleep again, and revokes a start that was to follow an earlier stop. It has no
// effect if the gateway can do neither.
func (b *Backend) requestStop(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hasStopCommand() || b.cfg().Sleep != nil {
		b.life.stoppedByOperator, b.life.wanted = true, false
		b.drain(!b.hasStopCommand(), reason, 0)
	}
}

func (b *Backend) hasStopCommand() bool {
	launch := b.cfg().Launch
	return launch != nil && len(launch.Stop) > 0
}

// drain begins a drain to sleep, if that is wanted and configured, or else to a stop. It has no effect if the backend does not run or
// the gateway can do neither. idle is how long no gateway may have used it; 0 for an operator's order. b.mu is held.
func (b *Backend) drain(toSleep bool, reason string, idle time.Duration) {
	b.life.drainIdle = min(b.life.drainIdle, idle) // a drain that an operator orders too is not cancelled by uses
	toSleep = toSleep && b.cfg().Sleep != nil
	if !toSleep && !b.hasStopCommand() || !b.transition(eventDrainRequested, reason) {
		return
	}
	b.life.drainToSleep, b.life.drainIdle = toSleep, idle
	b.fleet.syncSoon()
	if b.life.drainedFrom == Starting && (!toSleep || !b.life.boot.wake) { // vLLM finishes a wake even if its request is cancelled
		b.life.boot.abort(errBootStopped)
	}
	b.stopIfDrained()
}

// stopIfDrained stops a draining backend, or puts it to sleep, if no request is in flight. b.mu is held.
func (b *Backend) stopIfDrained() {
	if b.life.state != Draining || b.life.stopping || b.inFlight > 0 {
		return
	}
	if b.shared() && (!b.leads() || !b.life.drained || b.clock().Before(b.life.stopDue)) {
		return
	}
	b.life.stopping = true
	toSleep, unfinished, changes := b.life.drainToSleep, b.life.boot, b.life.changes
	if b.life.drainedFrom != Starting && b.life.drainedFrom != Failed {
		unfinished = nil // a launch command that is still running is the model itself
	}
	b.fleet.tasks.Run(func(ctx context.Context) {
		b.waitForBoot(ctx, unfinished)
		b.mu.Lock()
		b.life.stopBegan = b.clock()
		b.mu.Unlock()
		fence, leading := b.announce(ctx, func() bool { return b.life.changes == changes && b.leads() })
		if !leading {
			b.endStop(changes)
			return
		}
		ctx, cancel := context.WithTimeout(ctx, b.bootTimeout())
		defer cancel()
		e, err := b.runStop(ctx, toSleep, fence)
		if err != nil && errors.Is(context.Cause(ctx), context.Canceled) { // by Close: another gateway stops the backend again
			b.endStop(changes)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.life.changes != changes { // another gateway leads, and has gone on
			return
		}
		b.life.lastUsed = b.clock()
		reason, wanted := b.life.reason, b.life.wanted
		if err != nil {
			e, reason = eventFailed, fmt.Sprintf("stop: %v", err)
		}
		if b.transition(e, reason); wanted {
			b.start("requested during the stop")
		}
	})
}

// endStop records that the command that stops the backend does not run, or not any more.
func (b *Backend) endStop(changes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.changes == changes {
		b.life.stopping, b.life.stopBegan = false, time.Time{}
	}
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
	_, err := b.execute(ctx, b.cfg().Launch.Stop, fence, func() bool { return false }, func() bool { return true })
	if err == nil && b.address.Load().launched != "" { // another server may soon be there, which must not get the key
		info := *b.info.Load()
		b.moveTo("")
		b.recordReport(&info)
	}
	return eventStopped, err
}

// reconcile fails a boot that takes too long, and drains an idle backend unless keepWarm is set.
func (b *Backend) reconcile(keepWarm bool) {
	b.mu.Lock()
	now, l := b.clock(), b.life
	idle := min(now.Sub(l.lastUsed), now.Sub(l.usedElsewhere), now.Sub(l.neededAt))
	busy, idleReason := b.inFlight > 0, "idle for %v"
	b.mu.Unlock()
	keepWarm = keepWarm || l.role == roleKept
	if l.role == roleSpare {
		keepWarm, busy, idle, idleReason = false, false, now.Sub(l.neededAt), "not needed for %v"
	}
	launch, sleep := b.cfg().Launch, b.cfg().Sleep
	limit := b.bootTimeout()
	if !b.leads() {
		limit += remoteBootGrace
	}
	idleFor := func(limit time.Duration) bool {
		if limit > 0 && b.shared() {
			return idle >= limit+useLag(limit)
		}
		return limit > 0 && idle >= limit
	}
	switch {
	case l.state == Starting && now.Sub(l.since) > limit:
		reason := fmt.Sprintf(bootTooLong+"%v", b.bootTimeout())
		if difference := b.Mismatch(); difference != "" {
			reason = difference
		}
		b.failBoot(l.boot, reason)
	case keepWarm || busy || !b.leads():
	case (l.state == Ready || l.state == Asleep) && launch != nil && idleFor(launch.IdleAfter):
		b.drainIdle(false, fmt.Sprintf(idleReason, launch.IdleAfter), launch.IdleAfter)
	case l.state == Ready && sleep != nil && idleFor(sleep.IdleAfter):
		b.drainIdle(true, fmt.Sprintf(idleReason, sleep.IdleAfter), sleep.IdleAfter)
	}
}

// acquire counts a new in-flight attempt, and returns false if the backend takes none. No drain can begin between the check and the
// count.
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

// BootFailure returns why the backend could not be started; nil if its last boot has not failed.
func (b *Backend) BootFailure() *BootFailedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.state != Failed {
		return nil
	}
	return &BootFailedError{Reason: b.life.reason, RetryIn: b.cooldown()}
}

// cooldownError returns the failure of a backend in cooldown; nil if it is not in cooldown.
func (b *Backend) cooldownError() *BootFailedError {
	if failed := b.BootFailure(); failed != nil && failed.RetryIn > 0 {
		return failed
	}
	return nil
}

// cooldown returns how much longer a failed backend is not booted again; 0 if it can be. b.mu is held.
func (b *Backend) cooldown() time.Duration {
	if b.life.state != Failed {
		return 0
	}
	return max(failureCooldown-b.clock().Sub(b.life.since), 0)
}
