// Package breaker classifies upstream failures and provides one circuit breaker per backend. It holds the table of
// failure classes with their consequences (classes.go), maps vLLM's responses (classify.go) and its /health (health.go) to
// classes, and wraps gobreaker (breaker.go). It leaves sending requests and choosing backends to other packages.
package breaker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrOpen is returned by Allow if the breaker permits no attempt.
var ErrOpen = errors.New("circuit breaker is open")

// Settings are the limits of a Breaker.
type Settings struct {
	ConsecutiveFailures int           // this many consecutive failures open the breaker
	OpenFor             time.Duration // how long the breaker stays open before it becomes half-open
	HalfOpenRequests    int           // concurrent trial attempts while half-open, and successes needed to close
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
	name     string
	settings Settings
	changed  func(from, to State)
	circuit  atomic.Pointer[circuit] // Reset replaces it
	openedAt atomic.Int64            // nanoseconds since the epoch
	fatal    atomic.Int32            // reports in progress whose class opens the breaker whatever the count
	failing  failing
	recent   recent
}

type circuit = gobreaker.TwoStepCircuitBreaker[any]

// New returns a closed Breaker. It calls changed on every change of state, which must return at once and must not call
// the Breaker.
func New(name string, s Settings, changed func(from, to State)) *Breaker {
	b := &Breaker{name: name, settings: s, changed: changed}
	b.circuit.Store(b.newCircuit())
	return b
}

func (b *Breaker) newCircuit() (c *circuit) {
	c = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name:        b.name,
		MaxRequests: uint32(b.settings.HalfOpenRequests),
		Timeout:     b.settings.OpenFor,
		ReadyToTrip: func(counts gobreaker.Counts) bool {
			return b.fatal.Load() > 0 || int(counts.ConsecutiveFailures) >= b.settings.ConsecutiveFailures
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errUncounted) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if b.circuit.Load() != c { // an attempt from before a Reset
				return
			}
			switch to {
			case gobreaker.StateOpen:
				b.openedAt.Store(time.Now().UnixNano())
			case gobreaker.StateClosed:
				b.failing.forget()
			case gobreaker.StateHalfOpen:
			}
			b.changed(stateOf(from), stateOf(to))
		},
	})
	return c
}

// Reset closes the breaker and forgets what it has counted. Attempts that began before do not count.
func (b *Breaker) Reset() {
	b.failing.forget()
	if from := stateOf(b.circuit.Swap(b.newCircuit()).State()); from != Closed {
		b.changed(from, Closed)
	}
}

// State returns the current state. It makes an open breaker half-open if OpenFor has passed.
func (b *Breaker) State() State { return stateOf(b.circuit.Load().State()) }

// RetryIn returns how long the breaker stays open; 0 if it is not open.
func (b *Breaker) RetryIn() time.Duration {
	if b.State() != Open {
		return 0
	}
	return max(0, time.Until(time.Unix(0, b.openedAt.Load()).Add(b.settings.OpenFor)))
}

// OpenTo reports whether the breaker is open to a key: not because of the failures of another key alone. To AnyKey it is open
// if it is to all.
func (b *Breaker) OpenTo(key string) bool { return b.State() == Open && !b.failing.areOthers(key) }

// Allow returns a permit for one attempt of a key, or ErrOpen. The caller must close the permit on every path: a half-open
// breaker whose trial attempt never reports would stay half-open forever.
func (b *Breaker) Allow(key string) (*Permit, error) {
	done, err := b.circuit.Load().Allow()
	if err == nil {
		return &Permit{breaker: b, key: key, done: done}, nil
	}
	if !b.failing.areOthers(key) {
		return nil, ErrOpen
	}
	return &Permit{breaker: b, key: key, done: func(result error) {
		if result == nil { // the failures of another key have opened it
			b.Reset()
		}
	}}, nil
}

// Permit allows one attempt.
type Permit struct {
	breaker *Breaker
	key     string
	mu      sync.Mutex
	done    func(error) // nil once taken
}

// Begin records that a stream has begun. It ends the trial of a half-open breaker with success, because a stream may run
// for hours. A closed breaker counts nothing yet: Report at the end of the stream does, so that streams that break off
// halfway are failures in a row.
func (p *Permit) Begin() {
	if p.breaker.State() != Closed {
		p.end(nil)
	} else {
		p.end(errUncounted)
	}
}

// ReportRepeated records the class of an attempt of a request that has failed at the same backend before. The breaker
// counts a request once, so it does not count this failure, unless the class opens it whatever the count.
func (p *Permit) ReportRepeated(c Class) {
	if c.row().counts && !c.row().opens {
		p.breaker.recent.add(c)
		p.Close()
		return
	}
	p.Report(c)
}

// Report records the class of the attempt. A report after Begin or another report counts as another attempt, since
// gobreaker drops reports made after the breaker's state has changed.
func (p *Permit) Report(c Class) {
	done := p.take()
	if done == nil {
		again, err := p.breaker.circuit.Load().Allow()
		if err != nil { // the breaker is open already
			p.breaker.recent.add(c)
			return
		}
		done = again
	}
	p.breaker.report(done, c, p.key)
}

// Close ends an attempt without a result, unless it has been reported.
func (p *Permit) Close() { p.end(errUncounted) }

// end gives the permit back with a result, unless that has been done.
func (p *Permit) end(result error) {
	if done := p.take(); done != nil {
		done(result)
	}
}

// take returns what reports the result of the attempt; nil if it has been taken.
func (p *Permit) take() func(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := p.done
	p.done = nil
	return done
}

var (
	errCounted   = errors.New("counted failure")
	errUncounted = errors.New("uncounted attempt")
)

func (b *Breaker) report(done func(error), c Class, key string) {
	b.recent.add(c)
	row := c.row()
	if row.counts {
		b.failing.count(key, row.opens)
	}
	switch {
	case c == Success:
		done(nil)
		if b.State() == Closed { // else the attempt began before it opened
			b.failing.forget()
		}
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

func stateOf(s gobreaker.State) State { return State(s.String()) } // the names are gobreaker's
