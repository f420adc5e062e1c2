package fleet

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/gateway/config"
	"basegate/validate"
)

// Backend is one vLLM server of one model.
type Backend struct {
	Name string
	GPU  string // the label for X-Acs-Upstream-Gpu; may be empty

	fleet      *Fleet
	modelID    string
	checkpoint string
	root       string                         // what vLLM must have loaded; empty: not configured
	config     atomic.Pointer[config.Backend] // a reload may replace it to change launch and sleep settings
	chat       bool                           // the model serves chat completions
	address    atomic.Pointer[address]
	breaker    *breaker.Breaker
	log        *zap.Logger
	settings   Settings

	mu       sync.Mutex // guards the fields below
	life     lifecycle
	inFlight int64
	readFrom int64 // the queue is read at once when as many attempts are in flight
	mismatch mismatch

	commands  commandLog // has a mutex of its own
	listening listening  // has a mutex of its own

	bootFailures atomic.Int64 // launches and wakes that have failed
	places       places
	residents    residents // has a mutex of its own
	turns        turns
	queued       atomic.Int64 // requests that waited at the server at the last probe that read it
	queueRead    atomic.Bool  // queued has been read since the queue is watched
	engineRuns   atomic.Int64 // requests that it ran then
	engineRan    atomic.Int64 // the most that it has run at once
	recent       atomic.Int64 // leases; see Model.countLease
	cache        *prefixCache // has a mutex of its own
	watched      atomic.Int64 // when a batch line last asked for a place or a page for the engine, in nanoseconds since 1970
	engine       atomic.Pointer[Engine]

	info          atomic.Pointer[serverInfo]
	bootTimes     *bootTimes
	clock         func() time.Time
	lacksLogprobs atomic.Bool
	firstToken    atomic.Pointer[int64] // of FirstToken, since the server's start; nil: not known
	probeNow      chan struct{}         // requests an immediate probe
	queueNow      chan struct{}         // requests that the queue is read at once
	stopProbes    func()
}

func (f *Fleet) newBackend(m config.Model, c config.Backend) *Backend {
	b := &Backend{
		Name: c.Name, GPU: c.GPU,
		fleet: f, modelID: m.ID, checkpoint: m.Checkpoint, root: m.Root, chat: m.Chat,
		settings: f.settings, log: f.log.With(zap.String("model", m.ID), zap.String("backend", c.Name)),
		bootTimes: f.bootTimesOf(backendID{m.ID, c.Name}), clock: time.Now, turns: newTurns(), cache: newPrefixCache(f.prefixes), readFrom: burstFrom,
		probeNow: make(chan struct{}, 1), queueNow: make(chan struct{}, 1), stopProbes: func() {},
	}
	b.config.Store(&c)
	b.residents.byName, b.residents.inPlace = map[string]*resident{}, map[string]bool{}
	b.breaker = breaker.New(b.String(), f.settings.Breaker, func(from, to breaker.State) {
		b.log.Info("breaker changed", zap.String("from", string(from)), zap.String("to", string(to)))
		b.emitBreaker(from, to)
	})
	b.recallReport()
	b.life = lifecycle{state: Unreachable, reason: "not probed yet", since: b.clock(), lastUsed: b.clock()}
	if c.Launch != nil {
		b.life.state, b.life.reason = Stopped, "" // unless the first probe finds it running
	}
	return b
}

// matches reports whether the backend was built from the given configuration. Launch and sleep settings may differ,
// since they can change at run time, but not whether there is a launch section.
func (b *Backend) matches(m config.Model, c config.Backend) bool {
	own := b.cfg()
	return b.modelID == m.ID && b.checkpoint == m.Checkpoint && b.root == m.Root && b.chat == m.Chat && b.Name == c.Name && b.GPU == c.GPU &&
		own.URL.String() == c.URL.String() && own.APIKey == c.APIKey && (own.Launch == nil) == (c.Launch == nil)
}

type backendID struct{ model, backend string }

func (b *Backend) id() backendID { return backendID{b.modelID, b.Name} }

// String returns MODEL/BACKEND, for logs.
func (b *Backend) String() string { return fmt.Sprintf("%s/%s", b.modelID, b.Name) }

// URL returns the address of a path on the backend.
func (b *Backend) URL(path string) *url.URL { return b.address.Load().base.JoinPath(path) }

// SchedulesByPriority reports whether the backend's queue is ordered by the field priority of requests, the lowest first.
func (b *Backend) SchedulesByPriority() bool { return b.cfg().SchedulingPolicy == "priority" }

// Checkpoint returns the name that the backend serves its model under.
func (b *Backend) Checkpoint() string { return b.checkpoint }

// TakesLogprobTokenIDs reports whether logprob_token_ids may be sent to the backend: the operator says that it spoils no other
// request there, and its server has it.
func (b *Backend) TakesLogprobTokenIDs() bool {
	return b.cfg().LogprobTokenIDs && b.Server().TakesLogprobTokenIDs()
}

// CompletionsURL returns the address of the completions endpoint. It must not be modified.
func (b *Backend) CompletionsURL() *url.URL { return b.address.Load().completions }

// ChatURL returns the address of the endpoint of chat completions. It must not be modified.
func (b *Backend) ChatURL() *url.URL { return b.address.Load().chat }

// Authorize sets the backend's API key, if one is configured.
func (b *Backend) Authorize(h http.Header) {
	if key := b.cfg().APIKey.Reveal(); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// State returns the backend's state and, if it is not ready, the reason.
func (b *Backend) State() (State, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life.state, b.life.reason
}

func (b *Backend) is(s State) bool {
	state, _ := b.State()
	return state == s
}

// Breaker returns the state of the backend's breaker.
func (b *Backend) Breaker() breaker.State { return b.breaker.State() }

// RecentAttempts returns the outcomes of the last attempts at the backend, oldest first.
func (b *Backend) RecentAttempts() []breaker.Observation { return b.breaker.Recent() }

// InFlight returns the number of attempts in flight.
func (b *Backend) InFlight() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight
}

// MaxModelLen returns the context length in tokens that the backend reported; 0 if it did not.
func (b *Backend) MaxModelLen() int64 { return b.info.Load().maxModelLen }

// LacksLogprobs reports whether a response had no log-probabilities although the request asked for them. A restart of the
// backend resets it.
func (b *Backend) LacksLogprobs() bool { return b.lacksLogprobs.Load() }

// SetLacksLogprobs records such a response.
func (b *Backend) SetLacksLogprobs() { b.lacksLogprobs.Store(true) }

// Version returns the vLLM version that the backend reported; empty if it did not.
func (b *Backend) Version() string { return b.info.Load().version }

// VLLM returns the parsed Version.
func (b *Backend) VLLM() validate.Version { return b.Server().Version }

// Server returns what is known of the fields that the backend's server can serve. It must not be modified.
func (b *Backend) Server() *validate.Server { return &b.info.Load().server }
