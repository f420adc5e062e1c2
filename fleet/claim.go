package fleet

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"basegate/internal/wait"
)

const (
	// leaseFresh is how long after the database has confirmed a lease a program may be run without asking again: less
	// than the 12 s after which another gateway may declare this one dead.
	leaseFresh = 5 * time.Second
	// leaseRetry is the pause before a request for a lease is repeated after a failure of the database.
	leaseRetry = 250 * time.Millisecond
	// drainPoll is the interval at which a drain looks whether the other gateways have drained.
	drainPoll = 50 * time.Millisecond
	// remoteBootGrace is how much later than the gateway that boots a backend the others find that the boot takes too
	// long.
	remoteBootGrace = 30 * time.Second
	// inUsePause is how long a backend is not drained after another gateway has turned out to use it.
	inUsePause = 2 * useInterval
	// endTimeout limits the end of a lease when the fleet is closed.
	endTimeout = 2 * time.Second
)

// claim is what a gateway has to do with the lease of a backend. It is part of the lifecycle; Backend.mu guards it.
// Without other gateways it stays zero.
type claim struct {
	fence      int64     // of the lease that this gateway holds; 0 if it holds none
	remote     bool      // the boot or drain in progress is another gateway's
	pending    int       // requests for the lease that are in progress
	seen       int64     // fence of the row that the backend acts on
	ended      int64     // fence of the lease that this gateway has given back last
	wanted     bool      // a start was requested while the backend was about to be stopped
	held       bool      // the row says that an operator has stopped the backend
	stopDue    time.Time // when a stop that was taken over is repeated; zero: no such
	inUseUntil time.Time // no idle drain begins before
}

func (b *Backend) id() backendID { return backendID{b.modelID, b.Name} }

// leads reports whether the boot or drain in progress is this gateway's. b.mu is held.
func (b *Backend) leads() bool { return b.fleet.leases == nil || b.life.claim.fence != 0 }

// stillLeads reports whether the gateway holds the lease with a fence. b.mu is held.
func (b *Backend) stillLeads(fence int64) bool {
	return b.fleet.leases == nil || b.life.claim.fence == fence
}

// gain records that the gateway holds the lease. b.mu is held.
func (b *Backend) gain(r *lease) {
	c := &b.life.claim
	c.fence, c.seen, c.held, c.remote = r.fence, r.fence, r.held, false
}

// lose records that another gateway has the lease. b.mu is held.
func (b *Backend) lose() { b.life.claim.fence, b.life.claim.remote = 0, true }

// settleClaim ends the lease after the transition that ends its operation. b.mu is held.
func (b *Backend) settleClaim(from, to State, reason string) {
	if b.fleet.leases == nil || to == Starting || to == Draining {
		return
	}
	c := &b.life.claim
	if c.fence != 0 {
		b.endLease(c.fence, outcomeOf(from, to), reason)
	}
	c.fence, c.remote, c.wanted, c.stopDue = 0, false, false, time.Time{}
}

// outcomeOf returns the outcome of an operation that ended with a transition.
func outcomeOf(from, to State) outcome {
	switch {
	case from == Draining && to == Ready:
		return outcomeCancelled
	case to == Ready:
		return outcomeReady
	case to == Stopped:
		return outcomeStopped
	case to == Asleep:
		return outcomeSlept
	case from == Starting && to == Unreachable:
		return outcomeAbandoned
	}
	return outcomeFailed
}

// endLease gives a lease back, and repeats that while the database is away. If the gateway's epoch ends meanwhile,
// another gateway takes the lease over and finds the same. b.mu is held.
func (b *Backend) endLease(fence int64, o outcome, reason string) {
	b.life.claim.ended = fence
	b.fleet.tasks.run(func(ctx context.Context) {
		for {
			err := b.fleet.leases.end(ctx, b.id(), fence, o, reason)
			if err == nil || errors.Is(err, errNotMember) || !wait.For(ctx, leaseRetry) {
				return
			}
		}
	})
}

// claimBoot gets the lease for a boot, and its fencing number. It returns false if the boot is not this gateway's:
// another one boots the backend or stops it, or the boot was aborted.
func (b *Backend) claimBoot(ctx context.Context, own *boot, reason string) (fence int64, leading bool) {
	if b.fleet.leases == nil {
		return b.fleet.fences.next(), true
	}
	b.addPending(1)
	defer b.addPending(-1)
	// A probe may find the backend up while the request waits for the database. It must not cancel a drain that begins then.
	needed := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.boots(own)
	}
	q := claimRequest{operation: opLaunch, reason: reason, limit: b.bootTimeout(), needed: needed}
	if own.wake {
		q.operation = opWake
	}
	for ctx.Err() == nil {
		asked := time.Now()
		r, v, err := b.fleet.leases.begin(ctx, b.id(), q)
		b.mu.Lock()
		again := b.bootDecided(own, &r, v, err, reason)
		fence = b.life.claim.fence
		b.mu.Unlock()
		switch {
		case again:
			wait.For(ctx, leaseRetry)
		case fence == 0 || fence != r.fence:
			return 0, false
		default:
			return fence, (own.wake || r.before == outcomeStopped || b.findsStopped(ctx)) && b.confirm(ctx, asked, fence)
		}
	}
	return 0, false
}

// findsStopped probes a backend that is to be launched. It returns false if the backend is ready: another gateway has
// launched it since this one has probed it last.
func (b *Backend) findsStopped(ctx context.Context) bool {
	b.probe(ctx)
	return b.is(Starting)
}

// boots reports whether a boot is in progress and not aborted. b.mu is held.
func (b *Backend) boots(own *boot) bool {
	return b.life.boot == own && b.life.state == Starting && own.cause == nil
}

// bootDecided applies the answer to a request for the lease of a boot, and returns true if it must be repeated. b.mu is
// held.
func (b *Backend) bootDecided(own *boot, r *lease, v claimResult, err error, reason string) (again bool) {
	c := &b.life.claim
	current := b.boots(own)
	if err != nil || v == granted && r.fence == c.ended { // the end of the lease before is still on its way
		if err != nil {
			b.log.Warn("the lease for a boot could not be had", zap.Error(err))
		}
		return current
	}
	switch {
	case v == granted && !current:
		if r.fence > c.seen {
			b.endLease(r.fence, outcomeOf(Starting, b.life.state), b.life.reason)
		}
	case v == granted:
		b.gain(r)
		b.emit(BootBegun, reason)
	case !current:
	case v == cooling:
		b.transition(eventFailed, r.reason)
		b.life.since = b.clock().Add(-r.endedAgo)
	case v == cancelled:
		b.transition(eventAbandoned, "another gateway was about to stop it")
		b.probeSoon()
	default:
		b.life.claim.remote = true
		b.follow(r)
	}
	return false
}

// confirm returns whether the gateway may run a program: it holds the lease, by what the database has said since a time
// a few seconds ago. A process that was stopped in between asks again.
func (b *Backend) confirm(ctx context.Context, asked time.Time, fence int64) bool {
	for time.Since(asked) > leaseFresh {
		asked = time.Now()
		holds, err := b.fleet.leases.holds(ctx, b.id(), fence)
		if err == nil && !holds {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.life.claim.fence == fence {
				b.lose()
			}
			return false
		}
		if err != nil {
			asked = time.Time{}
			if !wait.For(ctx, leaseRetry) {
				return false
			}
		}
	}
	return true
}

func (b *Backend) addPending(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life.claim.pending += n
}

// abandonBoot gives the lease back after the command of a boot was ended because the fleet is closed, so that another
// gateway begins again at once.
func (b *Backend) abandonBoot(ctx context.Context, fence int64) {
	b.mu.Lock()
	abandoned := b.fleet.leases != nil && b.life.claim.fence == fence
	b.mu.Unlock()
	if !abandoned {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := b.fleet.leases.end(ctx, b.id(), fence, outcomeAbandoned, "the gateway that booted it has stopped"); err != nil {
		b.log.Warn("the lease of a boot was not given back; another gateway waits for the boot", zap.Error(err))
	}
}

// requestDrain drains the backend, once the gateway has the lease. idle is how long no gateway may have used it; 0 for an
// operator's order, which goes to the gateway that boots the backend if another one does. b.mu is held.
func (b *Backend) requestDrain(toSleep bool, reason string, idle time.Duration) {
	if b.fleet.leases == nil {
		b.drain(toSleep, reason)
		return
	}
	q := claimRequest{operation: opStop, reason: reason, limit: b.bootTimeout(), idle: idle}
	if b.canSleep(toSleep) {
		q.operation = opSleep
	}
	_, possible := transitionTable[b.life.state][eventDrainRequested]
	if !possible || q.operation == opStop && !b.hasStopCommand() || idle > 0 && b.life.claim.pending > 0 {
		return
	}
	b.life.claim.pending++
	b.fleet.tasks.run(func(ctx context.Context) {
		defer b.addPending(-1)
		for {
			r, v, err := b.fleet.leases.begin(ctx, b.id(), q)
			if b.drainDecided(toSleep, q, &r, v, err) || !wait.For(ctx, leaseRetry) {
				return
			}
		}
	})
}

// drainDecided applies the answer to a request for the lease of a drain, and returns false if it must be repeated.
func (b *Backend) drainDecided(toSleep bool, q claimRequest, r *lease, v claimResult, err error) (done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.life.claim
	switch {
	case err != nil || v == granted && r.fence == c.ended:
		return err != nil && q.idle > 0 // an idle drain is requested again anyway
	case v == inUse:
		c.inUseUntil = b.clock().Add(max(q.idle+useLag(q.idle)-r.idleFor, inUsePause))
	case v == following:
		b.follow(r)
	case q.idle > 0 && (b.inFlight > 0 || b.life.state == Starting || b.clock().Sub(b.life.lastUsed) < q.idle):
		b.endLease(r.fence, outcomeCancelled, "it is in use again")
	default:
		b.gain(r)
		b.drain(toSleep, q.reason)
		if b.life.state != Draining && c.fence == r.fence {
			b.endLease(r.fence, outcomeCancelled, "")
			c.fence = 0
		}
	}
	return true
}

// commitStop returns the fencing number of a stop once no gateway can cancel it any more. It returns false if the drain
// was cancelled or the lease is lost.
func (b *Backend) commitStop(ctx context.Context) (fence int64, committed bool) {
	if b.fleet.leases == nil {
		return b.fleet.fences.next(), true
	}
	b.mu.Lock()
	fence = b.life.claim.fence
	b.mu.Unlock()
	for {
		asked := time.Now()
		v, err := b.fleet.leases.commitStop(ctx, b.id(), fence, b.bootTimeout())
		if err == nil && v == granted {
			if !b.confirm(ctx, asked, fence) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.life.stopping = false
				return 0, false
			}
			return fence, true
		}
		if b.drainEnds(fence, v, err) || !wait.For(ctx, drainPoll) {
			return 0, false
		}
	}
}

// drainEnds applies an answer to commitStop that does not let the backend be stopped, and returns true if it ends the
// drain.
func (b *Backend) drainEnds(fence int64, v claimResult, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.life.claim
	switch {
	case b.life.state != Draining || c.fence != fence:
		b.life.stopping = b.life.stopping && c.remote // a stop of another gateway is in that one's row
	case err == nil && v == following:
		b.life.stopping = false
		b.lose()
	case err == nil && v == inUse:
		c.inUseUntil = b.clock().Add(inUsePause)
		b.undrain("another gateway uses it")
	case c.wanted && b.life.drainedFrom == Ready:
		b.undrain("a start was requested")
	default:
		return false
	}
	return true
}

// undrain cancels a drain that has stopped nothing. b.mu is held.
func (b *Backend) undrain(reason string) {
	b.life.stopping = false
	switch b.life.drainedFrom {
	case Ready:
		b.transition(eventStartRequested, reason)
	case Asleep:
		b.transition(eventSlept, reason)
	case Starting, Stopped, Draining, Unreachable, Failed:
		b.transition(eventFailed, reason)
		b.probeSoon()
	}
}

// cancelRemoteDrain cancels the drain of another gateway, unless that is committed to it. b.mu is held.
func (b *Backend) cancelRemoteDrain(reason string) {
	if b.life.stopping || b.life.claim.pending > 0 {
		return
	}
	b.life.claim.pending++
	b.fleet.tasks.run(func(ctx context.Context) {
		defer b.addPending(-1)
		done, err := b.fleet.leases.cancelDrain(ctx, b.id(), reason)
		if err != nil || !done {
			return // the outcome of the drain is followed
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.life.state == Draining && b.life.claim.remote {
			b.undrain(reason)
		}
	})
}
