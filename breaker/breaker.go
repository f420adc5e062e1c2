// Package breaker knows what an answer of vLLM means and when to leave a backend alone: the failure classes with
// what follows from each (classes.go), the reading of vLLM's answers into classes (answer.go), and one circuit
// breaker a backend (here). It neither sends requests nor chooses backends.
package breaker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrOpen says that the backend is being left alone.
var ErrOpen = errors.New("circuit breaker is open")

// Settings are the limits of a Breaker.
type Settings struct {
	ConsecutiveFailures int           // so many in a row open it
	OpenFor             time.Duration // how long it stays open before a probe is let through
	HalfOpenRequests    int           // probes at a time, and successes needed to close it
}

// State is the state of a Breaker.
type State string

// The states.
const (
	Closed   State = "closed"
	HalfOpen State = "half-open"
	Open     State = "open"
)

// Breaker counts the failures of one backend. It is safe for concurrent use.
type Breaker struct {
	circuit  *gobreaker.TwoStepCircuitBreaker[any]
	openFor  time.Duration
	openedAt atomic.Int64 // nanoseconds since the epoch
	fatal    atomic.Int32 // how many failures being reported open it whatever the count
	recent   recent
}

// New makes a closed Breaker. changed is told of every change of state; it runs under the breaker's lock, so it must
// return at once and not call the Breaker.
func New(name string, s Settings, changed func(from, to State)) *Breaker {
	b := &Breaker{openFor: s.OpenFor}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name:        name,
		MaxRequests: uint32(s.HalfOpenRequests), //nolint:gosec // configuration has checked it
		Timeout:     s.OpenFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return b.fatal.Load() > 0 || int(c.ConsecutiveFailures) >= s.ConsecutiveFailures
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errUncounted) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.openedAt.Store(time.Now().UnixNano())
			}
			changed(stateOf(from), stateOf(to))
		},
	})
	return b
}

// State is the present state. Asking moves an open breaker whose time is up to half-open.
func (b *Breaker) State() State { return stateOf(b.circuit.State()) }

// RetryIn is how long the breaker will stay open; 0 where it is not.
func (b *Breaker) RetryIn() time.Duration {
	if b.State() != Open {
		return 0
	}
	return max(0, time.Until(time.Unix(0, b.openedAt.Load()).Add(b.openFor)))
}

// Allow asks for one attempt. The Permit must be closed on every way out: a half-open breaker whose probe never
// reports would stay half-open for ever.
func (b *Breaker) Allow() (*Permit, error) {
	done, err := b.circuit.Allow()
	if err != nil {
		return nil, ErrOpen
	}
	return &Permit{breaker: b, done: done}, nil
}

// Permit is the right to one attempt.
type Permit struct {
	breaker *Breaker
	mu      sync.Mutex
	done    func(error) // nil once reported
}

// Report says how the attempt went. A second report is a new outcome: a stream reports success at its first event,
// since gobreaker drops what is reported after the breaker's state has changed, and reports once more if it dies
// later.
func (p *Permit) Report(c Class) {
	p.mu.Lock()
	done := p.done
	p.done = nil
	p.mu.Unlock()
	if done == nil {
		again, err := p.breaker.circuit.Allow()
		if err != nil { // open already
			p.breaker.recent.add(c)
			return
		}
		done = again
	}
	p.breaker.report(done, c)
}

// Close reports an attempt of which nothing was learnt, unless it has reported.
func (p *Permit) Close() {
	p.mu.Lock()
	done := p.done
	p.done = nil
	p.mu.Unlock()
	if done != nil {
		done(errUncounted)
	}
}

var (
	errCounted   = errors.New("counted failure")
	errUncounted = errors.New("uncounted outcome")
)

func (b *Breaker) report(done func(error), c Class) {
	b.recent.add(c)
	row := c.row()
	switch {
	case c == Success:
		done(nil)
	case row.opens:
		b.fatal.Add(1)
		done(errCounted)
		b.fatal.Add(-1)
	case row.counts:
		done(errCounted)
	default:
		done(errUncounted)
	}
}

func stateOf(s gobreaker.State) State {
	switch s {
	case gobreaker.StateClosed:
		return Closed
	case gobreaker.StateHalfOpen:
		return HalfOpen
	case gobreaker.StateOpen:
		return Open
	}
	return Open
}
