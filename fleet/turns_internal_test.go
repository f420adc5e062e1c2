package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/budget/admission"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// engine is a server that runs some of the requests that are in flight at its backend, while the others wait.
type engine struct {
	*httptest.Server
	backend  atomic.Pointer[Backend]
	capacity atomic.Int64
	silent   atomic.Bool // it does not report its load
	failing  atomic.Bool // it does not answer when it is asked for its load
	down     atomic.Bool
}

func newEngine(tb testing.TB, capacity int64) *engine {
	tb.Helper()
	e := new(engine)
	e.capacity.Store(capacity)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := e.backend.Load()
		switch {
		case e.down.Load() || b == nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"org/M","max_model_len":100}]}`)
		case r.URL.Path == "/metrics" && e.failing.Load():
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/metrics" && !e.silent.Load():
			running := min(b.InFlight(), e.capacity.Load())
			fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n", running, b.InFlight()-running)
		}
	}))
	tb.Cleanup(e.Close)
	return e
}

// serveEngines returns a model with the engines as its backends, which are probed until the test ends.
func serveEngines(tb testing.TB, engines ...*engine) *Model {
	tb.Helper()
	model := config.Model{ID: "m", Checkpoint: "org/M"}
	for i, e := range engines {
		u, err := url.Parse(e.URL)
		if err != nil {
			tb.Fatal(err)
		}
		model.Backends = append(model.Backends, config.Backend{Name: fmt.Sprint("b", i), URL: u})
	}
	transport := new(http.Transport)
	tb.Cleanup(transport.CloseIdleConnections)
	f := New([]config.Model{model}, Settings{
		Breaker:       breaker.Settings{ConsecutiveFailures: 2, OpenFor: time.Minute, HalfOpenRequests: 1},
		ProbeInterval: 10 * time.Millisecond, ProbeTimeout: 5 * time.Minute,
	}, transport, nil, zap.NewNop())
	if err := f.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.Close)
	m, _ := f.Model("m")
	for i, e := range engines {
		e.backend.Store(m.backends[i])
		poll.Until(tb, "the backend is ready", func() bool { return m.backends[i].is(Ready) })
	}
	return m
}

func acquireFor(tb testing.TB, m *Model, account string) *Lease {
	tb.Helper()
	l, err := m.Acquire(nil, Caller{Account: account}, Prefix{})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// fill leases the model's only backend for more attempts of an account than its engine runs, and waits until the limit is that
// of a full engine of 16.
func fill(t *testing.T, m *Model, e *engine, account string) (leases []*Lease) {
	t.Helper()
	e.silent.Store(true) // or the limit might come before all have their leases
	for range 32 {
		leases = append(leases, acquireFor(t, m, account))
	}
	e.silent.Store(false)
	awaitLimit(t, m.backends[0], 16+minQueued)
	return leases
}

func awaitLimit(t *testing.T, b *Backend, want int) {
	t.Helper()
	poll.Until(t, fmt.Sprint("the limit is ", want), func() bool {
		b.turns.mu.Lock()
		defer b.turns.mu.Unlock()
		return b.turns.limit == want
	})
}

// heldRequest is the outcome of a request that was held back.
type heldRequest struct {
	account string
	lease   *Lease
	err     error
}

// hold begins requests of accounts that are held back at a backend, one after another, and returns their outcomes.
func hold(ctx context.Context, t *testing.T, m *Model, b *Backend, accounts ...string) <-chan heldRequest {
	t.Helper()
	outcomes := make(chan heldRequest, len(accounts))
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	before := b.Held()
	for i, account := range accounts {
		waiting.Go(func() {
			l, err := m.AcquireInTurn(ctx, nil, Caller{Account: account}, Prefix{})
			outcomes <- heldRequest{account, l, err}
		})
		poll.Until(t, "the request is held back", func() bool { return b.Held() == before+i+1 })
	}
	return outcomes
}

func releaseAll(leases []*Lease) {
	for _, l := range leases {
		l.Release()
	}
}

// What one account sends to a full backend delays others by a turn, and not until all of it has ended.
func TestAccountsTakeTurnsAtAFullBackend(t *testing.T) {
	e := newEngine(t, 16)
	m := serveEngines(t, e)
	b := m.backends[0]
	leases := fill(t, m, e, "a")
	if _, err := m.Acquire(nil, Caller{Account: "b"}, Prefix{}); !errors.Is(err, ErrFull) {
		t.Fatalf("Acquire at a full backend: %v, want ErrFull", err)
	}
	outcomes := hold(t.Context(), t, m, b, "a", "a", "a", "b", "c", "b")
	releaseAll(leases[:14])
	if n := b.Held(); n != 6 {
		t.Fatalf("while the engine is full: got %d requests held, want 6", n)
	}
	var order []string
	for _, l := range leases[14:20] {
		l.Release()
		next := <-outcomes
		if next.err != nil {
			t.Fatal(next.err)
		}
		order = append(order, next.account)
		defer next.lease.Release()
	}
	if want := []string{"a", "b", "c", "a", "b", "a"}; !slices.Equal(order, want) {
		t.Errorf("got turns %v, want %v", order, want)
	}
	releaseAll(leases[20:])
}

func TestARequestThatIsGivenUpLosesItsTurn(t *testing.T) {
	e := newEngine(t, 16)
	m := serveEngines(t, e)
	b := m.backends[0]
	leases := fill(t, m, e, "a")
	gone := errors.New("the client has gone")
	ctx, leave := context.WithCancelCause(t.Context())
	leaves := hold(ctx, t, m, b, "a", "b")
	stays := hold(t.Context(), t, m, b, "b")
	leave(gone)
	for range 2 {
		if o := <-leaves; !errors.Is(o.err, gone) {
			t.Errorf("got %v, want the cause of the context's end", o.err)
		}
	}
	if n := b.Held(); n != 1 {
		t.Errorf("got %d requests held, want 1", n)
	}
	releaseAll(leases)
	o := <-stays
	if o.err != nil {
		t.Fatal(o.err)
	}
	o.lease.Release()
	if s := b.turns.places.Stats(); s.Running != 0 || s.Accounts != 0 || b.InFlight() != 0 {
		t.Errorf("after all: got %+v and %d attempts in flight, want none", s, b.InFlight())
	}
}

// Nothing is held for ever because of an engine that does not say any more how full it is, or that is gone.
func TestHeldRequestsGoOnWithoutAReading(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engine, *Backend)
		want   error
	}{
		"no such metric": {func(e *engine, _ *Backend) { e.silent.Store(true) }, nil},
		"no answer": {func(e *engine, b *Backend) {
			e.failing.Store(true)
			b.turns.mu.Lock()
			b.turns.read = time.Time{}
			b.turns.mu.Unlock()
		}, nil},
		"it has room":     {func(e *engine, _ *Backend) { e.capacity.Store(1000) }, nil},
		"it is not ready": {func(e *engine, _ *Backend) { e.down.Store(true) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, 16)
			m := serveEngines(t, e)
			leases := fill(t, m, e, "a")
			defer releaseAll(leases)
			outcomes := hold(t.Context(), t, m, m.backends[0], "a", "b")
			c.change(e, m.backends[0])
			for range 2 {
				if o := <-outcomes; !errors.Is(o.err, c.want) {
					t.Errorf("got %v, want %v", o.err, c.want)
				} else {
					o.lease.Release()
				}
			}
		})
	}
}

// Other gateways and other models may use the same engine, so the limit follows from the share of it that the attempts have.
func TestTheLimitFollowsWhatTheEngineReports(t *testing.T) {
	type reading struct{ running, waiting int64 }
	for name, c := range map[string]struct {
		inFlight int
		readings []reading
		limits   []int // after each; 0: none
	}{
		"nobody waits":                {40, []reading{{40, 0}}, []int{0}},
		"a full engine":               {320, []reading{{16, 304}, {16, 304}, {16, 304}, {16, 304}, {16, 304}}, []int{160, 80, 40, 20, 18}},
		"one that takes a burst in":   {100, []reading{{3, 97}, {30, 70}, {100, 0}}, []int{50, 33, 0}},
		"one that others use":         {20, []reading{{16, 24}}, []int{10}},
		"one with sequences of 4":     {10, []reading{{16, 24}}, []int{6}},
		"a large one":                 {400, []reading{{256, 144}}, []int{256 + 32}},
		"one that others have filled": {0, []reading{{16, 300}}, []int{minQueued}},
	} {
		t.Run(name, func(t *testing.T) {
			turns := newTurns()
			for range c.inFlight {
				turns.places.Try(new(admission.Turn))
			}
			var got []int
			for _, r := range c.readings {
				turns.observe(time.Now(), r.running, r.waiting)
				got = append(got, turns.limit)
			}
			if !slices.Equal(got, c.limits) {
				t.Errorf("got limits %v, want %v", got, c.limits)
			}
		})
	}
}

// firstPlace returns a place for a line at a backend with room, once its queue has been read.
func firstPlace(t *testing.T, m *Model, most int) (p *Place) {
	t.Helper()
	poll.Until(t, "there is a place for a line", func() (found bool) {
		var err error
		p, err = m.AcquirePlace(Caller{}, most)
		return err == nil
	})
	return p
}

// Requests that other gateways, or the few of this one, left waiting at the server are not seen before its queue is read.
func TestNoLineBeginsBeforeTheQueueIsRead(t *testing.T) {
	e := newEngine(t, 1)
	m := serveEngines(t, e)
	b := m.backends[0]
	var live []*Lease
	for range busyFrom - 1 { // fewer than make the queue be read
		live = append(live, acquireFor(t, m, ""))
	}
	for range 2 {
		if _, err := m.AcquirePlace(Caller{}, 20); !errors.Is(err, ErrNoPlace) {
			t.Fatalf("a line before the queue is read: %v, want ErrNoPlace", err)
		}
		poll.Until(t, "the queue has been read", b.queueRead.Load)
		if _, err := m.AcquirePlace(Caller{}, 20); !errors.Is(err, ErrNoPlace) {
			t.Fatalf("a line while requests wait at the server: %v, want ErrNoPlace", err)
		}
		b.queued.Store(0) // as long ago, when nothing waited
		b.watched.Store(0)
	}
	releaseAll(live)
	firstPlace(t, m, 20).Release()
}

// Live requests are not held back because of batch lines, and no line begins while live ones are held back.
func TestLinesComeAfterHeldRequests(t *testing.T) {
	e := newEngine(t, 16)
	m := serveEngines(t, e)
	b := m.backends[0]
	places := []*Place{firstPlace(t, m, 20)}
	defer places[0].Release()
	for range 19 {
		p, err := m.AcquirePlace(Caller{}, 20)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		places = append(places, p)
	}
	lines := make([]*Lease, len(places))
	for i := range lines {
		lines[i] = acquireFor(t, m, "") // has its place already
	}
	poll.Until(t, "the queue has been read", func() bool { return b.queued.Load() == 4 })
	if b.turns.limited() {
		t.Error("attempts are limited because of lines, which may be what waits")
	}
	releaseAll(lines)
	poll.Until(t, "the queue has been read again", func() bool { return b.queued.Load() == 0 })
	for _, p := range places {
		p.Release()
	}
	leases := fill(t, m, e, "a")
	outcomes := hold(t.Context(), t, m, b, "a")
	b.queued.Store(0)
	if _, err := m.AcquirePlace(Caller{}, 20); !errors.Is(err, ErrNoPlace) {
		t.Errorf("a line while a request is held: %v, want ErrNoPlace", err)
	}
	releaseAll(leases)
	(<-outcomes).lease.Release()
}

// A request waits only if no backend that suits it has room.
func TestAFullBackendIsPassedOver(t *testing.T) {
	full, free := newEngine(t, 1), newEngine(t, 1000)
	m := serveEngines(t, full, free)
	var leases []*Lease
	full.silent.Store(true) // so that no limit divides the first ones
	for range 20 {
		leases = append(leases, acquireFor(t, m, "a"))
	}
	full.silent.Store(false)
	defer func() { releaseAll(leases) }()
	poll.Until(t, "attempts are limited", m.backends[0].turns.limited)
	for range 20 {
		leases = append(leases, acquireFor(t, m, "a"))
	}
	if n := m.backends[1].InFlight(); n != 30 {
		t.Errorf("got %d attempts at the backend with room, want 30", n)
	}
}

// BenchmarkAcquire is what an attempt costs at a backend that is not full.
func BenchmarkAcquire(b *testing.B) {
	m := serveEngines(b, newEngine(b, 1<<40))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			acquireFor(b, m, "a").Release()
		}
	})
}
