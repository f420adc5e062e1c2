package admission_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"basegate/budget/admission"
)

// ofAccount is a key of the account acc.
func ofAccount(key string, keySlots, accountSlots int) admission.Requester {
	return admission.Requester{Key: key, Account: "acc", Limits: admission.Limits{Key: keySlots, Account: accountSlots}}
}

// arrival is a request.
type arrival struct {
	*admission.Slot

	disconnect context.CancelFunc
}

// arrive enqueues a request of a key and adds its name to got when it gets a slot.
func arrive(t *testing.T, q *admission.Queue, r admission.Requester, name string, got chan<- string) arrival {
	t.Helper()
	s, err := q.Enqueue(r, newAllocation(q, r.Key))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if s.Wait(ctx) == nil {
			got <- name
		}
	}()
	synctest.Wait()
	return arrival{s, cancel}
}

// wantNext checks which requests have got a slot since the previous call.
func wantNext(t *testing.T, got <-chan string, want ...string) {
	t.Helper()
	synctest.Wait()
	var names []string
	for len(got) > 0 {
		names = append(names, <-got)
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("%v got a slot, want %v", names, want)
	}
}

func TestKeysOfAnAccountShareItsSlotsInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, got := newQueue(), make(chan string, 100)
		at := func(key, name string) arrival { return arrive(t, q, ofAccount(key, 2, 3), name, got) }
		a1, a2, a3 := at("a", "a1"), at("a", "a2"), at("a", "a3")
		b1, c1, b2 := at("b", "b1"), at("c", "c1"), at("b", "b2")
		wantNext(t, got, "a1", "a2", "b1") // a has no slot for a3, and the account none for c1
		other := arrive(t, q, admission.Requester{Key: "x", Account: "other", Limits: admission.Limits{Key: 2, Account: 3}}, "x", got)
		wantNext(t, got, "x")
		other.Release()
		if stats := q.AccountStats("acc"); stats != (admission.KeyStats{Running: 3, Waiting: 3}) {
			t.Errorf("got %+v, want 3 running and 3 waiting", stats)
		}
		for s, want := range map[*admission.Slot]int{a3.Slot: 0, c1.Slot: 0, b2.Slot: 1} {
			if before := s.Before(); before != want {
				t.Errorf("%d requests wait before one, want %d", before, want)
			}
		}
		b1.Release()
		wantNext(t, got, "c1") // a3 arrived earlier, but its key has no slot
		a2.Release()
		wantNext(t, got, "a3")
		a1.Release()
		wantNext(t, got, "b2")
		for _, s := range []arrival{a3, c1, b2} {
			s.Release()
		}
		wantStats(t, q, admission.Stats{})
		if stats := q.AccountStats("acc"); stats != (admission.KeyStats{}) {
			t.Errorf("got %+v, want nothing", stats)
		}
	})
}

func TestChangedLimitsOfAnAccountApplyToWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, got := newQueue(), make(chan string, 100)
		var slots []arrival
		for i := range 6 {
			name := string(rune('a' + i))
			slots = append(slots, arrive(t, q, ofAccount(name, 8, 1), name, got))
		}
		wantNext(t, got, "a")
		q.SetLimits(func(string) admission.Limits { return admission.Limits{Key: 8, Account: 3} })
		wantNext(t, got, "b", "c")
		q.SetLimits(func(key string) admission.Limits { // e may not be used any more: its requests leave, to be refused
			return map[bool]admission.Limits{true: {Key: 1 << 30}, false: {Key: 8, Account: 1}}[key == "e"]
		})
		wantNext(t, got, "e")
		for _, s := range slots[:3] {
			wantNext(t, got)
			s.Release()
		}
		wantNext(t, got) // e runs
		slots[4].Release()
		wantNext(t, got, "d")
		slots[5].disconnect()
		synctest.Wait()
		slots[3].Release()
		wantNext(t, got)
		wantStats(t, q, admission.Stats{})
	})
}

func TestARequestThatLeavesTheQueueOfAnAccountLosesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, got := newQueue(), make(chan string, 100)
		first := arrive(t, q, ofAccount("a", 8, 1), "a", got)
		b1, b2 := arrive(t, q, ofAccount("b", 8, 1), "b1", got), arrive(t, q, ofAccount("b", 8, 1), "b2", got)
		c := arrive(t, q, ofAccount("c", 8, 1), "c", got)
		b1.disconnect()
		synctest.Wait()
		first.Release()
		wantNext(t, got, "a", "b2")
		b2.Release()
		wantNext(t, got, "c")
		c.Release()
		wantStats(t, q, admission.Stats{})
	})
}

func TestAnAccountNeverExceedsItsLimitAndLosesNoSlot(t *testing.T) {
	const keys, requests, limit = 8, 4_000, 5
	q := newQueue()
	var running, served atomic.Int64
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if rand.IntN(4) == 0 {
				all.Go(func() { cancel(errDisconnected) })
			}
			key := fmt.Sprint(i % keys)
			s, err := q.Acquire(ctx, ofAccount(key, 2, limit), newAllocation(q, key))
			if err != nil {
				return
			}
			defer s.Release()
			if n := running.Add(1); n > limit {
				t.Errorf("an account with a limit of %d runs %d requests", limit, n)
			}
			runtime.Gosched()
			running.Add(-1)
			served.Add(1)
		})
	}
	all.Wait() // blocks forever if a slot is lost
	if served.Load() < requests/2 {
		t.Errorf("%d of %d were served, want at least half", served.Load(), requests)
	}
	wantStats(t, q, admission.Stats{})
}
