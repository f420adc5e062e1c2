package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"basegate/budget/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newQueue() *admission.Queue { return admission.New(admission.Settings{MaxBufferedBytes: 1 << 30}) }

func newAllocation(q *admission.Queue, key string) *admission.Allocation {
	a := q.Allocate(key)
	return &a
}

// alone is a key that its account does not limit.
func alone(key string, limit int) admission.Requester {
	return admission.Requester{Key: key, Account: "account of " + key, Limits: admission.Limits{Key: limit}}
}

func acquire(tb testing.TB, q *admission.Queue, key string, limit int) *admission.Slot {
	tb.Helper()
	s, err := q.Acquire(tb.Context(), alone(key, limit), newAllocation(q, key))
	if err != nil {
		tb.Error(err)
	}
	return s
}

// waiters are requests of one key, in order of arrival.
type waiters struct {
	cancel   []context.CancelCauseFunc
	acquired chan int   // indexes of the requests that got a slot
	failed   chan error // errors of those that did not
	slots    []*admission.Slot
}

var errDisconnected = errors.New("the client disconnected")

// startWaiters starts n requests in order. It must run in a synctest bubble.
func startWaiters(tb testing.TB, q *admission.Queue, key string, limit, n int) *waiters {
	tb.Helper()
	w := &waiters{acquired: make(chan int, n), failed: make(chan error, n), slots: make([]*admission.Slot, n)}
	for i := range n {
		ctx, cancel := context.WithCancelCause(tb.Context())
		w.cancel = append(w.cancel, cancel)
		go func() {
			s, err := q.Acquire(ctx, alone(key, limit), newAllocation(q, key))
			if err != nil {
				w.failed <- err
				return
			}
			w.slots[i] = s
			w.acquired <- i
		}()
		synctest.Wait()
	}
	return w
}

// wantAcquired checks which requests have got a slot since the previous call.
func wantAcquired(tb testing.TB, w *waiters, want ...int) {
	tb.Helper()
	synctest.Wait()
	var got []int
	for len(w.acquired) > 0 {
		got = append(got, <-w.acquired)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		tb.Errorf("requests %v got a slot, want %v", got, want)
	}
}

func wantStats(tb testing.TB, q *admission.Queue, want admission.Stats) {
	tb.Helper()
	if got := q.Stats(); got != want {
		tb.Errorf("stats: got %+v, want %+v", got, want)
	}
}

func TestSlotsAreAcquiredInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 50)
		wantAcquired(t, w)
		first.Release()
		for i := range 50 {
			wantAcquired(t, w, i)
			w.slots[i].Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		a := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 3)
		acquire(t, q, "b", 1).Release()
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 3, BufferedBytes: 3 * admission.WaitingCost})
		a.Release()
		for i := range 3 {
			wantAcquired(t, w, i)
			w.slots[i].Release()
		}
	})
}

func TestWaitingHasNoTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 1)
		<-time.NewTimer(365 * 24 * time.Hour).C // of the bubble's time
		wantAcquired(t, w)
		first.Release()
		wantAcquired(t, w, 0)
		w.slots[0].Release()
	})
}

func TestCancelledRequestLeavesTheQueueAtAnyPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 6)
		for before, i := range []int{0, 3, 5} { // first, in the middle, last
			w.cancel[i](errDisconnected)
			if err := <-w.failed; !errors.Is(err, errDisconnected) {
				t.Errorf("request %d: got %v, want the cause of the cancellation", i, err)
			}
			wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 5 - before, BufferedBytes: int64(5-before) * admission.WaitingCost})
		}
		first.Release()
		for _, i := range []int{1, 2, 4} {
			wantAcquired(t, w, i)
			w.slots[i].Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestQueueWorksAfterAllWaitersWereCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 1)
		w.cancel[0](errDisconnected)
		<-w.failed
		second := startWaiters(t, q, "a", 1, 1)
		first.Release()
		wantAcquired(t, second, 0)
		second.slots[0].Release()
		wantStats(t, q, admission.Stats{})
	})
}

func TestAcquireFailsIfContextHasEnded(t *testing.T) {
	q := newQueue()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDisconnected)
	if s, err := q.Acquire(ctx, alone("a", 1), newAllocation(q, "a")); !errors.Is(err, errDisconnected) || s != nil {
		t.Errorf("got slot %v and error %v, want no slot and the cause", s, err)
	}
	wantStats(t, q, admission.Stats{})
}

func TestRaisedLimitAdmitsAsManyWaitersAsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 5)
		last := startWaiters(t, q, "a", 4, 1) // raises the limit, behind five others
		wantAcquired(t, w, 0, 1, 2)
		wantAcquired(t, last)
		first.Release()
		wantAcquired(t, w, 3)
		w.slots[0].Release()
		wantAcquired(t, w, 4)
		w.slots[1].Release()
		wantAcquired(t, last, 0)
		for _, s := range append(w.slots[2:], last.slots...) {
			s.Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestSetLimitsAppliesToWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 3)
		q.SetLimits(func(key string) admission.Limits { return admission.Limits{Key: map[string]int{"a": 3}[key]} })
		wantAcquired(t, w, 0, 1)
		q.SetLimits(func(string) admission.Limits { return admission.Limits{Key: 1} })
		first.Release()
		w.slots[0].Release()
		wantAcquired(t, w)
		w.slots[1].Release()
		wantAcquired(t, w, 2)
		w.slots[2].Release()
		wantStats(t, q, admission.Stats{})
	})
}

func TestRequestThatRaisesTheLimitDoesNotOvertakeWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 1)
		second := acquire(t, q, "a", 3)
		wantAcquired(t, w, 0)
		for _, s := range []*admission.Slot{first, second, w.slots[0]} {
			s.Release()
		}
	})
}

func TestLoweredLimitTakesNoSlotAwayAndAppliesToNewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		var held []*admission.Slot
		for range 4 {
			held = append(held, acquire(t, q, "a", 4))
		}
		w := startWaiters(t, q, "a", 2, 2)
		for _, s := range held[:2] {
			s.Release()
			wantAcquired(t, w)
		}
		held[2].Release()
		wantAcquired(t, w, 0)
		held[3].Release()
		wantAcquired(t, w, 1)
		for _, s := range w.slots {
			s.Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestLimitIsAtLeastOne(t *testing.T) {
	q := newQueue()
	for _, limit := range []int{0, -1} {
		acquire(t, q, "a", limit).Release()
	}
}

func TestReleaseIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 2)
		var releases sync.WaitGroup
		for range 10 {
			releases.Go(first.Release)
		}
		releases.Wait()
		wantAcquired(t, w, 0)
		w.slots[0].Release()
		w.slots[0].Release()
		wantAcquired(t, w, 1)
		first.Release()
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1})
		w.slots[1].Release()
		wantStats(t, q, admission.Stats{})
	})
}

// A slot handed to a request that is cancelled at the same moment must reach the next request, or stay free.
func TestSlotHandedToACancelledRequestIsNotLost(t *testing.T) {
	q := newQueue()
	for range 3_000 {
		first := acquire(t, q, "a", 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			s, err := q.Acquire(ctx, alone("a", 1), newAllocation(q, "a"))
			if err == nil {
				s.Release()
			} else if !errors.Is(err, errDisconnected) {
				t.Errorf("got error %v, want the cause of the cancellation", err)
			}
		})
		all.Go(func() { acquire(t, q, "a", 1).Release() })
		for q.Stats().Waiting < 2 {
			runtime.Gosched()
		}
		all.Go(func() { cancel(errDisconnected) })
		all.Go(first.Release)
		all.Wait() // blocks forever if the slot is lost
		if got := q.Stats(); got != (admission.Stats{}) {
			t.Fatalf("stats after all requests have ended: got %+v, want zero", got)
		}
	}
}

func TestConcurrentRequestsNeverExceedTheLimit(t *testing.T) {
	const keys, requests = 8, 4_000
	q := newQueue()
	var running [keys]atomic.Int64
	var all sync.WaitGroup
	var served, cancelled atomic.Int64
	for i := range requests {
		all.Go(func() {
			key := i % keys
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if rand.IntN(4) == 0 {
				all.Go(func() { cancel(errDisconnected) })
			}
			s, err := q.Acquire(ctx, alone(strconv.Itoa(key), key+1), newAllocation(q, strconv.Itoa(key)))
			if err != nil {
				cancelled.Add(1)
				return
			}
			defer s.Release()
			if n := running[key].Add(1); n > int64(key+1) {
				t.Errorf("a key with a limit of %d runs %d requests", key+1, n)
			}
			for range rand.IntN(20) {
				runtime.Gosched()
			}
			running[key].Add(-1)
			served.Add(1)
		})
	}
	all.Wait()
	if served.Load()+cancelled.Load() != requests || served.Load() < requests/2 {
		t.Errorf("%d served, %d cancelled, want %d in total and at least half served", served.Load(), cancelled.Load(), requests)
	}
	wantStats(t, q, admission.Stats{})
}

func TestEveryRequestGetsASlotWhileLimitsChange(t *testing.T) {
	const requests, highest = 4_000, 10
	q := newQueue()
	var running atomic.Int64
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			s := acquire(t, q, "a", 1+rand.IntN(highest))
			defer s.Release()
			if n := running.Add(1); n > highest {
				t.Errorf("%d requests run at once, want at most %d", n, highest)
			}
			runtime.Gosched()
			running.Add(-1)
		})
	}
	all.Wait()
	wantStats(t, q, admission.Stats{})
}

func TestTenThousandWaitersUseLittleMemory(t *testing.T) {
	const waiters = 10_000
	q := newQueue()
	first := acquire(t, q, "a", 1)
	before := memory()
	ctx, cancel := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { _, _ = q.Acquire(ctx, alone("a", 1), newAllocation(q, "a")) })
	}
	for q.Stats().Waiting < waiters {
		runtime.Gosched()
	}
	each := (memory() - before) / waiters
	t.Logf("%d bytes per waiter, including its goroutine", each)
	if each > 16<<10 {
		t.Errorf("%d bytes per waiter, want at most %d", each, 16<<10)
	}
	start := time.Now()
	cancel(errDisconnected)
	all.Wait()
	t.Logf("all were cancelled within %v", time.Since(start))
	wantStats(t, q, admission.Stats{Keys: 1, Running: 1})
	first.Release()
	wantStats(t, q, admission.Stats{})
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func TestAcquireAndReleaseAllocateOnlyTheSlot(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	q, ctx := newQueue(), t.Context()
	a := q.Allocate("a")
	r := admission.Requester{Key: "a", Account: "acc", Limits: admission.Limits{Key: 8, Account: 32}}
	n := testing.AllocsPerRun(1000, func() {
		_ = a.Grow(100)
		s, _ := q.Acquire(ctx, r, &a)
		s.Release()
		a.Release()
	})
	if n > 1 {
		t.Errorf("%v allocations, want at most 1", n)
	}
}

func TestCollectorExportsTheTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := admission.New(admission.Settings{MaxBufferedBytes: 3 * admission.WaitingCost})
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(q.Collectors()...)
		first := acquire(t, q, "a", 1)
		w := startWaiters(t, q, "a", 1, 1)
		if _, err := q.Acquire(t.Context(), alone("a", 1), newAllocation(q, "a")); !errors.Is(err, admission.ErrFull) {
			t.Fatalf("got error %v, want ErrFull", err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			m := f.GetMetric()[0]
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			got = append(got, strings.TrimPrefix(f.GetName(), "basegate_admission_")+" "+strconv.Itoa(int(value)))
		}
		want := []string{"buffered_bytes 15360", "keys 1", "refused_total 1", "running_requests 1", "waiting_requests 1"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		first.Release()
		wantAcquired(t, w, 0)
		w.slots[0].Release()
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	q, ctx := newQueue(), b.Context()
	a := newAllocation(q, "a")
	r := admission.Requester{Key: "a", Account: "acc", Limits: admission.Limits{Key: 8, Account: 32}}
	b.ReportAllocs()
	for b.Loop() {
		s, err := q.Acquire(ctx, r, a)
		if err != nil {
			b.Fatal(err)
		}
		s.Release()
	}
}

// BenchmarkContendedSlot measures what it costs to pass one slot from request to request.
func BenchmarkContendedSlot(b *testing.B) {
	q, ctx := newQueue(), b.Context()
	r := alone("a", 1)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			s, err := q.Acquire(ctx, r, newAllocation(q, "a"))
			if err != nil {
				b.Error(err)
				return
			}
			s.Release()
		}
	})
}

func TestSlotKnowsHowManyWaitBeforeIt(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 1 << 30})
	var slots []*admission.Slot
	for range 1500 {
		s, err := q.Enqueue(alone("a", 1), newAllocation(q, "a"))
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, s)
	}
	expect := func(when string, want map[int]int) {
		t.Helper()
		for i, before := range want {
			if got := slots[i].Before(); got != before {
				t.Errorf("%s: %d requests wait before request %d, want %d", when, got, i, before)
			}
		}
	}
	expect("at first", map[int]int{0: 0, 1: 0, 2: 1, 900: 899, 1499: 1498})
	slots[5].Release()
	expect("after one has left", map[int]int{4: 3, 6: 4, 900: 898, 1499: 1498}) // the last is far behind: it is not counted one by one
	slots[0].Release()
	expect("after the first has ended", map[int]int{0: 0, 1: 0, 2: 0, 6: 3, 900: 897})
	for _, s := range slots {
		s.Release()
	}
	if got := q.Stats(); got.Running+got.Waiting+got.Keys != 0 {
		t.Errorf("got %+v, want nothing", got)
	}
}
