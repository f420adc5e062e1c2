// Package fleet is the pool of models and their backends: it probes the backends, manages their lifecycle (launch,
// sleep, stop, warm windows) and leases a backend to each attempt. A lease goes to a backend only if its lifecycle and
// its circuit breaker permit it. Of several gateways on one PostgreSQL database, one at a time starts or stops a backend.
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
	observer    observer
	tasks       taskGroup
	fences      fences
	leases      *leases // nil outside a cluster
	cluster     cluster

	mu        sync.Mutex // guards the fields below, and replacing the catalogue
	settings  Settings
	started   bool
	bootTimes map[backendID]*bootTimes // kept across reloads

	booked    atomic.Pointer[[]BookedWindow]
	firstSeen firstSeen
	reports   reports
	prefixes  *prefixes // of all models; kept across reloads
}

// catalogue is one version of the models. It is immutable and replaced as a whole.
type catalogue struct {
	models       []*Model
	byID         map[string]*Model
	byCheckpoint map[string]*Model
}

// New returns a fleet; no backend is contacted before Start. Probes use transport. db holds boot times, reports
// of backends, booked windows and operator commands; if it is nil there are none.
func New(models []config.Model, s Settings, transport http.RoundTripper, db *database.DB, log *zap.Logger) *Fleet {
	f := &Fleet{transport: transport, log: log, db: db, settings: s, bootTimes: map[backendID]*bootTimes{}, prefixes: newPrefixes(), transitions: newTransitions()}
	f.booked.Store(&[]BookedWindow{})
	f.firstSeen.started = time.Now()
	f.firstSeen.times.Store(&map[string]time.Time{})
	f.reports.latest = map[backendID]serverInfo{}
	f.catalogue.Store(f.build(models, nil))
	return f
}

// Start reads the boot times of earlier runs and what their backends reported, probes every backend once, so that the
// first request finds known states and running backends are recognized, and then probes until Close.
func (f *Fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db != nil {
		f.writeCtx = context.WithoutCancel(ctx)
		if err := f.loadBootTimes(ctx); err != nil {
			return err
		}
		if err := f.loadReports(ctx); err != nil {
			return err
		}
		if err := f.recordModels(ctx, f.Models()); err != nil {
			return err
		}
	}
	f.tasks.start(ctx)
	backends := f.catalogue.Load().backends()
	var first sync.WaitGroup
	for _, b := range backends {
		first.Go(func() { b.probe(ctx) })
	}
	first.Wait()
	if f.leases != nil { // a boot that another gateway has begun
		f.pollLeases(ctx)
	}
	for _, b := range backends {
		f.startProbes(b)
	}
	f.started = true
	f.tasks.run(f.runReconciler)
	return nil
}

// Close cancels probes and running commands and waits for them. It does not stop models.
func (f *Fleet) Close() { f.tasks.stop() }

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
	next := f.build(models, reusable)
	f.recordNewModels(next.models)
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

// build returns a catalogue of the models that reuses backends with an unchanged configuration.
func (f *Fleet) build(models []config.Model, reusable []*Backend) *catalogue {
	c := &catalogue{byID: map[string]*Model{}, byCheckpoint: map[string]*Model{}}
	for _, mc := range models {
		m := &Model{config: mc, fleet: f}
		for _, bc := range mc.Backends {
			i := slices.IndexFunc(reusable, func(b *Backend) bool { return b.matches(mc, bc) })
			if i >= 0 {
				reusable[i].reconfigure(&bc)
				m.backends = append(m.backends, reusable[i])
				continue
			}
			m.backends = append(m.backends, f.newBackend(mc, bc))
		}
		c.models = append(c.models, m)
		for _, id := range append([]string{mc.ID}, mc.Aliases...) {
			c.byID[id] = m
		}
		c.byCheckpoint[mc.Checkpoint] = m
	}
	return c
}

// startProbes probes a backend until Close or until a reload removes the backend. f.mu is held.
func (f *Fleet) startProbes(b *Backend) {
	removed := make(chan struct{})
	b.stopProbes = sync.OnceFunc(func() { close(removed) })
	f.tasks.run(func(ctx context.Context) { b.probeUntil(ctx, removed) })
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

// Models returns all models in the order of the configuration. The slice must not be modified.
func (f *Fleet) Models() []*Model { return f.catalogue.Load().models }

func (c *catalogue) backends() []*Backend {
	var all []*Backend
	for _, m := range c.models {
		all = append(all, m.backends...)
	}
	return all
}
