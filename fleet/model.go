package fleet

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/config"
)

// ErrNoOther says that every backend an attempt may go to has been tried.
var ErrNoOther = errors.New("no other backend")

// OpenError says that every backend is being left alone after repeated failures.
type OpenError struct {
	RetryIn time.Duration // until the first of them is tried again
}

// Error implements error.
func (*OpenError) Error() string { return "every breaker is open" }

// Model is one model of the configuration with its backends.
type Model struct {
	config   config.Model
	backends []*Backend
}

// ID is the short id that clients use.
func (m *Model) ID() string { return m.config.ID }

// Checkpoint is the name that vLLM serves the model under.
func (m *Model) Checkpoint() string { return m.config.Checkpoint }

// Precision is the label of the weights' number format.
func (m *Model) Precision() string { return m.config.Precision }

// MaxLogprobs is the highest logprobs and prompt_logprobs that a request may ask for.
func (m *Model) MaxLogprobs() int { return m.config.MaxLogprobs }

// MaxScoredPromptTokens is the longest prompt, in tokens, whose own log-probabilities may be asked for; 0: no limit.
func (m *Model) MaxScoredPromptTokens() int64 { return m.config.MaxScoredPromptTokens }

// Backends lists the backends in the order of the configuration. The slice is not to be changed.
func (m *Model) Backends() []*Backend { return m.backends }

// MaxModelLen is the context in tokens: the configuration's, else the smallest that a backend has reported, so that a
// request fits wherever it goes; 0 where nobody has said.
func (m *Model) MaxModelLen() int64 {
	if m.config.MaxModelLen > 0 {
		return m.config.MaxModelLen
	}
	var least int64
	for _, b := range m.backends {
		if n := b.MaxModelLen(); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// What Status says.
const (
	Warm        = "warm"        // it answers at once
	Unavailable = "unavailable" // no backend of it does
)

// Status is what GET /v1/models says of the model.
func (m *Model) Status() string {
	for _, b := range m.backends {
		if state, _ := b.State(); state == Ready && b.Breaker() != breaker.Open {
			return Warm
		}
	}
	return Unavailable
}

// BootEstimate is how long the model is expected to take to start; 0 where it is not ours to start.
func (m *Model) BootEstimate() time.Duration {
	for _, b := range m.config.Backends {
		if b.Launch != nil {
			return b.Launch.BootEstimate
		}
	}
	return 0
}

// Servable tells whether an attempt could be made now: it is an *OpenError when every backend is being left alone.
func (m *Model) Servable() error {
	var soonest time.Duration
	for i, b := range m.backends {
		if b.Breaker() != breaker.Open {
			return nil
		}
		if wait := b.breaker.RetryIn(); i == 0 || wait < soonest {
			soonest = wait
		}
	}
	return &OpenError{RetryIn: soonest}
}

// Try is an attempt that failed: at which backend, and whether that one may be tried again.
type Try struct {
	Backend *Backend
	Again   bool
}

// Acquire hands out the backend for the next attempt: untried before tried, ready before not ready, then the one with
// the fewest attempts under way. A backend that is not ready is still tried when there is no better, since the probe
// may be behind the times.
//
// The error is ErrNoOther, or an *OpenError. The Lease must be released.
func (m *Model) Acquire(tried []Try) (*Lease, error) {
	for _, b := range m.ranked(tried) {
		permit, err := b.breaker.Allow()
		if err != nil {
			continue
		}
		b.inFlight.Add(1)
		return &Lease{Backend: b, permit: permit}, nil
	}
	if err := m.Servable(); err != nil {
		return nil, err
	}
	if len(tried) == 0 { // half-open breakers whose probes are under way
		return nil, &OpenError{RetryIn: time.Second}
	}
	return nil, ErrNoOther
}

// candidate is a backend with what it is ranked by.
type candidate struct {
	backend  *Backend
	penalty  int
	inFlight int64
}

func (m *Model) ranked(tried []Try) []*Backend {
	candidates := make([]candidate, 0, len(m.backends))
	for _, b := range m.backends {
		c := candidate{backend: b, inFlight: b.InFlight()}
		if state, _ := b.State(); state != Ready {
			c.penalty++
		}
		if slices.Contains(tried, Try{b, false}) {
			continue
		}
		if slices.Contains(tried, Try{b, true}) {
			c.penalty += 2
		}
		candidates = append(candidates, c)
	}
	// Shuffled first, so that equals take turns.
	//nolint:gosec // taking turns needs no secrecy
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.penalty, b.penalty), cmp.Compare(a.inFlight, b.inFlight))
	})
	out := make([]*Backend, len(candidates))
	for i, c := range candidates {
		out[i] = c.backend
	}
	return out
}

// Lease is one attempt's hold on a backend.
type Lease struct {
	*Backend
	permit *breaker.Permit
}

// Report tells the breaker how the attempt went; see breaker.Permit. A connection that could not be made also marks
// the backend, so that the next requests need not find out for themselves.
func (l *Lease) Report(c breaker.Class) {
	l.permit.Report(c)
	if c == breaker.Refused || c == breaker.EngineDead {
		l.suspect(c.String())
	}
}

// Release ends the hold, on every way out.
func (l *Lease) Release() {
	l.permit.Close()
	l.inFlight.Add(-1)
}

// suspect marks a ready backend as not ready until a probe finds otherwise, and asks for that probe.
func (b *Backend) suspect(reason string) {
	last := *b.seen.Load()
	if last.state != Ready {
		return
	}
	last.state, last.reason = Unreachable, reason
	b.observe(last)
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}
