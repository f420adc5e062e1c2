package fleet

import (
	"context"
	"time"
)

// remoteBootGrace is how much later than the leader the other gateways find that a boot takes too long.
const remoteBootGrace = 30 * time.Second

// leads reports whether this gateway starts and stops the backend.
func (b *Backend) leads() bool { return b.fleet.leads() }

// shared reports whether other gateways use the backend too.
func (b *Backend) shared() bool { return b.fleet.cluster != nil }

// entry returns what the leader is to publish of the backend, but for the version and the time. b.mu is held.
func (b *Backend) entry() entry {
	l := &b.life
	e := entry{
		Changes: l.changes, State: l.state, Stopping: !l.stopBegan.IsZero(), Held: l.stoppedByOperator, URL: b.address.Load().launched,
	}
	switch l.state {
	case Starting:
		e.Reason, e.Wake = l.reason, l.boot.wake
	case Draining:
		e.Reason, e.Sleep = l.reason, l.drainToSleep
	case Failed:
		e.Reason = l.reason
	case Ready, Stopped, Asleep, Unreachable: // no other gateway needs the reason
	}
	return e
}

// nextEntry returns what the leader is to publish, at a time of the database, and whether it differs from what it has
// published.
func (b *Backend) nextEntry(version, now int64) (next entry, differs bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, published := b.entry(), b.life.published
	held := e.Held
	e.Version, e.Since, e.Held = published.Version, published.Since, published.Held
	if e == published {
		e.Held = held // which changes nothing that another gateway waits for
		return e, held != published.Held
	}
	since := b.life.since
	if e.Stopping {
		since = b.life.stopBegan
	}
	e.Version, e.Held, e.Since = version, held, now-b.clock().Sub(since).Microseconds()
	return e, true
}

func (b *Backend) setPublished(e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life.published = e
}

// announce returns the fencing number of a program once no other gateway can lead without knowing that it may have been
// run. It returns false if it is not needed any more. Until this gateway leads, it waits. needed is called with b.mu held.
func (b *Backend) announce(ctx context.Context, needed func() bool) (fence int64, ok bool) {
	f := b.fleet
	if f.cluster == nil {
		return f.versions.next(), true
	}
	f.syncSoon()
	for {
		synced, leads := f.cluster.nextSync()
		b.mu.Lock()
		e, published := b.entry(), b.life.published
		e.Version, e.Since = published.Version, published.Since
		ok := needed()
		b.mu.Unlock()
		switch {
		case !ok:
			return 0, false
		case leads && e == published:
			return e.Version, true
		}
		select {
		case <-synced:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// use returns what the other gateways should know of the backend.
func (b *Backend) use() use {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.life
	wanted := l.state == Starting && l.boot.pending || l.state == Draining && l.wanted
	return use{requested: l.requested, Busy: b.inFlight > 0, Wanted: wanted && !b.leads(), Held: b.Held()}
}

// observeOthers applies what the other gateways have reported to the leader: a drain ends when none has requests in
// flight, and all know of it; that of an idle backend is cancelled if one has used it.
func (b *Backend) observeOthers(reports []report, row *leaderRow) {
	b.mu.Lock()
	l, now := &b.life, b.clock()
	published := l.published.Changes == l.changes // or else no other gateway can know the state
	version := max(l.published.Version, row.backends[b.String()].Version)
	drained, wantedBy := published && l.state == Draining && l.published.State == Draining, ""
	l.heldElsewhere = 0
	for _, r := range reports {
		u := r.uses[b.String()]
		l.usedElsewhere = latest(l.usedElsewhere, now.Add(-row.age(u.Requested)))
		if !r.alive {
			continue
		}
		informed := r.current && r.seen >= version
		drained = drained && informed && !u.Busy
		if r.current {
			l.heldElsewhere += u.Held
		}
		if r.current && u.Busy {
			l.usedElsewhere = now
		}
		// Otherwise it wants to change what is not so any more, or may have wanted it before the operator stopped the backend again.
		if published && informed && u.Wanted && (!l.stopping || !l.stoppedByOperator) {
			wantedBy = r.gateway
		}
	}
	l.drained = drained
	if l.state == Draining && !l.stopping && now.Sub(l.usedElsewhere) < l.drainIdle {
		b.undrain("another gateway uses it")
	}
	b.stopIfDrained()
	b.mu.Unlock()
	if wantedBy != "" {
		b.requestStart("requested at gateway " + wantedBy)
		if b.is(Ready) {
			b.probeSoon() // it may have ended since the last probe
		}
	}
}

// undrain cancels a drain that has stopped nothing. b.mu is held.
func (b *Backend) undrain(reason string) {
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

// follow applies what the leader has published of the backend to its state. Of a backend that the leader does not have, it
// ends what another leader has begun.
func (b *Backend) follow(row *leaderRow) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.life
	e, found := row.backends[b.String()]
	if !found {
		e.State = Unreachable
	}
	b.moveTo(e.URL)
	changed := e.Version != l.published.Version
	l.published, l.stoppedByOperator = e, e.Held
	reason := e.Reason
	if row.leader != "" {
		reason += " (by gateway " + row.leader + ")"
	}
	began := b.clock().Add(-row.age(e.Since))
	failed := e.State == Failed && row.age(e.Since) < failureCooldown
	switch {
	case l.state == Starting && e.State == Starting:
		if l.boot.pending || changed {
			l.boot.pending, l.since = false, began
			b.probeSoon() // while the backend starts, the next probes follow at short intervals
		}
	case l.state == Starting && l.boot.pending && e.Version <= l.boot.requestedAt && !failed: // the leader does not know of it yet
	case l.state == Starting && e.State == Failed:
		b.transition(eventFailed, e.Reason)
		l.since = began
	case e.State == Starting && l.state != Ready: // a ready one is so sooner than the leader has noticed
		b.followBoot(&e, reason)
		l.since = began
	case failed && (l.state == Stopped || l.state == Unreachable): // this gateway may be the next one that leads
		b.followBoot(&e, reason)
		b.transition(eventFailed, e.Reason)
		l.since = began
	case e.State == Draining && l.state != Draining && l.state != Stopped:
		b.transition(eventDrainRequested, reason)
	case l.state == Starting && e.State != Ready:
		b.transition(eventAbandoned, e.Reason)
		b.probeSoon()
	case l.state != Draining || e.State == Draining: // the rest is found by probes
	case e.State == Ready:
		b.undrain(e.Reason)
	case e.State == Stopped:
		b.transition(eventStopped, e.Reason)
	case e.State == Asleep:
		b.transition(eventSlept, e.Reason)
	default:
		b.transition(eventFailed, e.Reason)
		b.probeSoon()
	}
	if l.state == Draining {
		l.drainToSleep = e.Sleep
	}
}

// followBoot applies the leader's boot. b.mu is held.
func (b *Backend) followBoot(e *entry, reason string) {
	if b.life.state == Draining {
		b.transition(eventFailed, reason)
	}
	ended := make(chan struct{})
	close(ended)
	b.life.boot = &boot{wake: e.Wake, ended: ended}
	b.transition(eventStartRequested, reason)
	b.probeSoon()
}

// takeOver continues what the leader before has begun. Its program may still run, so a launch is awaited, up to its limit, and a
// stop is repeated only after its limit. To wake the backend, or to put it to sleep, a second time does no harm.
func (b *Backend) takeOver(row *leaderRow) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, e := &b.life, b.life.published
	l.neededAt = b.clock()
	l.published = b.entry()
	l.published.Version, l.published.Since = e.Version, e.Since
	if l.state != e.State || l.state == Starting || l.state == Draining {
		l.published = entry{Changes: l.changes} // to be published by this gateway before anything more is done
	}
	switch {
	case l.state == Starting && l.boot.pending:
		l.since = b.clock() // the limit of the boot begins with its program, which runs once that is published
		b.emit(BootBegun, l.reason)
	case l.state == Starting && l.boot.wake:
		b.wakeAgain(l.boot)
	case l.state == Draining && (e.Sleep && b.cfg().Sleep == nil || !e.Sleep && !b.hasStopCommand()):
		b.undrain("this gateway cannot stop it")
	case l.state == Draining && e.Stopping && !e.Sleep:
		l.stopDue = b.clock().Add(b.bootTimeout() - row.age(e.Since))
	}
}

func (b *Backend) wakeAgain(own *boot) {
	b.fleet.tasks.Run(func(ctx context.Context) {
		if err := b.post(ctx, "/wake_up", ""); err != nil && ctx.Err() == nil {
			b.failBoot(own, wakeFailed+err.Error())
		}
	})
}
