// Package fleet knows where a model runs: its backends, whether each is ready, how busy it is, and which one the next
// attempt goes to. It probes backends by itself and asks each one's breaker before it hands the backend out. What is
// sent to a backend, and what its answer means, is not its business.
package fleet

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/config"
	"basegate/database"
)

// Settings are what all backends share.
type Settings struct {
	Breaker       breaker.Settings
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
}

// Fleet holds every model of the configuration. It is safe for concurrent use.
type Fleet struct {
	transport http.RoundTripper
	log       *zap.Logger
	store     *store // of boots, windows and orders; nil for commands that only look
	catalogue atomic.Pointer[catalogue]
	moves     moves
	crew      crew

	mu       sync.Mutex // guards what follows, and swaps of catalogue
	settings Settings
	started  bool
	measured map[string]*boots // by model and backend; they outlive a reload
	booked   atomic.Pointer[[]BookedWindow]
}

// catalogue is one version of the models; it is replaced as a whole.
type catalogue struct {
	models       []*Model
	byID         map[string]*Model
	byCheckpoint map[string]*Model
}

// New builds the fleet; nothing is asked of a backend before Start. Probes go through transport. Boot times, booked
// windows and the operator's orders are kept in db; without one there are none.
func New(models []config.Model, s Settings, transport http.RoundTripper, db *database.DB, log *zap.Logger) *Fleet {
	f := &Fleet{transport: transport, log: log, settings: s, measured: map[string]*boots{}}
	f.booked.Store(&[]BookedWindow{})
	if db != nil {
		f.store = &store{db: db}
	}
	f.catalogue.Store(f.build(models, nil))
	return f
}

// Start reads what earlier boots took, probes every backend once, so that the first request finds known states and what
// runs already is adopted, and goes on probing until Close.
func (f *Fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.store != nil {
		f.store.writing = context.WithoutCancel(ctx)
		if err := f.readBoots(ctx); err != nil {
			return err
		}
	}
	f.crew.start(ctx)
	backends := f.catalogue.Load().backends()
	var first sync.WaitGroup
	for _, b := range backends {
		first.Go(func() { b.probe(ctx) })
	}
	first.Wait()
	for _, b := range backends {
		f.watch(b)
	}
	f.started = true
	f.crew.run(f.tend)
	return nil
}

// Close ends the probes and whatever commands still run, and waits for them. Models that run are left running.
func (f *Fleet) Close() { f.crew.stop() }

// Reload takes over another list of models. A backend that stays as it is keeps its state, its breaker and what it
// has in flight; requests that are under way on one that went are not disturbed.
func (f *Fleet) Reload(models []config.Model, s Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := f.catalogue.Load().backends()
	old := gone
	if s != f.settings {
		f.settings = s
		old = nil // breakers and probes of the old settings serve no longer
	}
	next := f.build(models, old)
	f.catalogue.Store(next)
	for _, b := range next.backends() {
		if !slices.Contains(old, b) && f.started {
			b.probeSoon() // it has not been probed yet
			f.watch(b)
		}
	}
	for _, b := range gone {
		if !slices.Contains(next.backends(), b) {
			b.leave()
		}
	}
}

// build makes a catalogue, taking over those of the old backends that are configured just as they were.
func (f *Fleet) build(models []config.Model, old []*Backend) *catalogue {
	c := &catalogue{byID: map[string]*Model{}, byCheckpoint: map[string]*Model{}}
	for _, mc := range models {
		m := &Model{config: mc, moves: &f.moves}
		for _, bc := range mc.Backends {
			at := slices.IndexFunc(old, func(b *Backend) bool { return b.same(mc, bc) })
			if at >= 0 {
				old[at].config.Store(&bc)
				m.backends = append(m.backends, old[at])
				continue
			}
			m.backends = append(m.backends, f.newBackend(mc, bc))
		}
		c.models = append(c.models, m)
		c.byID[mc.ID] = m
		c.byCheckpoint[mc.Checkpoint] = m
	}
	return c
}

// watch begins the probes of a backend, which end with the fleet or when the backend leaves it; f.mu is held.
func (f *Fleet) watch(b *Backend) {
	gone := make(chan struct{})
	b.leave = sync.OnceFunc(func() { close(gone) })
	f.crew.run(func(ctx context.Context) { b.watch(ctx, gone) })
}

// Model finds a model by its short id.
func (f *Fleet) Model(id string) (*Model, bool) {
	m, ok := f.catalogue.Load().byID[id]
	return m, ok
}

// ByCheckpoint finds a model by its checkpoint's name, for clients that send that in place of the short id.
func (f *Fleet) ByCheckpoint(name string) (*Model, bool) {
	m, ok := f.catalogue.Load().byCheckpoint[name]
	return m, ok
}

// Models lists all models in the order of the configuration. The slice is not to be changed.
func (f *Fleet) Models() []*Model { return f.catalogue.Load().models }

func (c *catalogue) backends() []*Backend {
	var all []*Backend
	for _, m := range c.models {
		all = append(all, m.backends...)
	}
	return all
}

// String names the backend in logs.
func (b *Backend) String() string { return fmt.Sprintf("%s/%s", b.modelID, b.Name) }
