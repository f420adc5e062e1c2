package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/budget/admission"
	"basegate/gateway/config"
)

var (
	// ErrNoOtherBackend is returned if every backend that may serve a request has been tried.
	ErrNoOtherBackend = errors.New("no other backend")
	// ErrUnsuitable is returned if a Filter excludes every backend.
	ErrUnsuitable = errors.New("no backend of the model suits the request")
	// ErrNotManaged is returned if the gateway can neither start nor stop a backend of the model.
	ErrNotManaged = errors.New("the gateway can neither start nor stop a backend of this model")
)

// BreakerOpenError is returned if the breakers of all backends are open.
type BreakerOpenError struct {
	RetryIn time.Duration // until the first breaker is half-open
}

// Error implements error.
func (*BreakerOpenError) Error() string { return "every breaker is open" }

// Model is one model of the configuration with its backends, or an adapter of one, which has the backends of its parent.
type Model struct {
	config   config.Model
	backends []*Backend
	replicas []*replicas // of the backends that have some; none of an adapter
	fleet    *Fleet
	parent   *Model   // of an adapter; nil otherwise
	adapter  *Adapter // nil if it is a base model
}

// ID returns the short id that clients use.
func (m *Model) ID() string { return m.config.ID }

// Aliases returns the further ids that clients may use. The slice must not be modified.
func (m *Model) Aliases() []string { return m.config.Aliases }

// Checkpoint returns the name that vLLM serves the model, or the parent of an adapter, under.
func (m *Model) Checkpoint() string { return m.config.Checkpoint }

// Precision returns the label of the weights' number format.
func (m *Model) Precision() string { return m.config.Precision }

// MaxLogprobs returns the limit on logprobs and prompt_logprobs of a request.
func (m *Model) MaxLogprobs() int { return m.config.MaxLogprobs }

// MaxScoredPromptTokens returns the length in tokens of the longest prompt whose own log-probabilities can be
// requested; 0 means no limit.
func (m *Model) MaxScoredPromptTokens() int64 { return m.config.MaxScoredPromptTokens }

// XArgs returns the names that the vllm_xargs of a request may have. The slice must not be modified.
func (m *Model) XArgs() []string { return m.config.Xargs }

// WarmWindows returns the recurring windows of the configuration. The slice must not be modified.
func (m *Model) WarmWindows() []config.Window { return m.config.WarmWindows }

// Backends returns the backends in the order of the configuration. The slice must not be modified.
func (m *Model) Backends() []*Backend { return m.backends }

// MaxModelLen returns the context length in tokens: the configured one, or the smallest that a backend has reported, so
// that a request fits any backend; 0 if it is unknown.
func (m *Model) MaxModelLen() int64 {
	if m.config.MaxModelLen > 0 {
		return m.config.MaxModelLen
	}
	var smallest int64
	for _, b := range m.backends {
		if n := b.MaxModelLen(); n > 0 && (smallest == 0 || n < smallest) {
			smallest = n
		}
	}
	return smallest
}

// LargestMaxModelLen returns the largest context of a backend in tokens, at least MaxModelLen: what vLLM truncates to if it is
// asked for as much as fits, whatever is configured here.
func (m *Model) LargestMaxModelLen() int64 {
	largest := m.MaxModelLen()
	for _, b := range m.backends {
		largest = max(largest, b.MaxModelLen())
	}
	return largest
}

// assumedSpecialTokens is the number of special tokens assumed until every backend has reported it: one for the
// beginning, one for a prefix space, and a margin.
const assumedSpecialTokens = 4

// SpecialTokens returns an upper bound on the number of tokens that the model's tokenizer adds to a prompt.
func (m *Model) SpecialTokens() int64 {
	var most int64
	for _, b := range m.backends {
		info := b.info.Load()
		if !info.specialKnown {
			return assumedSpecialTokens
		}
		most = max(most, info.specialTokens+1) // plus a prefix space, which the one-letter probe text need not show
	}
	return most
}

// The values of Status.
const (
	StatusWarm        = "warm"        // it responds at once
	StatusCold        = "cold"        // a request starts it
	StatusStarting    = "starting"    // it is being started
	StatusUnavailable = "unavailable" // no backend of it responds or can be started at the moment
)

// Status returns the model's status in GET /v1/models.
func (m *Model) Status() string {
	switch o := optionsOf(m.backends, Caller{}); {
	case o.serving != nil:
		return StatusWarm
	case o.starting != nil:
		return StatusStarting
	case o.startable != nil:
		return StatusCold
	default:
		return StatusUnavailable
	}
}

// options are the first of some backends that can be used in each way; nil if there is none.
type options struct {
	serving   *Backend // it is ready and takes the caller's requests
	starting  *Backend
	startable *Backend         // it can be launched or woken
	failed    *BootFailedError // of the last backend in cooldown
}

func optionsOf(backends []*Backend, c Caller) (o options) {
	for _, b := range backends {
		switch failed := b.cooldownError(); {
		case b.serves(c):
			o.serving = cmp.Or(o.serving, b)
		case b.is(Starting):
			o.starting = cmp.Or(o.starting, b)
		case failed != nil:
			o.failed = failed
		case b.startable():
			o.startable = cmp.Or(o.startable, b)
		}
	}
	return o
}

// startable reports whether the backend can be launched or woken in its current state.
func (b *Backend) startable() bool {
	switch state, _ := b.State(); state {
	case Asleep, Draining:
		return true
	case Ready:
		return false
	case Starting, Stopped, Unreachable, Failed:
	}
	return b.cfg().Launch != nil
}

// BootFailure returns why the backend that the next request starts could not be started the last time; nil if that has not failed,
// or a backend is ready or starting.
func (m *Model) BootFailure() *BootFailedError {
	o := optionsOf(m.backends, Caller{})
	switch {
	case o.serving != nil || o.starting != nil:
		return nil
	case o.startable != nil:
		return o.startable.BootFailure()
	}
	return o.failed
}

// BootEstimate returns the expected duration of a boot of the model; 0 if the gateway cannot start it.
func (m *Model) BootEstimate() time.Duration {
	for _, b := range m.backends {
		if b.managed() {
			return b.bootEstimate()
		}
	}
	return 0
}

// warmLead returns how long before a warm window the model is started and kept: no shorter than the configured estimate, since
// the measured one falls with the first boot, before the window begins.
func (m *Model) warmLead() time.Duration {
	lead := m.BootEstimate()
	for _, b := range m.backends {
		if launch := b.cfg().Launch; launch != nil {
			lead = max(lead, launch.BootEstimate)
		}
	}
	return lead
}

// Filter reports whether a backend suits a request. A nil Filter means that every backend does.
type Filter func(*Backend) bool

// Caller is what decides which backends a request may use. The zero value is the gateway itself.
type Caller struct {
	Key     string // whose failures alone do not close a backend to others; breaker.AnyKey: no key's
	Account string // that takes turns with others at a full backend; empty: the request is not held back
	Filter  Filter
}

func (m *Model) suitable(c Caller) []*Backend {
	if c.Filter == nil {
		return m.backends
	}
	return slices.DeleteFunc(slices.Clone(m.backends), func(b *Backend) bool { return !c.Filter(b) })
}

// serves reports whether the backend is ready and takes the caller's requests.
func (b *Backend) serves(c Caller) bool { return b.is(Ready) && !b.breaker.OpenTo(c.Key) }

// EnsureServable returns nil if an attempt can be made now, and otherwise starts the model if it can be started. The
// error is ErrUnsuitable, a *BootingError, a *BootFailedError or a *BreakerOpenError.
func (m *Model) EnsureServable(c Caller) error {
	suitable := m.suitable(c)
	if len(suitable) == 0 {
		return ErrUnsuitable
	}
	if optionsOf(suitable, c).serving != nil {
		return nil
	}
	if err := start(suitable, "requested by a client"); err != nil {
		return err
	}
	return breakersOpen(suitable, c)
}

// CheckServable returns nil if EnsureServable would return nil or start the model, and otherwise its error. It starts nothing.
func (m *Model) CheckServable(c Caller) error {
	suitable := m.suitable(c)
	if len(suitable) == 0 {
		return ErrUnsuitable
	}
	switch o := optionsOf(suitable, c); {
	case o.serving != nil || o.starting != nil || o.startable != nil:
		return nil
	case o.failed != nil:
		return o.failed
	}
	return breakersOpen(suitable, c)
}

// ColdWait returns how long a request may wait for a boot; 0 means that it does not wait.
func (m *Model) ColdWait() time.Duration { return m.config.ColdWait }

// AwaitBoot waits until EnsureServable returns anything but a *BootingError, or ctx ends, and returns its last error.
func (m *Model) AwaitBoot(ctx context.Context, c Caller) error {
	for {
		changed := m.fleet.transitions.changed()
		err := m.EnsureServable(c)
		if _, booting := errors.AsType[*BootingError](err); !booting {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// Boot returns the progress of a boot of the model; nil if none of its backends is starting.
func (m *Model) Boot() *BootingError {
	if b := optionsOf(m.backends, Caller{}).starting; b != nil {
		return b.bootingError()
	}
	return nil
}

// start starts one of the backends, unless one is starting. The error is a *BootingError, or a *BootFailedError if all that could be
// started are in cooldown; nil if none can be started, or one is ready, by a cancelled drain or a short boot.
func start(backends []*Backend, reason string) error {
	o := optionsOf(backends, Caller{})
	switch {
	case o.starting != nil:
		return o.starting.bootingError()
	case o.startable == nil && o.failed != nil:
		return o.failed
	case o.startable == nil:
		return nil
	}
	o.startable.requestStart(reason)
	if o.startable.is(Ready) {
		return nil
	}
	if err := o.startable.cooldownError(); err != nil {
		return err
	}
	return o.startable.bootingError()
}

// breakersOpen returns a *BreakerOpenError if the breakers of all the backends are open to the caller.
func breakersOpen(backends []*Backend, c Caller) error {
	var soonest time.Duration
	for i, b := range backends {
		if !b.breaker.OpenTo(c.Key) {
			return nil
		}
		if wait := b.breaker.RetryIn(); i == 0 || wait < soonest {
			soonest = wait
		}
	}
	return &BreakerOpenError{RetryIn: soonest}
}

// Warm starts the model, or restarts the idle time of a ready backend, as a request would.
func (m *Model) Warm(reason string) error {
	isReady := func(b *Backend) bool { return b.is(Ready) }
	if i := slices.IndexFunc(m.backends, isReady); i >= 0 {
		m.backends[i].requestStart(reason)
		return nil
	}
	err := start(m.backends, reason)
	if _, booting := errors.AsType[*BootingError](err); booting {
		return nil
	}
	if err == nil && !slices.ContainsFunc(m.backends, isReady) {
		return ErrNotManaged
	}
	return err
}

// Stop drains every backend of the model that the gateway can stop or put to sleep, and then does so; a boot is aborted
// at once. No warm window starts the model again until a request or an operator does, or the window ends.
func (m *Model) Stop(reason string) error {
	return m.order(CommandStop, m.Controls().Stop, (*Backend).requestStop, reason)
}

// Sleep drains every ready backend of the model that can sleep, and then puts it to sleep. No warm window wakes the model
// until a request or an operator does, or the window ends.
func (m *Model) Sleep(reason string) error {
	return m.order(commandSleep, m.Controls().Sleep, (*Backend).requestSleep, reason)
}

// order gives an order to the backends, or to the gateway that leads. The error is ErrNotManaged if none can execute it.
func (m *Model) order(c Command, possible bool, give func(*Backend, string), reason string) error {
	if !possible {
		return ErrNotManaged
	}
	if !m.fleet.leads() {
		m.fleet.forward(m.ID(), c)
		return nil
	}
	for _, b := range m.backends {
		give(b, reason)
	}
	return nil
}

// Controls says what the gateway can do with a model.
type Controls struct {
	Warm, Stop, Sleep bool
}

// Controls returns what the gateway can do with at least one backend of the model, in whatever state it is.
func (m *Model) Controls() (c Controls) {
	for _, b := range m.backends {
		sleeps := b.cfg().Sleep != nil
		c.Warm = c.Warm || b.managed()
		c.Stop = c.Stop || sleeps || b.hasStopCommand()
		c.Sleep = c.Sleep || sleeps
	}
	return c
}

// FailedAttempt is an attempt that failed.
type FailedAttempt struct {
	Backend   *Backend
	RetrySame bool // another attempt may use the same backend
}

// Acquire leases a backend for the next attempt. It prefers backends that were not tried, then ready ones, then the one
// whose cache has the prefix, unless it has too many attempts in flight, and then the one with the fewest. If no better one
// is left, it leases a backend that is not ready, since the last probe may be outdated; but not one that the gateway can
// launch, and not a sleeping one, which must be woken first. If no backend can be leased for the first attempt of a request,
// Acquire starts the model.
//
// The error is ErrUnsuitable, ErrFull, ErrNoOtherBackend, a *BreakerOpenError, a *BootingError or a *BootFailedError. The
// caller must release the lease.
func (m *Model) Acquire(tried []FailedAttempt, c Caller, p Prefix) (*Lease, error) {
	l, full, err := m.acquire(tried, c, p)
	if full != nil {
		return nil, ErrFull
	}
	return l, err
}

// acquire is Acquire. If those backends are full, it returns the one where the fewest requests wait.
func (m *Model) acquire(tried []FailedAttempt, c Caller, p Prefix) (l *Lease, full *Backend, err error) {
	suitable := m.suitable(c)
	if len(suitable) == 0 {
		return nil, nil, ErrUnsuitable
	}
	penalty := 0 // of full
	for _, candidate := range m.ranked(suitable, tried, &p) {
		b := candidate.backend
		if full != nil && candidate.penalty > penalty {
			break
		}
		var turn admission.Turn
		if c.Account != "" && !b.turns.places.Try(&turn) {
			if b.serves(c) && (full == nil || b.Held() < full.Held()) {
				full, penalty = b, candidate.penalty
			}
			continue
		}
		if l := m.lease(b, c, &p); l != nil {
			l.turn = turn
			return l, nil, nil
		}
		turn.Release()
	}
	if full != nil {
		return nil, full, nil
	}
	if len(tried) == 0 {
		if err := start(suitable, "requested by a client"); err != nil {
			return nil, nil, err
		}
	}
	if err := breakersOpen(suitable, c); err != nil {
		return nil, nil, err
	}
	if len(tried) == 0 { // the breakers are half-open and their trial attempts are in flight
		return nil, nil, &BreakerOpenError{RetryIn: time.Second}
	}
	return nil, nil, ErrNoOtherBackend
}

// lease leases a backend for a prompt; nil if it takes no attempt.
func (m *Model) lease(b *Backend, c Caller, p *Prefix) *Lease {
	run, acquired := b.acquire()
	if !acquired {
		return nil
	}
	permit, err := b.breaker.Allow(c.Key)
	if err != nil {
		b.release()
		return nil
	}
	m.countLease(b)
	l := &Lease{Backend: b, permit: permit, run: run}
	if m.steers() {
		l.sent = b.cache.send(p)
	}
	return l
}

// ranked returns those of the backends that an attempt may use, best first.
func (m *Model) ranked(backends []*Backend, tried []FailedAttempt, p *Prefix) []candidate {
	candidates := make([]candidate, 0, len(backends))
	for _, b := range backends {
		if slices.Contains(tried, FailedAttempt{b, false}) {
			continue
		}
		c := m.candidate(b, b.InFlight())
		if !b.is(Ready) {
			c.penalty++
		}
		if slices.Contains(tried, FailedAttempt{b, true}) {
			c.penalty += 2
		}
		candidates = append(candidates, c)
	}
	if len(candidates) > 1 {
		m.sortCandidates(candidates, p)
	}
	return candidates
}

// Lease is a claim on a backend for one attempt.
type Lease struct {
	*Backend
	permit *breaker.Permit
	run    Run
	turn   admission.Turn // of an attempt of an account

	resident *resident // the adapter that the attempt uses; nil if none
	sent     sentPrompt
}

// Run is one run of a backend's engine. The zero value is one that may have been dead before the attempt.
type Run struct {
	backend *Backend
	number  int64
}

// Run returns the run of the engine that the attempt began in.
func (l *Lease) Run() Run { return l.run }

// Begin reports to the breaker that a stream has begun; see breaker.Permit.
func (l *Lease) Begin() { l.permit.Begin() }

// Report reports the outcome of the attempt to the breaker; see breaker.Permit. repeated says that an earlier attempt of the same
// request has failed there. A backend that is gone is unreachable until a probe succeeds, so that the next requests avoid it.
func (l *Lease) Report(c breaker.Class, repeated bool) {
	if repeated {
		l.permit.ReportRepeated(c)
	} else {
		l.permit.Report(c)
	}
	if c.Gone() {
		l.markUnreachable(c.String())
	}
}

// Release ends the lease. It must be called on every path.
func (l *Lease) Release() {
	l.permit.Close()
	l.listening.forget(l)
	l.releaseAdapter()
	l.release()
	l.turn.Release()
}

// markUnreachable makes a ready backend unreachable and requests a probe.
func (b *Backend) markUnreachable(reason string) {
	b.mu.Lock()
	marked := b.life.state == Ready && b.transition(eventUnreachable, reason)
	b.mu.Unlock()
	if marked {
		b.probeSoon()
	}
}
