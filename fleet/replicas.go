package fleet

import (
	"errors"
	"fmt"
	"time"
)

const (
	// replicaVariable is the environment variable with the number of the replica that a program starts or stops.
	replicaVariable = "BASEGATE_REPLICA"
	// scaleAfter is how long too many requests must have waited before another replica is started.
	scaleAfter = time.Minute
)

// errNoAddress is returned for a replica after the first whose launch.start has not printed where it is: the configured address is
// that of the first one.
var errNoAddress = errors.New("launch.start has not said where it is")

// role is how a replica counts for the time after which it is stopped.
type role uint8

const (
	roleUsed  role = iota // by its requests, as a backend without replicas
	roleKept              // it is kept running
	roleSpare             // by those that the replicas before it could not run without it
)

// startOrder is which replica is started next: the one that is ready the soonest. One that has failed comes last.
var startOrder = []State{Draining, Asleep, Stopped, Unreachable, Failed}

// replicas are the backends that a configured one with replicas stands for. Only the reconciler uses it.
type replicas struct {
	backends []*Backend
	running  int       // at the last look: those that were ready or starting
	enough   time.Time // when they were last enough for the requests that wait, or their number rose
}

// Replica returns the number of the replica that the backend is, from 1; 0 if it is none.
func (b *Backend) Replica() int { return b.cfg().Replica }

// unplaced reports whether it is not known where the replica is.
func (b *Backend) unplaced() bool { return b.Replica() > 1 && b.address.Load().launched == "" }

// scale starts a replica if fewer run than are to be kept, or if too many requests have waited for a minute, and decides which ones
// are needed. The gateway leads.
func (r *replicas) scale(now time.Time, keepWarm bool) {
	c := r.backends[0].cfg().Replicas
	keep, queue := c.Min, int64(c.Queue)
	if keepWarm {
		keep = max(keep, 1)
	}
	var ready []*Backend
	var used time.Time // the latest use of one that is ready
	starting, stopped := 0, true
	waiting, load, each := int64(0), int64(0), queue // each: as many as a replica can have
	for _, b := range r.backends {
		b.mu.Lock()
		state, held := b.life.state, int64(b.Held()+b.life.heldElsewhere)
		stopped = stopped && b.life.stoppedByOperator
		b.life.role = roleUsed
		switch queued := b.queued.Load(); state {
		case Ready:
			ready = append(ready, b)
			waiting += queued + held
			load += max(b.inFlight, b.engineRuns.Load()+queued) + held
			each = max(each, b.engineRan.Load())
			used = latest(used, latest(b.life.lastUsed, b.life.usedElsewhere))
		case Starting:
			starting++
		case Stopped:
			if b.info.Load().source == (source{}) {
				b.recallReport() // the first replica may have reported meanwhile
			}
		case Asleep, Draining, Unreachable, Failed:
		}
		b.mu.Unlock()
	}
	needed := int((load + each - 1) / each)
	for i, b := range ready {
		switch {
		case i < needed:
			b.setRole(now, i < keep, i > 0)
		case i == 0:
			b.setRole(used, keep > 0, false)
		default:
			b.setRole(time.Time{}, i < keep, true)
		}
	}
	running := len(ready) + starting
	if waiting <= queue*int64(running) || running > r.running {
		r.enough = now
	}
	r.running = running
	switch {
	case running < keep && !stopped:
		r.startNext(fmt.Sprintf("%d of %d replicas run", running, keep))
	case now.Sub(r.enough) >= scaleAfter:
		r.startNext(fmt.Sprintf("%d requests wait for %d replicas", waiting, running))
	}
}

// setRole sets the role of a ready replica, and when it was last needed. others says whether it is not the first that is ready.
func (b *Backend) setRole(neededAt time.Time, kept, others bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.life.neededAt = latest(b.life.neededAt, neededAt)
	switch {
	case kept:
		b.life.role = roleKept
	case others:
		b.life.role = roleSpare
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *replicas) startNext(reason string) {
	for _, s := range startOrder {
		for _, b := range r.backends {
			b.mu.Lock()
			later := b.drainIsFinal()
			b.mu.Unlock()
			if !b.is(s) || b.cooldownError() != nil || later {
				continue
			}
			if b.requestStart(reason); !b.is(s) {
				return
			}
		}
	}
}
