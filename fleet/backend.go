package fleet

import (
	"net/http"
	"net/url"
	"sync/atomic"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/config"
)

// State is where a backend stands.
type State string

// The states.
const (
	// Ready backends answer.
	Ready State = "ready"
	// Unreachable backends do not, and are somebody else's to start.
	Unreachable State = "unreachable"
)

// Backend is one vLLM server of one model.
type Backend struct {
	Name string
	GPU  string // the label for X-Acs-Upstream-Gpu; may be empty

	modelID     string
	checkpoint  string
	config      config.Backend
	base        *url.URL
	completions *url.URL
	transport   http.RoundTripper
	breaker     *breaker.Breaker
	log         *zap.Logger
	settings    Settings

	inFlight atomic.Int64
	seen     atomic.Pointer[observation]
	nudge    chan struct{} // asks for a probe at once
	retire   func()        // ends the probes
}

// observation is what the last probe found. It is replaced as a whole.
type observation struct {
	state       State
	reason      string // why it is not ready, in words
	maxModelLen int64  // tokens; 0 where vLLM did not say
	version     string // vLLM's; empty where it did not say
}

func newBackend(m config.Model, c config.Backend, s Settings, transport http.RoundTripper, log *zap.Logger) *Backend {
	base := *c.URL
	base.Path += "/" // JoinPath makes a path that is not rooted of an empty one
	b := &Backend{
		Name: c.Name, GPU: c.GPU,
		modelID: m.ID, checkpoint: m.Checkpoint, config: c, base: &base,
		completions: base.JoinPath("v1/completions"),
		transport:   transport, settings: s,
		log:    log.With(zap.String("model", m.ID), zap.String("backend", c.Name)),
		nudge:  make(chan struct{}, 1),
		retire: func() {},
	}
	b.breaker = breaker.New(b.String(), s.Breaker, func(from, to breaker.State) {
		b.log.Info("breaker changed", zap.String("from", string(from)), zap.String("to", string(to)))
	})
	b.seen.Store(&observation{state: Unreachable, reason: "not probed yet"})
	return b
}

// same tells whether the configuration of a backend is what this one was built from.
func (b *Backend) same(m config.Model, c config.Backend) bool {
	return b.modelID == m.ID && b.checkpoint == m.Checkpoint && b.Name == c.Name && b.GPU == c.GPU &&
		b.config.URL.String() == c.URL.String() && b.config.APIKey == c.APIKey
}

// URL is the address of a path on the backend.
func (b *Backend) URL(path string) *url.URL { return b.base.JoinPath(path) }

// Completions is the address of the completions endpoint. It is not to be changed.
func (b *Backend) Completions() *url.URL { return b.completions }

// Authorize sets the backend's own key, where one is configured.
func (b *Backend) Authorize(h http.Header) {
	if key := b.config.APIKey.Reveal(); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// State is where the backend stands, and why, in words, where it is not ready.
func (b *Backend) State() (State, string) {
	o := b.seen.Load()
	return o.state, o.reason
}

// Breaker is the state of the backend's breaker.
func (b *Backend) Breaker() breaker.State { return b.breaker.State() }

// InFlight is the number of attempts under way.
func (b *Backend) InFlight() int64 { return b.inFlight.Load() }

// MaxModelLen is the context in tokens that the backend reported; 0 where it did not.
func (b *Backend) MaxModelLen() int64 { return b.seen.Load().maxModelLen }

// Version is the vLLM version that the backend reported; empty where it did not.
func (b *Backend) Version() string { return b.seen.Load().version }

// observe takes over what a probe or an attempt found, and logs a change of state.
func (b *Backend) observe(o observation) {
	old := b.seen.Swap(&o)
	if old.state != o.state {
		b.log.Info("backend changed", zap.String("from", string(old.state)), zap.String("to", string(o.state)),
			zap.String("reason", o.reason), zap.String("version", o.version), zap.Int64("max_model_len", o.maxModelLen))
	}
}
