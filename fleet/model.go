package fleet

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/config"
)

// ErrNoOtherBackend says that every backend an attempt may go to has been tried.
var ErrNoOtherBackend = errors.New("no other backend")

// BreakerOpenError says that every backend is being left alone after repeated failures.
type BreakerOpenError struct {
	RetryIn time.Duration // until the first of them is tried again
}

// Error implements error.
func (*BreakerOpenError) Error() string { return "every breaker is open" }

// Model is one model of the configuration with its backends.
type Model struct {
	config   config.Model
	backends []*Backend
	moves    *moves
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

// specialTokens bounds what a tokenizer adds to a prompt while no backend has told: a token for the beginning, one for a
// prefix space, and some in reserve.
const specialTokens = 4

// SpecialTokens is how many tokens a tokenizer of the model adds to a prompt at the most.
func (m *Model) SpecialTokens() int64 {
	var most int64
	for _, b := range m.backends {
		seen := b.seen.Load()
		if !seen.counted {
			return specialTokens
		}
		most = max(most, seen.special+1) // and a prefix space, which a text of one letter need not show
	}
	return most
}

// What Status says.
const (
	StatusWarm        = "warm"        // it answers at once
	StatusCold        = "cold"        // it is started when somebody asks
	StatusStarting     = "starting"    // it is being started
	StatusUnavailable = "unavailable" // no backend of it answers, or can be started now
)

// Status is what GET /v1/models says of the model.
func (m *Model) Status() string {
	status := StatusUnavailable
	for _, b := range m.backends {
		state, _ := b.State()
		switch {
		case state == Ready && b.Breaker() != breaker.Open:
			return StatusWarm
		case state == Starting:
			status = StatusStarting
		case status == StatusUnavailable && b.startable() && b.refused() == nil:
			status = StatusCold
		}
	}
	return status
}

// startable tells whether the backend can be launched, or woken, from where it stands.
func (b *Backend) startable() bool {
	state, _ := b.State()
	if state == Asleep || state == Draining {
		return true
	}
	return state != Ready && b.policy().Launch != nil
}

// BootEstimate is how long the model is expected to take to start; 0 where it is not ours to start.
func (m *Model) BootEstimate() time.Duration {
	for _, b := range m.backends {
		if b.managed() {
			return b.estimate()
		}
	}
	return 0
}

// EnsureServable tells whether an attempt could be made now, and has the model started where that takes a start. The error is a
// *BootingError, a *FailedError, or an *OpenError when every backend is being left alone.
func (m *Model) EnsureServable() error {
	for _, b := range m.backends {
		if state, _ := b.State(); state == Ready && b.Breaker() != breaker.Open {
			return nil
		}
	}
	if err := m.start("a request asks for it"); err != nil {
		return err
	}
	return m.open()
}

// ColdWait is how long a request may wait for a boot; 0: not at all.
func (m *Model) ColdWait() time.Duration { return m.config.ColdWait }

// AwaitBoot waits until the model is servable, or will not be by this boot, or ctx ends. The error is Servable's.
func (m *Model) AwaitBoot(ctx context.Context) error {
	for {
		news := m.moves.news()
		err := m.EnsureServable()
		if _, booting := errors.AsType[*BootingError](err); !booting {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return err
		}
	}
}

// start has one backend started, unless one is starting already, and tells how that stands; nil where none can be.
func (m *Model) start(reason string) error {
	var failed *BootFailedError
	var chosen *Backend
	for _, b := range m.backends {
		if state, _ := b.State(); state == Starting {
			return b.booting()
		}
		if refused := b.refused(); refused != nil {
			failed = refused
			continue
		}
		if chosen == nil && b.startable() {
			chosen = b
		}
	}
	if chosen == nil {
		if failed == nil {
			return nil
		}
		return failed
	}
	chosen.want(reason)
	if state, _ := chosen.State(); state == Ready { // its drain was called off
		return nil
	}
	if refused := chosen.refused(); refused != nil {
		return refused
	}
	return chosen.booting()
}

// open is an *OpenError when every backend is being left alone.
func (m *Model) open() error {
	var soonest time.Duration
	for i, b := range m.backends {
		if b.Breaker() != breaker.Open {
			return nil
		}
		if wait := b.breaker.RetryIn(); i == 0 || wait < soonest {
			soonest = wait
		}
	}
	return &BreakerOpenError{RetryIn: soonest}
}

// Warm has the model started, as if somebody had asked for it.
func (m *Model) Warm(reason string) error {
	for _, b := range m.backends {
		if state, _ := b.State(); state == Ready {
			b.want(reason)
			return nil
		}
	}
	err := m.start(reason)
	if _, booting := errors.AsType[*BootingError](err); booting {
		return nil
	}
	if err == nil {
		return ErrNotManaged
	}
	return err
}

// ErrNotManaged says that no backend of a model can be started, or stopped, from here.
var ErrNotManaged = errors.New("no backend of this model is ours to start and stop")

// Stop stops every backend of the model that is ours to stop, when what is under way has ended, or puts it to sleep; a
// boot is ended at once. No window starts it again before it is asked for.
func (m *Model) Stop(reason string) error {
	found := false
	for _, b := range m.backends {
		if b.stop(reason) {
			found = true
		}
	}
	if !found {
		return ErrNotManaged
	}
	return nil
}

// FailedAttempt is an attempt that failed: at which backend, and whether that one may be tried again.
type FailedAttempt struct {
	Backend *Backend
	RetrySame   bool
}

// Acquire hands out the backend for the next attempt: untried before tried, ready before not ready, then the one with
// the fewest attempts under way. A backend that is not ready is still tried when there is no better, since the probe
// may be behind the times.
//
// One that is ours to launch is tried only when it is ready, and one that sleeps is woken first. Where none can be tried
// the model is started.
//
// The error is ErrNoOther, an *OpenError, a *BootingError or a *FailedError. The Lease must be released.
func (m *Model) Acquire(tried []FailedAttempt) (*Lease, error) {
	for _, b := range m.ranked(tried) {
		if !b.hold() {
			continue
		}
		permit, err := b.breaker.Allow()
		if err != nil {
			b.letGo()
			continue
		}
		return &Lease{Backend: b, permit: permit}, nil
	}
	if len(tried) == 0 {
		if err := m.start("a request asks for it"); err != nil {
			return nil, err
		}
	}
	if err := m.open(); err != nil {
		return nil, err
	}
	if len(tried) == 0 { // half-open breakers whose probes are under way
		return nil, &BreakerOpenError{RetryIn: time.Second}
	}
	return nil, ErrNoOtherBackend
}

// candidate is a backend with what it is ranked by.
type candidate struct {
	backend  *Backend
	penalty  int
	inFlight int64
}

func (m *Model) ranked(tried []FailedAttempt) []*Backend {
	candidates := make([]candidate, 0, len(m.backends))
	for _, b := range m.backends {
		c := candidate{backend: b, inFlight: b.InFlight()}
		if state, _ := b.State(); state != Ready {
			c.penalty++
		}
		if slices.Contains(tried, FailedAttempt{b, false}) {
			continue
		}
		if slices.Contains(tried, FailedAttempt{b, true}) {
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
	l.letGo()
}

// suspect marks a ready backend as not ready until a probe finds otherwise, and asks for that probe.
func (b *Backend) suspect(reason string) {
	b.mu.Lock()
	marked := b.life.state == Ready && b.pass(silent, reason)
	b.mu.Unlock()
	if marked {
		b.probeSoon()
	}
}
