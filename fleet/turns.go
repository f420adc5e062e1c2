package fleet

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"basegate/budget/admission"
)

// ErrFull is returned by Model.Acquire if the backends that it would lease have as many attempts of accounts as their engines
// can run.
var ErrFull = errors.New("the engines of all backends are full")

const (
	// fullProbeInterval is how often the queue of an engine is read while attempts are limited by it.
	fullProbeInterval = 250 * time.Millisecond
	// busyFrom is the number of attempts in flight from which the queue is read, and burstFrom the one from which it is read
	// at once, if they have doubled since.
	busyFrom, burstFrom = 4, 16
	// minQueued is how many requests an engine may have waiting, so that it has one at hand when another ends.
	minQueued = 2
	// staleAfter is for how long the last reading limits attempts if further ones fail.
	staleAfter = 5 * time.Second
)

// turns limits the attempts of accounts at a backend to what its engine runs and a few that wait there, and gives what is free
// to the accounts in turn. An engine serves requests in order of arrival, so one account that sends many would keep those of
// others waiting behind all of its own. Attempts are not limited before the engine has reported that requests wait.
type turns struct {
	places *admission.Turns

	mu    sync.Mutex // guards the fields below
	limit int        // 0: none
	read  time.Time  // when the engine last reported its queue
}

func newTurns() turns { return turns{places: admission.NewTurns(math.MaxInt, 0)} }

func (t *turns) limited() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limit > 0
}

// observe sets the limit by what the engine reports: how many sequences run, and how many wait, which are not lines of batches.
// Of the attempts here, the engine runs the same share as of all its requests, which other gateways may have sent too, and of
// which each may be several sequences. The limit falls by at most half, since an engine that has just received many requests
// takes them in one after another.
func (t *turns) observe(now time.Time, running, waiting int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read = now
	s := t.places.Stats()
	switch {
	case waiting > 0:
		share := int(int64(s.Running) * running / (running + waiting))
		before := t.limit
		if before == 0 {
			before = s.Running
		}
		t.set(max(share+max(minQueued, share/8), before/2))
	case s.Waiting == 0:
		t.set(0)
	default:
		t.set(t.limit + max(minQueued, t.limit/2))
	}
}

// expire removes the limit if the engine has not reported its queue for a while.
func (t *turns) expire(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.read) >= staleAfter {
		t.set(0)
	}
}

// open removes the limit.
func (t *turns) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(0)
}

// set changes the limit. t.mu is held.
func (t *turns) set(limit int) {
	if limit == t.limit {
		return
	}
	t.limit = limit
	if limit == 0 {
		limit = math.MaxInt
	}
	t.places.SetPlaces(limit)
}

func (b *Backend) queueInterval() time.Duration {
	if b.turns.limited() {
		return fullProbeInterval
	}
	return queueProbeInterval
}

// Held returns how many requests are held back because the backend's engine is full.
func (b *Backend) Held() int { return b.turns.places.Stats().Waiting }

// AcquireInTurn is Acquire, but if all backends are full, it waits for the turn of the caller's account at the one where the
// fewest wait. If ctx ends, the error is its cause.
func (m *Model) AcquireInTurn(ctx context.Context, tried []FailedAttempt, c Caller, p Prefix) (*Lease, error) {
	const most = 4 // backends that stop while the request waits at them
	for range most {
		l, full, err := m.acquire(tried, c, p)
		if full == nil {
			return l, err
		}
		turn, err := full.turns.places.Acquire(ctx, c.Account)
		if err != nil {
			return nil, err
		}
		if l = m.lease(full, c, &p); l != nil {
			l.turn = *turn
			return l, nil
		}
		turn.Release()
	}
	c.Account = ""
	return m.Acquire(tried, c, p)
}
