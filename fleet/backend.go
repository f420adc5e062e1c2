package fleet

import (
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/config"
)

// Backend is one vLLM server of one model.
type Backend struct {
	Name string
	GPU  string // the label for X-Acs-Upstream-Gpu; may be empty

	modelID     string
	checkpoint  string
	config      atomic.Pointer[config.Backend] // a reload may change how it is launched
	base        *url.URL
	completions *url.URL
	transport   http.RoundTripper
	breaker     *breaker.Breaker
	log         *zap.Logger
	settings    Settings

	mu       sync.Mutex // guards life and inFlight
	life     life
	inFlight int64

	seen  atomic.Pointer[observation]
	boots *boots
	moves *moves
	crew  *crew
	clock func() time.Time
	nudge chan struct{} // asks for a probe at once
	leave func()        // ends the probes
}

// observation is what probes have found. It is replaced as a whole.
type observation struct {
	maxModelLen int64  // tokens; 0 where vLLM did not say
	version     string // vLLM's; empty where it did not say
	special     int64  // tokens that the tokenizer adds to a prompt
	counted     bool   // special is known
}

func (f *Fleet) newBackend(m config.Model, c config.Backend) *Backend {
	base := *c.URL
	base.Path += "/" // JoinPath makes a path that is not rooted of an empty one
	b := &Backend{
		Name: c.Name, GPU: c.GPU,
		modelID: m.ID, checkpoint: m.Checkpoint, base: &base,
		completions: base.JoinPath("v1/completions"),
		transport:   f.transport, settings: f.settings,
		log:   f.log.With(zap.String("model", m.ID), zap.String("backend", c.Name)),
		boots: f.bootsOf(m.ID, c.Name), moves: &f.moves, crew: &f.crew, clock: time.Now,
		nudge: make(chan struct{}, 1),
		leave: func() {},
	}
	b.config.Store(&c)
	b.breaker = breaker.New(b.String(), f.settings.Breaker, func(from, to breaker.State) {
		b.log.Info("breaker changed", zap.String("from", string(from)), zap.String("to", string(to)))
	})
	b.seen.Store(&observation{})
	b.life = life{state: Unreachable, reason: "not probed yet", since: b.clock(), used: b.clock()}
	if c.Launch != nil {
		b.life.state, b.life.reason = Stopped, "" // unless the first probe finds it running
	}
	return b
}

// same tells whether the configuration of a backend is what this one was built from, but for how it is launched and put
// to sleep, which may change under it.
func (b *Backend) same(m config.Model, c config.Backend) bool {
	own := b.policy()
	return b.modelID == m.ID && b.checkpoint == m.Checkpoint && b.Name == c.Name && b.GPU == c.GPU &&
		own.URL.String() == c.URL.String() && own.APIKey == c.APIKey && (own.Launch == nil) == (c.Launch == nil)
}

// URL is the address of a path on the backend.
func (b *Backend) URL(path string) *url.URL { return b.base.JoinPath(path) }

// CompletionsURL is the address of the completions endpoint. It is not to be changed.
func (b *Backend) CompletionsURL() *url.URL { return b.completions }

// Authorize sets the backend's own key, where one is configured.
func (b *Backend) Authorize(h http.Header) {
	if key := b.policy().APIKey.Reveal(); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// State is where the backend stands, and why, in words, where it is not ready.
func (b *Backend) State() (State, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life.state, b.life.reason
}

// Breaker is the state of the backend's breaker.
func (b *Backend) Breaker() breaker.State { return b.breaker.State() }

// InFlight is the number of attempts under way.
func (b *Backend) InFlight() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight
}

// MaxModelLen is the context in tokens that the backend reported; 0 where it did not.
func (b *Backend) MaxModelLen() int64 { return b.seen.Load().maxModelLen }

// Version is the vLLM version that the backend reported; empty where it did not.
func (b *Backend) Version() string { return b.seen.Load().version }
