package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"basegate/budget/admission"
)

// grow fails the test unless the Allocation can grow.
func grow(tb testing.TB, a *admission.Allocation, bytes int64) {
	tb.Helper()
	if err := a.Grow(bytes); err != nil {
		tb.Errorf("grow by %d bytes: %v", bytes, err)
	}
}

// wantFull fails the test unless the Allocation cannot grow.
func wantFull(tb testing.TB, a *admission.Allocation, bytes int64) {
	tb.Helper()
	if err := a.Grow(bytes); !errors.Is(err, admission.ErrFull) {
		tb.Errorf("grow by %d bytes: got error %v, want ErrFull", bytes, err)
	}
}

func TestMemoryIsLimitedOverAllKeys(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 1000})
	a, b, c := newAllocation(q, "a"), newAllocation(q, "b"), newAllocation(q, "c")
	for _, one := range []*admission.Allocation{a, b, c} {
		one.SetRunning()
	}
	grow(t, a, 400)
	grow(t, b, 350)
	wantFull(t, c, 201)
	wantFull(t, c, 1<<63-1)
	grow(t, c, 80)
	a.Shrink(300)
	grow(t, c, 100)
	wantStats(t, q, admission.Stats{BufferedBytes: 630, Refused: 2})
	q.Reload(admission.Settings{MaxBufferedBytes: 500}) // takes nothing away
	wantStats(t, q, admission.Stats{BufferedBytes: 630, Refused: 2})
	wantFull(t, a, 1)
	wantFull(t, a, 1<<63-1)
	b.Release()
	grow(t, a, 10)
	a.Release()
	c.Release()
	wantStats(t, q, admission.Stats{Refused: 4})
}

// Requests that wait leave a quarter of the memory for the responses of those that run.
func TestRunningRequestsMayUseWhatWaitingOnesLeave(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 1000})
	var waiting []*admission.Allocation
	for key := range 7 {
		a := newAllocation(q, strconv.Itoa(key))
		grow(t, a, 75)
		waiting = append(waiting, a)
	}
	wantFull(t, waiting[0], 76)
	running := waiting[3]
	running.SetRunning()
	grow(t, running, 100)
	wantFull(t, waiting[0], 1)
	for _, a := range waiting {
		a.Release()
	}
	wantStats(t, q, admission.Stats{Refused: 2})
}

// However much a key wants, it leaves some of the seven eighths that are shared for the next one: a quarter if it is alone, a
// seventh beside another.
func TestKeyLeavesMemoryForOthers(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 8000})
	fill := func(key string) (total int64) {
		for {
			a := newAllocation(q, key)
			a.SetRunning()
			if a.Grow(10) != nil {
				return total
			}
			total += 10
		}
	}
	if got := fill("a"); got != 5250 {
		t.Errorf("the first key got %d bytes, want three quarters of 7000", got)
	}
	if got := fill("b"); got != 1310 {
		t.Errorf("the second key got %d bytes, want three quarters of the rest", got)
	}
	if got := fill("c"); got != 330 {
		t.Errorf("the third key got %d bytes, want three quarters of the rest", got)
	}
	if got := fill("a"); got != 0 {
		t.Errorf("the first key got another %d bytes, want none", got)
	}
}

// A key whose requests all wait leaves memory for the waiting requests of others.
func TestWaitingRequestsOfAKeyLeaveMemoryForThoseOfOthers(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 16_000})
	a, b := newAllocation(q, "a"), newAllocation(q, "b")
	grow(t, a, 7_500)
	wantFull(t, a, 10)
	grow(t, b, 1_800)
	a.Release()
	b.Release()
	wantStats(t, q, admission.Stats{Refused: 1})
}

// Small requests are served whatever memory the large requests of other keys hold.
func TestEveryKeyHasASmallPartOfTheMemory(t *testing.T) {
	const limit, keys = 512_000, 64
	q := admission.New(admission.Settings{MaxBufferedBytes: limit})
	var all []*admission.Allocation
	for key := range 20 {
		a := newAllocation(q, "large "+strconv.Itoa(key))
		a.SetRunning()
		for a.Grow(500) == nil {
		}
		all = append(all, a)
	}
	for key := range keys - len(all) {
		a := newAllocation(q, "small "+strconv.Itoa(key))
		grow(t, a, 1000)
		all = append(all, a)
	}
	for _, a := range all {
		a.Release()
	}
}

func TestKeysThatWantEverythingGetEqualShares(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 8000})
	held := map[string]*admission.Allocation{"a": newAllocation(q, "a"), "b": newAllocation(q, "b")}
	held["a"].SetRunning()
	held["b"].SetRunning()
	for range 1000 { // requests come and go
		for _, a := range held {
			a.Shrink(500)
			for a.Grow(100) == nil {
			}
		}
	}
	a, b := q.Allocate("a"), q.Allocate("b")
	for key, one := range map[string]*admission.Allocation{"a": &a, "b": &b} {
		one.SetRunning()
		if err := one.Grow(600); !errors.Is(err, admission.ErrFull) {
			t.Errorf("key %s can still grow by 600 bytes, want both at their share", key)
		}
	}
	before := q.Stats().BufferedBytes
	held["a"].Release()
	if got := before - q.Stats().BufferedBytes; got < 2500 || got > 3500 {
		t.Errorf("one of two keys held %d of 8000 bytes, want about 3000", got)
	}
	held["b"].Release()
}

func TestReleasedMemoryIsReturnedOnce(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: 1000})
	a, b := newAllocation(q, "a"), newAllocation(q, "a")
	grow(t, a, 100)
	grow(t, b, 50)
	a.Shrink(200) // more than it holds
	a.Shrink(-10)
	wantStats(t, q, admission.Stats{BufferedBytes: 50})
	a.Release()
	b.Release()
	b.Release()
	uncounted := new(admission.Allocation)
	grow(t, uncounted, 1<<62)
	uncounted.Shrink(1)
	uncounted.Release()
	wantStats(t, q, admission.Stats{})
	grow(t, b, 450) // and it can be used again
	b.Release()
}

func TestWaitingRequestCountsItsRealCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := admission.New(admission.Settings{MaxBufferedBytes: 7 * admission.WaitingCost})
		running := acquire(t, q, "a", 1)
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1}) // its slot was free
		w := startWaiters(t, q, "a", 1, 3)
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 3, BufferedBytes: 3 * admission.WaitingCost})
		if s, err := q.Acquire(t.Context(), alone("a", 1), newAllocation(q, "a")); !errors.Is(err, admission.ErrFull) || s != nil {
			t.Errorf("the fourth waiting request: got slot %v and error %v, want ErrFull", s, err)
		}
		w.cancel[1](errDisconnected)
		<-w.failed
		running.Release()
		wantAcquired(t, w, 0)
		wantStats(t, q, admission.Stats{Keys: 1, Running: 1, Waiting: 1, BufferedBytes: admission.WaitingCost, Refused: 1})
		w.slots[0].Release()
		wantAcquired(t, w, 2)
		w.slots[2].Release()
		wantStats(t, q, admission.Stats{Refused: 1})
	})
}

// Requests of many keys grow and shrink at the same time, and leave nothing behind.
func TestConcurrentAllocationsNeverExceedTheLimit(t *testing.T) {
	const limit = 10_000
	q := admission.New(admission.Settings{MaxBufferedBytes: limit})
	var all sync.WaitGroup
	var held atomic.Int64
	for i := range 500 {
		all.Go(func() {
			a := q.Allocate(strconv.Itoa(i % 7))
			defer a.Release()
			own := int64(0)
			for range 50 {
				if n := rand.Int64N(500); a.Grow(n) == nil {
					own += n
					if total := held.Add(n); total > limit {
						t.Errorf("%d bytes are held, want at most %d", total, limit)
					}
				}
				n := rand.Int64N(own + 1)
				held.Add(-n)
				a.Shrink(n)
				own -= n
			}
			held.Add(-own)
		})
	}
	all.Wait()
	if s := q.Stats(); s.BufferedBytes != 0 {
		t.Errorf("%d bytes are held after all requests have ended", s.BufferedBytes)
	}
}

func TestAcquireFailsWithoutMemoryOnlyIfItHasToWait(t *testing.T) {
	q := admission.New(admission.Settings{MaxBufferedBytes: admission.WaitingCost + 100})
	first := acquire(t, q, "a", 1)
	if _, err := q.Acquire(context.Background(), alone("a", 1), newAllocation(q, "a")); !errors.Is(err, admission.ErrFull) {
		t.Errorf("got error %v, want ErrFull", err)
	}
	first.Release()
	acquire(t, q, "a", 1).Release()
	wantStats(t, q, admission.Stats{Refused: 1})
}
