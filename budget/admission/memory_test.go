package admission_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

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
	m := admission.NewMemory(1000)
	a, b, c := newAllocation(m, "a"), newAllocation(m, "b"), newAllocation(m, "c")
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
	wantStats(t, m, admission.MemoryStats{BufferedBytes: 630, Refused: 2})
	m.Reload(500) // takes nothing away
	wantStats(t, m, admission.MemoryStats{BufferedBytes: 630, Refused: 2})
	wantFull(t, a, 1)
	wantFull(t, a, 1<<63-1)
	b.Release()
	grow(t, a, 10)
	a.Release()
	c.Release()
	wantStats(t, m, admission.MemoryStats{Refused: 4})
}

// Requests that wait leave a quarter of the memory for the responses of those that run.
func TestRunningRequestsMayUseWhatWaitingOnesLeave(t *testing.T) {
	m := admission.NewMemory(1000)
	var waiting []*admission.Allocation
	for key := range 7 {
		a := newAllocation(m, strconv.Itoa(key))
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
	wantStats(t, m, admission.MemoryStats{Refused: 2})
}

// However much a key wants, it leaves some of the seven eighths that are shared for the next one: a quarter if it is alone, a
// seventh beside another.
func TestKeyLeavesMemoryForOthers(t *testing.T) {
	m := admission.NewMemory(8000)
	fill := func(key string) (total int64) {
		for {
			a := newAllocation(m, key)
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
	m := admission.NewMemory(16_000)
	a, b := newAllocation(m, "a"), newAllocation(m, "b")
	grow(t, a, 7_500)
	wantFull(t, a, 10)
	grow(t, b, 1_800)
	a.Release()
	b.Release()
	wantStats(t, m, admission.MemoryStats{Refused: 1})
}

// Small requests are served whatever memory the large requests of other keys hold.
func TestEveryKeyHasASmallPartOfTheMemory(t *testing.T) {
	const limit, keys = 512_000, 64
	m := admission.NewMemory(limit)
	var all []*admission.Allocation
	for key := range 20 {
		a := newAllocation(m, "large "+strconv.Itoa(key))
		a.SetRunning()
		for a.Grow(500) == nil {
		}
		all = append(all, a)
	}
	for key := range keys - len(all) {
		a := newAllocation(m, "small "+strconv.Itoa(key))
		grow(t, a, 1000)
		all = append(all, a)
	}
	for _, a := range all {
		a.Release()
	}
}

func TestKeysThatWantEverythingGetEqualShares(t *testing.T) {
	m := admission.NewMemory(8000)
	held := map[string]*admission.Allocation{"a": newAllocation(m, "a"), "b": newAllocation(m, "b")}
	held["a"].SetRunning()
	held["b"].SetRunning()
	for range 1000 { // requests come and go
		for _, a := range held {
			a.Shrink(500)
			for a.Grow(100) == nil {
			}
		}
	}
	a, b := m.Allocate("a"), m.Allocate("b")
	for key, one := range map[string]*admission.Allocation{"a": &a, "b": &b} {
		one.SetRunning()
		if err := one.Grow(600); !errors.Is(err, admission.ErrFull) {
			t.Errorf("key %s can still grow by 600 bytes, want both at their share", key)
		}
	}
	before := m.Stats().BufferedBytes
	held["a"].Release()
	if got := before - m.Stats().BufferedBytes; got < 2500 || got > 3500 {
		t.Errorf("one of two keys held %d of 8000 bytes, want about 3000", got)
	}
	held["b"].Release()
}

func TestReleasedMemoryIsReturnedOnce(t *testing.T) {
	m := admission.NewMemory(1000)
	a, b := newAllocation(m, "a"), newAllocation(m, "a")
	grow(t, a, 100)
	grow(t, b, 50)
	a.Shrink(200) // more than it holds
	a.Shrink(-10)
	wantStats(t, m, admission.MemoryStats{BufferedBytes: 50})
	a.Release()
	b.Release()
	b.Release()
	uncounted := new(admission.Allocation)
	grow(t, uncounted, 1<<62)
	uncounted.Shrink(1)
	uncounted.Release()
	wantStats(t, m, admission.MemoryStats{})
	grow(t, b, 450) // and it can be used again
	b.Release()
}

// Requests of many keys grow and shrink at the same time, and leave nothing behind.
func TestConcurrentAllocationsNeverExceedTheLimit(t *testing.T) {
	const limit = 10_000
	m := admission.NewMemory(limit)
	var all sync.WaitGroup
	var held atomic.Int64
	for i := range 500 {
		all.Go(func() {
			a := m.Allocate(strconv.Itoa(i % 7))
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
	if s := m.Stats(); s.BufferedBytes != 0 {
		t.Errorf("%d bytes are held after all requests have ended", s.BufferedBytes)
	}
}
