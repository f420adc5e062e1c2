// Package fleet is the pool of models and their backends: it probes the backends, manages their lifecycle (launch,
// sleep, stop, warm windows) and leases a backend to each attempt. A lease goes to a backend only if its lifecycle and
// its circuit breaker permit it. Of several gateways on one PostgreSQL database, one starts and stops all backends.
// The requests of clients and the meaning of their responses are left to other packages.
package fleet

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/database"
	"basegate/gateway/config"
	"basegate/internal/wait"
)

// Settings are shared by all backends.
type Settings struct {
	Breaker       breaker.Settings
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
}

// Fleet holds every model of the configuration. It is safe for concurrent use.
type Fleet struct {
	transport   http.RoundTripper
	log         *zap.Logger
	db          *database.DB    // nil for commands that only query backends
	writeCtx    context.Context // of writes for which no caller's is at hand: it does not end; nil before Start
	catalogue   atomic.Pointer[catalogue]
	transitions transitions
	observer    atomic.Pointer[func(Event)] // nil before OnEvent
	tasks       wait.Loop                   // probes, commands and changes of adapters
	versions    versions
	cluster     *cluster // nil if no other gateway shares the backends

	mu        sync.Mutex // guards the fields below, and replacing the catalogue
	adapters  []Adapter  // ordered by their ids; those of models that are not configured included
	settings  Settings
	started   bool
	bootTimes map[backendID]*bootTimes // kept across reloads

	booked    atomic.Pointer[[]BookedWindow]
	made      time.Time                            // when models that are not in the database count as first configured
	firstSeen atomic.Pointer[map[string]time.Time] // by the model's id
	reports   reports
	prefixes  *prefixes // what the models of all prefix caches share
}

// catalogue is one version of the models. It is immutable and replaced as a whole.
type catalogue struct {
	base         []*Model // in the order of the configuration
	models       []*Model // the same, each with its adapters behind it
	byID         map[string]*Model
	byCheckpoint map[string]*Model
}

// New returns a fleet; no backend is contacted before Start. Probes use transport. db holds boot times, reports
// of backends, booked windows and operator commands; if it is nil there are none.
func New(models []config.Model, s Settings, transport http.RoundTripper, db *database.DB, log *zap.Logger) *Fleet {
	f := &Fleet{transport: transport, log: log, db: db, settings: s, bootTimes: map[backendID]*bootTimes{}, prefixes: newPrefixes(), transitions: newTransitions(), made: time.Now()}
	f.booked.Store(&[]BookedWindow{})
	f.firstSeen.Store(&map[string]time.Time{})
	f.reports.latest = map[backendID]serverInfo{}
	f.adapters = withConfigured(nil, models)
	f.catalogue.Store(newCatalogue(f.build(models, nil), f.adapters))
	return f
}

// Start reads the boot times of earlier runs and what their backends reported, probes every backend once, so that the
// first request finds known states and running backends are recognized, and then probes until Close.
func (f *Fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.probeAll(ctx); err != nil {
		return err
	}
	if f.cluster != nil { // another gateway may have begun a boot
		f.sync(ctx)
	}
	for _, b := range f.catalogue.Load().backends() {
		f.startProbes(b)
	}
	f.started = true
	f.tasks.Run(f.runReconciler)
	return nil
}

// Probe probes every backend once, for a command that only queries them: it starts and stops none.
func (f *Fleet) Probe(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probeAll(ctx)
}

// probeAll is what Start does before other gateways and the reconciler. f.mu is held.
func (f *Fleet) probeAll(ctx context.Context) error {
	if f.db != nil {
		f.writeCtx = context.WithoutCancel(ctx)
		if err := f.loadBootTimes(ctx); err != nil {
			return err
		}
		if err := f.loadReports(ctx); err != nil {
			return err
		}
		if err := f.recordModels(ctx, f.BaseModels()); err != nil {
			return err
		}
		current := f.catalogue.Load()
		if err := f.syncAdapters(ctx, current.configs()); err != nil {
			return err
		}
		f.catalogue.Store(newCatalogue(current.base, f.adapters))
	}
	f.tasks.Start(ctx)
	var first sync.WaitGroup
	for _, b := range f.catalogue.Load().backends() {
		first.Go(func() { b.probe(ctx) })
	}
	first.Wait()
	return nil
}

// Close cancels probes and running commands and waits for them. It does not stop models.
func (f *Fleet) Close() {
	f.tasks.Close()
	f.resign()
}

// Reload replaces the models. A backend whose configuration is unchanged keeps its state, its breaker and its in-flight
// requests; requests in flight at a removed backend continue.
func (f *Fleet) Reload(models []config.Model, s Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.catalogue.Load().backends()
	reusable := before
	if s != f.settings {
		f.settings = s
		reusable = nil // their breakers and probes have the old settings
	}
	base := f.build(models, reusable)
	f.recordNewModels(base, models)
	next := newCatalogue(base, f.adapters)
	f.catalogue.Store(next)
	for _, b := range next.backends() {
		if !slices.Contains(reusable, b) && f.started {
			b.probeSoon() // it has not been probed yet
			f.startProbes(b)
		}
	}
	for _, b := range before {
		if !slices.Contains(next.backends(), b) {
			b.stopProbes()
		}
	}
}

// build returns the models, which reuse backends with an unchanged configuration.
func (f *Fleet) build(models []config.Model, reusable []*Backend) (base []*Model) {
	caches := 0
	for _, mc := range models {
		m := &Model{config: mc, fleet: f}
		for n := range mc.Backends {
			before := len(m.backends)
			for _, bc := range mc.Backends[n].Expand() {
				i := slices.IndexFunc(reusable, func(b *Backend) bool { return b.matches(mc, bc) })
				if i >= 0 {
					reusable[i].reconfigure(&bc)
					m.backends = append(m.backends, reusable[i])
					continue
				}
				m.backends = append(m.backends, f.newBackend(mc, bc))
			}
			if mc.Backends[n].Replicas != nil {
				m.replicas = append(m.replicas, &replicas{backends: m.backends[before:]})
			}
		}
		base = append(base, m)
		if m.steers() {
			caches += len(m.backends)
		}
	}
	f.prefixes.maxBlocks.Store(cacheMemory / blockMemory / int64(max(caches, 1)))
	return base
}

func newCatalogue(base []*Model, adapters []Adapter) *catalogue {
	c := &catalogue{base: base, byID: map[string]*Model{}, byCheckpoint: map[string]*Model{}}
	configs := c.configs()
	for _, m := range base {
		c.models = append(c.models, m)
		for _, id := range append([]string{m.ID()}, m.Aliases()...) {
			c.byID[id] = m
		}
		c.byCheckpoint[m.Checkpoint()] = m
		c.addAdapters(m, adapters, configs)
	}
	return c
}

// startProbes probes a backend until Close or until a reload removes the backend. f.mu is held.
func (f *Fleet) startProbes(b *Backend) {
	removed := make(chan struct{})
	b.stopProbes = sync.OnceFunc(func() { close(removed) })
	f.tasks.Run(func(ctx context.Context) { b.probeUntil(ctx, removed) })
}

// Model returns a model by its short id or one of its aliases.
func (f *Fleet) Model(id string) (*Model, bool) {
	m, ok := f.catalogue.Load().byID[id]
	return m, ok
}

// ByCheckpoint returns a model by its checkpoint's name, for clients that send it instead of the short id.
func (f *Fleet) ByCheckpoint(name string) (*Model, bool) {
	m, ok := f.catalogue.Load().byCheckpoint[name]
	return m, ok
}

// Models returns all models in the order of the configuration, the adapters of each behind it. The slice must not be modified.
func (f *Fleet) Models() []*Model { return f.catalogue.Load().models }

// BaseModels returns the models that are no adapters, in the order of the configuration. The slice must not be modified.
func (f *Fleet) BaseModels() []*Model { return f.catalogue.Load().base }

func (c *catalogue) backends() []*Backend {
	var all []*Backend
	for _, m := range c.base {
		all = append(all, m.backends...)
	}
	return all
}
