package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
)

type residentState uint8

const (
	residentWaits    residentState = iota // for one of max_loaded places
	residentLoads                         // vLLM was asked to load it
	residentLoaded                        // requests may use it
	residentRetires                       // it is unloaded when the last request that uses it has ended
	residentFailed                        // the backend cannot load it; it is asked again after failureCooldown or its restart
	residentDropped                       // the gateway knows nothing of it any more
	residentStateEnd                      // no state
)

// residentStates holds what each state means.
var residentStates = [residentStateEnd]struct {
	name  string
	place bool // it takes one of the places
	takes bool // further requests may wait for it, or use it
}{
	residentWaits:   {name: "waiting", takes: true},
	residentLoads:   {name: "loading", place: true, takes: true},
	residentLoaded:  {name: "loaded", place: true, takes: true},
	residentRetires: {name: "retiring", place: true},
	residentFailed:  {name: "failed"},
	residentDropped: {name: "dropped"},
}

// resident is an adapter at a backend. residents.mu guards its fields, except name, adapter and settled.
type resident struct {
	name    string
	adapter *Adapter // nil if the backend had it before this gateway knew of it
	state   residentState
	users   int           // requests that use it or wait for it
	used    bool          // by a request of this gateway
	at      time.Time     // when a request last began or ended to use it, or when it failed
	err     error         // why it was not loaded
	settled chan struct{} // closed when it has been loaded, or will not be
}

// residents are the adapters at a backend. Of what changes them at vLLM, one request at a time is under way.
type residents struct {
	mu      sync.Mutex
	byName  map[string]*resident // without those that wait
	waiting []*resident          // first come, first served
	busy    bool                 // vLLM was asked to load or unload one
	changes int64                // that have been asked for
	inPlace map[string]bool      // names that vLLM lists though its engine has dropped them: they are loaded anew in place
}

// ErrSuperseded is returned for an adapter that was added again while a request waited for it, which should use Model.Current.
var ErrSuperseded = errors.New("the adapter has a newer version")

// LoadAdapter waits until the backend has loaded the adapter of the model, until Release. wait is called if it is not loaded yet, and
// what it returns at the end. The error is an *AdapterError, ErrSuperseded, or the cause of ctx.
func (l *Lease) LoadAdapter(ctx context.Context, m *Model, wait func() (end func())) error {
	if m.Current().adapter.Version != m.adapter.Version {
		return ErrSuperseded
	}
	r, err := l.claim(m.adapter)
	if err != nil {
		return err
	}
	l.resident = r
	select {
	case <-r.settled:
		return r.err // written before settled was closed
	default:
	}
	defer wait()()
	select {
	case <-r.settled:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ForgetAdapter records that the backend does not know the adapter of the attempt, as after a restart.
func (l *Lease) ForgetAdapter() {
	s := &l.residents
	s.mu.Lock()
	if r := l.resident; s.byName[r.name] == r {
		delete(s.byName, r.name)
		r.state = residentDropped
	}
	s.mu.Unlock()
	l.arrangeAdapters()
}

// releaseAdapter ends the use of the attempt's adapter.
func (l *Lease) releaseAdapter() {
	r := l.resident
	if r == nil {
		return
	}
	l.resident = nil
	s := &l.residents
	s.mu.Lock()
	r.users--
	r.at = l.clock()
	if r.users == 0 && r.state == residentWaits {
		r.state = residentDropped
		s.waiting = slices.DeleteFunc(s.waiting, func(other *resident) bool { return other == r })
	}
	s.mu.Unlock()
	l.arrangeAdapters()
}

// hasAdapter reports whether the backend has loaded an adapter, by its name at vLLM.
func (b *Backend) hasAdapter(name string) bool {
	b.residents.mu.Lock()
	defer b.residents.mu.Unlock()
	r := b.residents.byName[name]
	return r != nil && r.state == residentLoaded
}

// claim returns the adapter at the backend with one more user. One that is not there is loaded, once for all who wait for it.
func (b *Backend) claim(a *Adapter) (*resident, error) {
	s, name := &b.residents, a.Name()
	s.mu.Lock()
	r := s.byName[name]
	if i := slices.IndexFunc(s.waiting, func(r *resident) bool { return r.name == name }); i >= 0 {
		r = s.waiting[i]
	}
	if r != nil && r.state == residentFailed && b.clock().Sub(r.at) < failureCooldown {
		s.mu.Unlock()
		return nil, r.err
	}
	if r == nil || !residentStates[r.state].takes {
		r = &resident{name: name, adapter: a, settled: make(chan struct{})}
		s.waiting = append(s.waiting, r)
	}
	r.users++
	r.used, r.at = true, b.clock()
	s.mu.Unlock()
	b.arrangeAdapters()
	return r, nil
}

// placed returns the adapters that take a place, the least recently used first. residents.mu is held.
func (s *residents) placed() []*resident {
	all := slices.SortedFunc(maps.Values(s.byName), func(a, b *resident) int { return a.at.Compare(b.at) })
	return slices.DeleteFunc(all, func(r *resident) bool { return !residentStates[r.state].place })
}

func (b *Backend) adapterPlaces() int { return max(b.cfg().MaxLoaded, 1) }

// arrangeAdapters asks vLLM for the next change, if one is due: to unload an outdated adapter that is idle, or to load the first one
// that waits. For that, the least recently used one that is idle makes room; if none is, that one takes no further requests.
func (b *Backend) arrangeAdapters() {
	s := &b.residents
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return
	}
	var idle, oldest *resident
	retiring := false
	placed := s.placed()
	for _, r := range placed {
		if r.users > 0 {
			retiring = retiring || r.state == residentRetires
			oldest = cmp.Or(oldest, r)
			continue
		}
		if b.fleet.isOutdated(r.name, r.used) {
			b.changeAdapter(r, b.unload)
			return
		}
		idle = cmp.Or(idle, r)
	}
	switch {
	case len(s.waiting) == 0:
	case len(placed) < b.adapterPlaces():
		r := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.byName[r.name], r.state = r, residentLoads
		b.changeAdapter(r, b.load)
	case idle != nil:
		b.changeAdapter(idle, b.unload)
	case !retiring && oldest != nil:
		oldest.state = residentRetires
	}
}

// changeAdapter makes a change at vLLM in the background. residents.mu is held.
func (b *Backend) changeAdapter(r *resident, change func(context.Context, *resident)) {
	s := &b.residents
	s.busy = true
	s.changes++
	b.fleet.tasks.Run(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		change(ctx, r)
		s.mu.Lock()
		s.busy = false
		s.mu.Unlock()
		b.arrangeAdapters()
	})
}

// loadTimeout limits the load of an adapter, whose files may have to be fetched.
const loadTimeout = 5 * time.Minute

// load loads an adapter. What the server has is listed before: another gateway may have loaded some.
func (b *Backend) load(ctx context.Context, r *resident) {
	s := &b.residents
	if listed, err := b.listAdapters(ctx); err == nil {
		s.mu.Lock()
		b.observe(listed)
		if len(s.placed()) > b.adapterPlaces() { // one that was listed has to go first
			delete(s.byName, r.name)
			r.state = residentDropped
			if r.users > 0 {
				r.state, s.waiting = residentWaits, slices.Insert(s.waiting, 0, r)
			}
			s.mu.Unlock()
			return
		}
		present := slices.Contains(listed, r.name) && !s.inPlace[r.name]
		s.mu.Unlock()
		if present {
			b.settle(r, nil)
			return
		}
	}
	if b.fleet.isOutdated(r.name, false) {
		b.settle(r, ErrSuperseded)
		return
	}
	if r.adapter.Changed() {
		b.log.Warn("the files of an adapter have changed since it was added: add it again, or vLLM may mix old and new weights",
			zap.String("adapter", r.adapter.ID), zap.String("path", r.adapter.Path))
	}
	s.mu.Lock()
	inPlace := s.inPlace[r.name]
	s.mu.Unlock()
	began := b.clock()
	if err := b.postLoad(ctx, r.adapter, r.name, inPlace); err != nil {
		b.log.Warn("adapter not loaded", zap.String("adapter", r.name), zap.String("reason", err.Detail))
		b.settle(r, err)
		return
	}
	b.log.Info("adapter loaded", zap.String("adapter", r.name), zap.Duration("took", b.clock().Sub(began)))
	b.settle(r, nil)
}

func (b *Backend) settle(r *resident, err error) {
	s := &b.residents
	s.mu.Lock()
	defer s.mu.Unlock()
	r.err, r.at = err, b.clock()
	failed, _ := errors.AsType[*AdapterError](err)
	switch {
	case err == nil:
		r.state = residentLoaded
		delete(s.inPlace, r.name)
	case failed != nil && failed.lasts:
		r.state = residentFailed
	default:
		r.state = residentDropped
		delete(s.byName, r.name)
	}
	close(r.settled)
	for name, other := range s.byName { // of outdated versions
		if other.state == residentFailed && r.at.Sub(other.at) >= failureCooldown {
			delete(s.byName, name)
		}
	}
}

// unload unloads an adapter. If that fails, those that wait for its place go elsewhere.
func (b *Backend) unload(ctx context.Context, r *resident) {
	s := &b.residents
	s.mu.Lock()
	if r.users > 0 { // since the change was decided on
		s.mu.Unlock()
		return
	}
	r.state = residentRetires
	s.mu.Unlock()
	response, err := b.postUnload(ctx, r.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && (response.Status == http.StatusOK || response.Status == http.StatusNotFound):
		b.log.Info("adapter unloaded", zap.String("adapter", r.name))
	case err == nil && response.Status == http.StatusInternalServerError: // the engine has dropped it already, and the server lists it for ever
		s.inPlace[r.name] = true
	default:
		r.state, r.at = residentLoaded, b.clock()
		if err == nil {
			err = fmt.Errorf("/v1/unload_lora_adapter answered %d", response.Status)
		}
		b.log.Warn("adapter not unloaded", zap.String("adapter", r.name), zap.Error(err))
		for _, w := range s.waiting {
			w.state, w.err = residentDropped, &AdapterError{Adapter: w.adapter.ID, Said: "it could not unload another adapter", Detail: err.Error()}
			close(w.settled)
		}
		s.waiting = nil
		return
	}
	r.state = residentDropped
	delete(s.byName, r.name)
}

// listAdapters returns the names of the adapters of gateways that the server has.
func (b *Backend) listAdapters(ctx context.Context) ([]string, error) {
	models, err := b.read(ctx, "/v1/models")
	return adapterNames(gjson.GetBytes(models, "data")), err
}

// adapterNames returns the names in a response of /v1/models that are those of adapters of gateways.
func adapterNames(models gjson.Result) (names []string) {
	for _, m := range models.Array() {
		if _, _, ok := parseName(m.Get("id").Str); ok && m.Get("parent").Str != "" {
			names = append(names, m.Get("id").Str)
		}
	}
	return names
}

// observeAdapters applies what a probe has listed, unless an adapter has been loaded or unloaded since it began, when there had been
// that many changes. After a restart of the server, those that it could not load are tried again.
func (b *Backend) observeAdapters(models gjson.Result, changes int64, restarted bool) {
	s := &b.residents
	s.mu.Lock()
	if !s.busy && s.changes == changes {
		if restarted {
			maps.DeleteFunc(s.byName, func(_ string, r *resident) bool { return r.state == residentFailed })
			clear(s.inPlace)
		}
		b.observe(adapterNames(models))
	}
	s.mu.Unlock()
	b.arrangeAdapters()
}

// observe makes what is known the same as what the server has listed. residents.mu is held.
func (b *Backend) observe(listed []string) {
	s := &b.residents
	for name, r := range s.byName {
		if (r.state == residentLoaded || r.state == residentRetires) && !slices.Contains(listed, name) {
			r.state = residentDropped
			delete(s.byName, name)
		}
	}
	maps.DeleteFunc(s.inPlace, func(name string, _ bool) bool { return !slices.Contains(listed, name) })
	for _, name := range listed {
		if r := s.byName[name]; r == nil && !s.inPlace[name] {
			settled := make(chan struct{})
			close(settled)
			s.byName[name] = &resident{name: name, state: residentLoaded, settled: settled}
		}
	}
}

func (b *Backend) adapterChanges() int64 {
	b.residents.mu.Lock()
	defer b.residents.mu.Unlock()
	return b.residents.changes
}

// AdapterSnapshot is the state of an adapter at a backend.
type AdapterSnapshot struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	InUse  int    `json:"in_use"` // requests that use it or wait for it
	Reason string `json:"reason,omitempty"`
}

// Adapters returns the adapters at the backend, ordered by their names at vLLM.
func (b *Backend) Adapters() []AdapterSnapshot {
	s := &b.residents
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []AdapterSnapshot{}
	for _, r := range slices.Concat(slices.Collect(maps.Values(s.byName)), s.waiting) {
		a := AdapterSnapshot{Name: r.name, State: residentStates[r.state].name, InUse: r.users}
		if failed, ok := errors.AsType[*AdapterError](r.err); ok {
			a.Reason = failed.Detail
		}
		all = append(all, a)
	}
	slices.SortStableFunc(all, func(a, b AdapterSnapshot) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
