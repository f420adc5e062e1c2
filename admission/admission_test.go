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

	"basegate/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newQueue() *admission.Queue { return admission.New(admission.Settings{MaxBufferedBytes: 1 << 30}) }

func enter(tb testing.TB, q *admission.Queue, key string, limit int) *admission.Slot {
	tb.Helper()
	s, err := q.Acquire(tb.Context(), key, limit, 1)
	if err != nil {
		tb.Error(err)
	}
	return s
}

// crowd is requests of one key, of 10 bytes each, that have come one after the other.
type crowd struct {
	leave []context.CancelCauseFunc
	in    chan int // who got a slot
	out   chan error
	slots []*admission.Slot
}

var errLeft = errors.New("the client has left")

// line makes n requests come in order. It must run in a bubble.
func line(tb testing.TB, q *admission.Queue, key string, limit, n int) *crowd {
	tb.Helper()
	c := &crowd{in: make(chan int, n), out: make(chan error, n), slots: make([]*admission.Slot, n)}
	for i := range n {
		ctx, leave := context.WithCancelCause(tb.Context())
		c.leave = append(c.leave, leave)
		go func() {
			s, err := q.Acquire(ctx, key, limit, 10)
			if err != nil {
				c.out <- err
				return
			}
			c.slots[i] = s
			c.in <- i
		}()
		synctest.Wait()
	}
	return c
}

// wantEntered compares who got in since it was last asked.
func wantEntered(tb testing.TB, c *crowd, want ...int) {
	tb.Helper()
	synctest.Wait()
	var got []int
	for len(c.in) > 0 {
		got = append(got, <-c.in)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		tb.Errorf("%v got in, want %v", got, want)
	}
}

func wantStats(tb testing.TB, q *admission.Queue, want admission.Stats) {
	tb.Helper()
	if got := q.Stats(); got != want {
		tb.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSlotsAreGivenInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 50)
		wantEntered(t, c)
		first.Release()
		for i := range 50 {
			wantEntered(t, c, i)
			c.slots[i].Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		a := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 3)
		enter(t, q, "b", 1).Release()
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 3, BufferedBytes: 30})
		a.Release()
		for i := range 3 {
			wantEntered(t, c, i)
			c.slots[i].Release()
		}
	})
}

func TestAWaiterWaitsWithoutLimitOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 1)
		<-time.NewTimer(365 * 24 * time.Hour).C // of the bubble's time
		wantEntered(t, c)
		first.Release()
		wantEntered(t, c, 0)
		c.slots[0].Release()
	})
}

func TestWhoLeavesLosesItsPlaceWhereverItStood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 6)
		for before, i := range []int{0, 3, 5} { // first, in the middle, last
			c.leave[i](errLeft)
			if err := <-c.out; !errors.Is(err, errLeft) {
				t.Errorf("%d: got %v, want the cause", i, err)
			}
			wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 5 - before, BufferedBytes: int64(50 - 10*before)})
		}
		first.Release()
		for _, i := range []int{1, 2, 4} {
			wantEntered(t, c, i)
			c.slots[i].Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestAQueueThatAllHaveLeftIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 1)
		c.leave[0](errLeft)
		<-c.out
		second := line(t, q, "a", 1, 1)
		first.Release()
		wantEntered(t, second, 0)
		second.slots[0].Release()
		wantStats(t, q, admission.Stats{})
	})
}

func TestNobodyEntersWithAContextThatHasEnded(t *testing.T) {
	q := newQueue()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLeft)
	if s, err := q.Acquire(ctx, "a", 1, 1); !errors.Is(err, errLeft) || s != nil {
		t.Errorf("got %v, %v", s, err)
	}
	wantStats(t, q, admission.Stats{})
}

func TestARaisedLimitLetsInAsManyAsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 5)
		last := line(t, q, "a", 4, 1) // raises the limit, behind five others
		wantEntered(t, c, 0, 1, 2)
		wantEntered(t, last)
		first.Release()
		wantEntered(t, c, 3)
		c.slots[0].Release()
		wantEntered(t, c, 4)
		c.slots[1].Release()
		wantEntered(t, last, 0)
		for _, s := range append(c.slots[2:], last.slots...) {
			s.Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestWhoWaitsIsHeldToANewLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 3)
		q.SetLimits(func(key string) int { return map[string]int{"a": 3}[key] })
		wantEntered(t, c, 0, 1)
		q.SetLimits(func(string) int { return 1 })
		first.Release()
		c.slots[0].Release()
		wantEntered(t, c)
		c.slots[1].Release()
		wantEntered(t, c, 2)
		c.slots[2].Release()
		wantStats(t, q, admission.Stats{})
	})
}

func TestWhoRaisesTheLimitEntersBehindThoseWhoWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 1)
		second := enter(t, q, "a", 3)
		wantEntered(t, c, 0)
		for _, s := range []*admission.Slot{first, second, c.slots[0]} {
			s.Release()
		}
	})
}

func TestALoweredLimitTakesNoSlotAndHoldsFromThenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		var held []*admission.Slot
		for range 4 {
			held = append(held, enter(t, q, "a", 4))
		}
		c := line(t, q, "a", 2, 2)
		for _, s := range held[:2] {
			s.Release()
			wantEntered(t, c)
		}
		held[2].Release()
		wantEntered(t, c, 0)
		held[3].Release()
		wantEntered(t, c, 1)
		for _, s := range c.slots {
			s.Release()
		}
		wantStats(t, q, admission.Stats{})
	})
}

func TestALimitIsAtLeastOne(t *testing.T) {
	q := newQueue()
	for _, limit := range []int{0, -1} {
		enter(t, q, "a", limit).Release()
	}
}

func TestWhatWaitsIsCountedToTheByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := admission.New(admission.Settings{MaxBufferedBytes: 25})
		big, err := q.Acquire(t.Context(), "a", 1, 1<<40) // gets its slot at once
		if err != nil {
			t.Fatal(err)
		}
		other := enter(t, q, "b", 1)
		c := line(t, q, "a", 1, 2) // 20 bytes
		refused := func(bytes int64) {
			t.Helper()
			if s, err := q.Acquire(t.Context(), "b", 1, bytes); !errors.Is(err, admission.ErrFull) || s != nil {
				t.Errorf("%d bytes: got %v, %v", bytes, s, err)
			}
		}
		fits := func(bytes int64) {
			t.Helper()
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			if _, err := q.Acquire(ctx, "b", 1, bytes); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d bytes: got %v", bytes, err)
			}
		}
		refused(6)
		refused(1<<63 - 1)
		fits(5)
		fits(0)
		wantStats(t, q, admission.Stats{Keys: 2, Running: 2, Waiting: 2, BufferedBytes: 20, Refused: 2})
		q.Reload(admission.Settings{MaxBufferedBytes: 10}) // turns nobody away
		wantStats(t, q, admission.Stats{Keys: 2, Running: 2, Waiting: 2, BufferedBytes: 20, Refused: 2})
		refused(0)
		big.Release()
		wantEntered(t, c, 0)
		refused(1)
		fits(0)
		q.Reload(admission.Settings{MaxBufferedBytes: 11})
		fits(1)
		refused(2)
		c.leave[1](errLeft)
		<-c.out
		fits(11)
		refused(12)
		c.slots[0].Release()
		other.Release()
		wantStats(t, q, admission.Stats{Refused: 6})
	})
}

func TestWhatWaitsForSomethingElseCountsToo(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 25})
	release, err := q.ReserveMemory(20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.ReserveMemory(6); !errors.Is(err, admission.ErrFull) {
		t.Errorf("got %v", err)
	}
	first := enter(t, q, "a", 1)
	if _, err := q.Acquire(t.Context(), "a", 1, 6); !errors.Is(err, admission.ErrFull) {
		t.Errorf("a place in the queue: got %v", err)
	}
	release()
	first.Release()
	wantStats(t, q, admission.Stats{Refused: 2})
}

func TestLeavingTwiceFreesOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 2)
		var leaving sync.WaitGroup
		for range 10 {
			leaving.Go(first.Release)
		}
		leaving.Wait()
		wantEntered(t, c, 0)
		c.slots[0].Release()
		c.slots[0].Release()
		wantEntered(t, c, 1)
		first.Release()
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1})
		c.slots[1].Release()
		wantStats(t, q, admission.Stats{})
	})
}

// A slot that is handed to a request which leaves in that moment must reach the next one, or stay free.
func TestAHandOverThatRacesWithLeavingLosesNoSlot(t *testing.T) {
	q := newQueue()
	for range 3_000 {
		first := enter(t, q, "a", 1)
		ctx, leave := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			s, err := q.Acquire(ctx, "a", 1, 1)
			if err == nil {
				s.Release()
			} else if !errors.Is(err, errLeft) {
				t.Errorf("got %v", err)
			}
		})
		all.Go(func() { enter(t, q, "a", 1).Release() })
		for q.Stats().Waiting < 2 {
			runtime.Gosched()
		}
		all.Go(func() { leave(errLeft) })
		all.Go(first.Release)
		all.Wait() // for ever, where the slot got lost
		if got := q.Stats(); got != (admission.Stats{}) {
			t.Fatalf("something stayed behind: %+v", got)
		}
	}
}

func TestNoLimitIsEverPassed(t *testing.T) {
	const keys, requests = 8, 4_000
	q := newQueue()
	var running [keys]atomic.Int64
	var all sync.WaitGroup
	var served, left atomic.Int64
	for i := range requests {
		all.Go(func() {
			key := i % keys
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			if rand.IntN(4) == 0 {
				all.Go(func() { leave(errLeft) })
			}
			s, err := q.Acquire(ctx, strconv.Itoa(key), key+1, 1)
			if err != nil {
				left.Add(1)
				return
			}
			defer s.Release()
			if n := running[key].Add(1); n > int64(key+1) {
				t.Errorf("%d requests of a key that may have %d", n, key+1)
			}
			for range rand.IntN(20) {
				runtime.Gosched()
			}
			running[key].Add(-1)
			served.Add(1)
		})
	}
	all.Wait()
	if served.Load()+left.Load() != requests || served.Load() < requests/2 {
		t.Errorf("%d served, %d left", served.Load(), left.Load())
	}
	wantStats(t, q, admission.Stats{})
}

func TestEverybodyGetsInWhileLimitsChange(t *testing.T) {
	const requests, highest = 4_000, 10
	q := newQueue()
	var running atomic.Int64
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			s := enter(t, q, "a", 1+rand.IntN(highest))
			defer s.Release()
			if n := running.Add(1); n > highest {
				t.Errorf("%d at a time", n)
			}
			runtime.Gosched()
			running.Add(-1)
		})
	}
	all.Wait()
	wantStats(t, q, admission.Stats{})
}

func TestTenThousandWaitersAreCheap(t *testing.T) {
	const waiters = 10_000
	q := newQueue()
	first := enter(t, q, "a", 1)
	before := memory()
	ctx, leave := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { _, _ = q.Acquire(ctx, "a", 1, 1) })
	}
	for q.Stats().Waiting < waiters {
		runtime.Gosched()
	}
	each := (memory() - before) / waiters
	t.Logf("%d bytes a waiter, its goroutine included", each)
	if each > 16<<10 {
		t.Errorf("%d bytes a waiter", each)
	}
	begun := time.Now()
	leave(errLeft)
	all.Wait()
	t.Logf("all left within %v", time.Since(begun))
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

func TestComingAndGoingAllocatesOnlyTheSlot(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops what is pooled")
	}
	q, ctx := newQueue(), t.Context()
	n := testing.AllocsPerRun(1000, func() {
		s, _ := q.Acquire(ctx, "a", 8, 100)
		s.Release()
	})
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func TestMetricsTellTheTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := admission.New(admission.Settings{MaxBufferedBytes: 15})
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(admission.NewCollector(q))
		first := enter(t, q, "a", 1)
		c := line(t, q, "a", 1, 1)
		if _, err := q.Acquire(t.Context(), "a", 1, 6); !errors.Is(err, admission.ErrFull) {
			t.Fatalf("got %v", err)
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
		want := []string{"buffered_bytes 10", "keys 1", "refused_total 1", "running_requests 1", "waiting_requests 1"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		first.Release()
		wantEntered(t, c, 0)
		c.slots[0].Release()
	})
}

func BenchmarkEnterLeave(b *testing.B) {
	q, ctx := newQueue(), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		s, err := q.Acquire(ctx, "a", 8, 100)
		if err != nil {
			b.Fatal(err)
		}
		s.Release()
	}
}

// All through one slot: what a hand-over costs.
func BenchmarkHandOver(b *testing.B) {
	q, ctx := newQueue(), b.Context()
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			s, err := q.Acquire(ctx, "a", 1, 100)
			if err != nil {
				b.Error(err)
				return
			}
			s.Release()
		}
	})
}
