package fleet

import (
	"context"
	"maps"
	"time"

	"go.uber.org/zap"
)

const (
	// leaseInterval is the interval at which leases are read while a gateway holds one.
	leaseInterval = 100 * time.Millisecond
	// useInterval is the interval at which a gateway tells the others when it last used its backends.
	useInterval = 2 * time.Second
)

// useLag is how much later than a gateway's last request the others know of it, for a decision on an idle time.
func useLag(idle time.Duration) time.Duration { return min(2*useInterval, idle) }

// cluster is what the reconciler knows of the other gateways. Only its goroutine uses it, and Start before.
type cluster struct {
	known      bool // the leases have been read
	busy       bool // a lease was held at the last look
	gateway    int32
	epoch      int64
	reported   map[backendID]use // what the gateway has last reported
	reportedAt time.Time
}

// JoinCluster makes the fleet share its backends with the fleets of other gateways on one PostgreSQL database. epoch returns
// the gateway's number and its epoch on the ledger, and false while it has none. It must be called before Start.
func (f *Fleet) JoinCluster(epoch func() (gateway int32, epoch int64, ok bool)) {
	f.leases = &leases{f.db, epoch}
}

// followLeases reads the leases while any is held, until the next tick. It returns false if ctx has ended.
func (f *Fleet) followLeases(ctx context.Context, tick <-chan time.Time) bool {
	for {
		interval := reconcileInterval
		if f.cluster.busy {
			interval = leaseInterval
		}
		soon := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			soon.Stop()
			return false
		case <-tick:
			soon.Stop()
			return true
		case <-soon.C:
			if f.cluster.busy {
				f.pollLeases(ctx)
			}
		}
	}
}

// pollLeases makes the backends follow what other gateways do with them, and tells those what this gateway does.
func (f *Fleet) pollLeases(ctx context.Context) {
	rows, err := f.leases.read(ctx)
	if err != nil {
		f.log.Debug("read leases", zap.Error(err))
		return
	}
	f.cluster.known, f.cluster.busy = true, false
	byID := map[backendID]*lease{}
	for i := range rows {
		byID[rows[i].id] = &rows[i]
		f.cluster.busy = f.cluster.busy || rows[i].operation != opNone
	}
	uses, urgent := map[backendID]use{}, false
	if gateway, epoch, _ := f.leases.epoch(); f.cluster.reported == nil || gateway != f.cluster.gateway || epoch != f.cluster.epoch {
		f.cluster.gateway, f.cluster.epoch, f.cluster.reported = gateway, epoch, map[backendID]use{}
	}
	for _, b := range f.catalogue.Load().backends() {
		next, drains := b.followRow(byID[b.id()])
		delete(byID, b.id())
		if next != f.cluster.reported[b.id()] {
			uses[b.id()] = next
			urgent = urgent || drains
		}
	}
	for id, row := range byID { // backends that this gateway does not have in its configuration
		if next := (use{seen: row.fence}); next != f.cluster.reported[id] {
			uses[id] = next
			urgent = urgent || row.operation == opStop || row.operation == opSleep
		}
	}
	if len(uses) == 0 || !urgent && time.Since(f.cluster.reportedAt) < useInterval {
		return
	}
	if err := f.leases.reportUses(ctx, uses); err != nil {
		f.log.Debug("report uses of backends", zap.Error(err))
		return
	}
	f.cluster.reportedAt = time.Now()
	maps.Copy(f.cluster.reported, uses)
}

// followRow follows the lease of the backend, which may be nil, and returns what the other gateways should know, and whether
// one of them waits for it.
func (b *Backend) followRow(row *lease) (now use, drains bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if row != nil {
		b.follow(row)
	}
	l := &b.life
	return use{l.requested, b.inFlight > 0, l.claim.seen}, l.state == Draining && l.claim.remote
}

// follow applies the row of the backend's lease to its state. b.mu is held.
func (b *Backend) follow(r *lease) {
	c := &b.life.claim
	if r.fence < c.seen {
		return // it was read before what is known
	}
	if r.fence > c.seen { // the row of an own operation may still have a hold that this gateway has ended meanwhile
		ended := r.mine && c.seen != 0 && !b.life.stoppedByOperator
		// here, and no row says so yet: the backend drains, or the drain waits for its lease
		ordered := b.life.stoppedByOperator && !c.remote && (b.life.state == Draining || c.pending > 0)
		b.life.stoppedByOperator = ordered || r.held && !ended
	}
	c.seen, c.held = r.fence, r.held
	switch {
	case r.operation == opNone:
		b.followEnd(r)
	case r.mine && (r.fence == c.fence || r.fence == c.ended || c.pending > 0):
	case r.mine:
		b.endLease(r.fence, outcomeAbandoned, "") // the reply that granted it was lost, and nothing needs it now
	default:
		b.followOperation(r)
		if !r.alive {
			b.takeOver(r)
		}
	}
}

// followOperation applies another gateway's operation. b.mu is held.
func (b *Backend) followOperation(r *lease) {
	c := &b.life.claim
	reason := r.reason
	if r.holder != "" {
		reason += " (by gateway " + r.holder + ")"
	}
	if r.operation.boots() {
		b.followBoot(r, reason)
		return
	}
	c.fence = 0
	if b.life.state == Stopped || b.life.state != Draining && !b.drainFor(reason) {
		return
	}
	c.remote = true
	b.life.drainToSleep, b.life.stopping = r.operation == opSleep, r.committed
}

func (b *Backend) drainFor(reason string) bool {
	b.life.claim.remote = true
	return b.transition(eventDrainRequested, reason)
}

// followBoot applies another gateway's boot. b.mu is held.
func (b *Backend) followBoot(r *lease, reason string) {
	c := &b.life.claim
	c.fence = 0
	switch b.life.state {
	case Ready: // sooner than the other gateway has noticed
		return
	case Starting:
		c.remote, b.life.boot.awaitsLease = true, false // it is another gateway's
		return
	case Draining:
		b.life.stopping = false
		b.transition(eventFailed, reason)
	case Stopped, Asleep, Unreachable, Failed:
	}
	ended := make(chan struct{})
	close(ended)
	b.life.boot = &boot{wake: r.operation == opWake, ended: ended}
	c.remote = true
	b.transition(eventStartRequested, reason)
	b.life.since = b.life.since.Add(-r.elapsed)
	b.probeSoon()
}

// followEnd applies the end of an operation. b.mu is held.
func (b *Backend) followEnd(r *lease) {
	c := &b.life.claim
	if c.fence != 0 { // another gateway has cancelled the drain
		b.lose()
	}
	if !c.remote {
		return
	}
	switch {
	case b.life.state == Starting && r.outcome == outcomeFailed:
		b.transition(eventFailed, r.reason)
		b.life.since = b.life.since.Add(-r.endedAgo)
	case b.life.state == Starting && r.outcome != outcomeReady:
		b.transition(eventAbandoned, r.reason)
		b.probeSoon()
	case b.life.state != Draining: // a ready backend is found by a probe
	case r.outcome == outcomeStopped:
		b.transition(eventStopped, r.reason)
	case r.outcome == outcomeSlept:
		b.transition(eventSlept, r.reason)
	case r.outcome == outcomeCancelled:
		b.undrain(r.reason)
	default:
		b.transition(eventFailed, r.reason)
		b.probeSoon()
	}
	if b.life.state != Draining {
		b.life.stopping = false
	}
}

// takeOver takes over what a gateway whose epoch has ended has begun: it waits for a boot, whose program may still run, up to
// its limit; continues a drain; and repeats a stop after its limit, since its program may still run too. b.mu is held.
func (b *Backend) takeOver(r *lease) {
	c := &b.life.claim
	sleeps := r.operation == opSleep || r.operation == opWake
	if c.pending > 0 || sleeps && b.cfg().Sleep == nil || r.operation == opStop && !b.hasStopCommand() {
		return
	}
	c.pending++
	fence := r.fence
	b.fleet.tasks.run(func(ctx context.Context) {
		defer b.addPending(-1)
		got, err := b.fleet.leases.takeOver(ctx, b.id(), fence)
		if err != nil || got == nil {
			return // the next poll tries again
		}
		b.log.Warn("the gateway that held the lease has ended; this one takes over",
			zap.String("operation", string(got.operation)), zap.Duration("begun_ago", got.elapsed))
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gain(got)
		b.continueOperation(got)
	})
}

// continueOperation continues what was taken over. b.mu is held.
func (b *Backend) continueOperation(r *lease) {
	switch {
	case r.operation.boots() && b.life.state == Starting:
		if own := b.life.boot; r.operation == opWake { // to wake it again does no harm
			b.fleet.tasks.run(func(ctx context.Context) {
				if err := b.post(ctx, "/wake_up", ""); err != nil && ctx.Err() == nil {
					b.failBoot(own, "wake: "+err.Error())
				}
			})
		}
		b.probeSoon()
	case !r.operation.boots() && b.life.state == Draining:
		b.life.stopping = r.committed
		if r.committed && r.operation == opStop {
			b.life.claim.stopDue = b.clock().Add(r.remaining)
			return
		}
		b.life.stopping = false
		b.stopIfDrained()
	default:
		ended := outcomeAbandoned
		if r.operation.boots() && b.life.state == Ready {
			ended = outcomeReady
		}
		b.endLease(r.fence, ended, "")
		b.life.claim.fence = 0
	}
}

// repeatStop repeats a stop that was taken over, after the limit of the first. b.mu is held.
func (b *Backend) repeatStop(now time.Time) {
	due := b.life.claim.stopDue
	if due.IsZero() || now.Before(due) || b.life.state != Draining {
		return
	}
	b.life.claim.stopDue = time.Time{}
	b.life.stopping = false
	b.stopIfDrained()
}

// clearStop records that no warm window is in effect, so that an operator's stop holds the backend in none that follows.
// b.mu is held.
func (b *Backend) clearStop() {
	c := &b.life.claim
	if b.fleet.leases == nil || !c.held {
		return
	}
	c.held = false
	fence := c.seen
	b.fleet.tasks.run(func(ctx context.Context) {
		if err := b.fleet.leases.clearStop(ctx, b.id(), fence); err != nil {
			b.log.Debug("end the hold", zap.Error(err))
		}
	})
}
