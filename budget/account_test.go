package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
)

// slots is an account whose requests cost no tokens that count, so that only slots decide on them.
type slots struct {
	t       *testing.T
	account *budget.Account
	leases  map[string]*budget.Lease  // of the requests that run, by id
	waiting map[string]*budget.Waiter // by id
	started []string                  // since the latest check
}

func newSlots(t *testing.T) *slots {
	t.Helper()
	account := budget.NewAccount("acc", map[string]*budget.Owner{})
	return &slots{t: t, account: account, leases: map[string]*budget.Lease{}, waiting: map[string]*budget.Waiter{}}
}

// limit sets the slots of a key and of the account; 0 is unbounded.
func (s *slots) limit(key string, ofKey, ofAccount int) {
	if s.account.SetPayer(&budget.Payer{Key: key, Account: "acc", Slots: ofKey, AccountSlots: ofAccount}) {
		s.grant(true)
	}
}

// adopt makes a key the parent of others.
func (s *slots) adopt(parent string, ofParent int, keys ...string) {
	for _, key := range keys {
		s.account.SetPayer(&budget.Payer{Key: key, Account: "acc", Parent: &budget.ParentKey{ID: parent, Slots: ofParent}})
	}
}

// arrive asks for a reservation for a request whose id begins with its key.
func (s *slots) arrive(ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		w := &budget.Waiter{Request: budget.Request{ID: id, KeyID: id[:1]}, Demand: demand(0, 1)}
		switch d := s.account.Admit(time.Now(), w); d.Kind {
		case budget.Granted:
			s.start(id, &d)
		case budget.Waits:
			s.waiting[id] = w
		default:
			s.t.Fatalf("%s: got %+v, want it to run or wait", id, d)
		}
	}
}

func (s *slots) start(id string, d *budget.Decision) {
	s.leases[id] = &d.Lease
	s.started = append(s.started, id)
}

// end ends a request that runs or waits, and starts those that get its slot.
func (s *slots) end(id string) {
	s.t.Helper()
	if w := s.waiting[id]; w != nil {
		if !s.account.Cancel(w) {
			s.t.Errorf("%s does not wait", id)
		}
		delete(s.waiting, id)
	} else {
		s.account.Settle(s.leases[id], 0, 0)
		delete(s.leases, id)
	}
	s.grant(false)
}

func (s *slots) grant(all bool) {
	s.account.Grant(time.Now(), all)
	for _, w := range s.account.Changes.Decided {
		if w.Result.Kind == budget.Granted {
			s.start(w.Request.ID, &w.Result)
		}
		delete(s.waiting, w.Request.ID)
	}
	s.account.Changes = budget.Changes{}
}

// want checks which requests have started since the previous call, in order.
func (s *slots) want(ids ...string) {
	s.t.Helper()
	if got := strings.Join(s.started, " "); got != strings.Join(ids, " ") {
		s.t.Errorf("%q started, want %q", got, ids)
	}
	s.started = nil
}

// wantBefore checks how many requests wait in front of some.
func (s *slots) wantBefore(want map[string]int) {
	s.t.Helper()
	for id, before := range want {
		if got, forSlot := s.account.Before(s.waiting[id]); got != before || !forSlot {
			s.t.Errorf("%d requests wait before %s for a slot (%t), want %d", got, id, forSlot, before)
		}
	}
}

// wantNothing checks that nothing runs and nothing waits.
func (s *slots) wantNothing() {
	s.t.Helper()
	if a := s.account; a.Running+a.Waiting+a.Queued() != 0 || len(s.leases)+len(s.waiting) != 0 {
		s.t.Errorf("%d run and %d wait, want none", a.Running, a.Waiting)
	}
}

func TestSlotsAreGrantedInOrderOfArrival(t *testing.T) {
	s := newSlots(t)
	s.limit("a", 1, 0)
	s.arrive("a0")
	s.want("a0")
	for i := range 50 {
		s.arrive(fmt.Sprint("a", i+1))
	}
	s.want()
	for i := range 50 {
		s.end(fmt.Sprint("a", i))
		s.want(fmt.Sprint("a", i+1))
	}
	s.end("a50")
	s.wantNothing()
}

func TestCancelledRequestLeavesTheQueueAtAnyPosition(t *testing.T) {
	s := newSlots(t)
	s.limit("a", 1, 0)
	s.arrive("a", "a0", "a1", "a2", "a3", "a4", "a5")
	s.wantBefore(map[string]int{"a0": 0, "a3": 3, "a5": 5})
	for _, id := range []string{"a0", "a3", "a5"} { // first, in the middle, last
		s.end(id)
	}
	s.wantBefore(map[string]int{"a1": 0, "a2": 1, "a4": 2})
	s.want("a")
	for _, c := range [][2]string{{"a", "a1"}, {"a1", "a2"}, {"a2", "a4"}} {
		s.end(c[0])
		s.want(c[1])
	}
	s.arrive("a6")
	s.end("a6") // all that waited have left
	s.arrive("a7")
	s.end("a4")
	s.want("a7")
	s.end("a7")
	s.wantNothing()
}

func TestKeysOfAnAccountShareItsSlotsInOrderOfArrival(t *testing.T) {
	s := newSlots(t)
	for _, key := range []string{"a", "b", "c"} {
		s.limit(key, 2, 3)
	}
	s.arrive("a1", "a2", "a3", "b1", "c1", "b2")
	s.want("a1", "a2", "b1") // a has no slot for a3, and the account none for c1
	if n := s.account.Queued(); n != 3 {
		t.Errorf("%d requests wait for a slot, want 3", n)
	}
	s.wantBefore(map[string]int{"a3": 0, "c1": 0, "b2": 1})
	s.end("b1")
	s.want("c1") // a3 arrived earlier, but its key has no slot
	s.end("a2")
	s.want("a3")
	s.end("a1")
	s.want("b2")
	for _, id := range []string{"a3", "c1", "b2"} {
		s.end(id)
	}
	s.wantNothing()
}

func TestChangedSlotsApplyToWaitingRequests(t *testing.T) {
	s := newSlots(t)
	s.limit("a", 1, 0)
	s.arrive("a1", "a2", "a3", "a4", "a5", "a6")
	s.want("a1")
	s.limit("a", 4, 0)
	s.want("a2", "a3", "a4")
	s.limit("a", 2, 0) // takes no slot away
	s.end("a1")
	s.end("a2")
	s.want()
	s.end("a3")
	s.want("a5")
	s.limit("a", 0, 0) // unbounded
	s.want("a6")
	for _, id := range []string{"a4", "a5", "a6"} {
		s.end(id)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		s.limit(key, 8, 1)
	}
	s.arrive("a7", "b1", "c1", "d1")
	s.want("a7")
	s.limit("a", 8, 3)
	s.want("b1", "c1")
	for _, id := range []string{"a7", "b1", "c1", "d1"} {
		s.end(id)
	}
	s.want("d1")
	s.wantNothing()
}

// A line of a batch needs no slot, and takes none.
func TestLinesOfBatchesNeedNoSlot(t *testing.T) {
	s := newSlots(t)
	s.limit("a", 1, 1)
	s.arrive("a1", "a2")
	line := &budget.Waiter{Request: budget.Request{ID: "line", KeyID: "a", Batch: "batch"}, Demand: demand(0, 1), NoWait: true}
	d := s.account.Admit(time.Now(), line)
	if d.Kind != budget.Granted || s.account.Running != 1 {
		t.Errorf("got %+v with %d requests that run, want it granted beside one", d, s.account.Running)
	}
	s.account.Settle(&d.Lease, 0, 0)
	s.grant(false)
	s.want("a1")
	s.end("a1")
	s.want("a2")
	s.end("a2")
	s.wantNothing()
}

// A request that waits for tokens alone is not told a place.
func TestBeforeIsAboutSlots(t *testing.T) {
	account := budget.NewAccount("acc", map[string]*budget.Owner{})
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
	p.Slots = 2
	account.SetPayer(&p)
	admit := func(tokens int64) (*budget.Waiter, budget.Kind) {
		w := &budget.Waiter{Request: budget.Request{KeyID: p.Key}, Demand: demand(0, tokens)}
		return w, account.Admit(time.Now(), w).Kind
	}
	running, kind := admit(60)
	waits, _ := admit(60)
	if _, forSlot := account.Before(waits); kind != budget.Granted || forSlot || account.Queued() != 0 || account.Waiting != 1 {
		t.Errorf("the first got %s; %d of %d wait for a slot, want a wait for tokens", kind, account.Queued(), account.Waiting)
	}
	p.Slots = 1
	account.SetPayer(&p)
	if n, forSlot := account.Before(waits); n != 0 || !forSlot || account.Queued() != 1 {
		t.Errorf("%d wait before it for a slot (%t), want it to wait for one", n, forSlot)
	}
	if _, forSlot := account.Before(running); forSlot {
		t.Error("a request that runs waits for a slot")
	}
}

// payerWithSlots returns a payer without caps.
func payerWithSlots(key string, ofKey, ofAccount int) budget.Payer {
	return budget.Payer{Key: key, Account: "acc", Slots: ofKey, AccountSlots: ofAccount}
}

// wantIdle checks that nothing runs or waits, and no slot is lost.
func wantIdle(tb testing.TB, l *budget.Ledger) {
	tb.Helper()
	if load := l.Load(); load.Keys+load.Open+load.Running+load.Waiting != 0 {
		tb.Errorf("got %+v, want no requests", load)
	}
}

// A request that raises its key's slots comes behind those that wait already.
func TestRequestThatRaisesTheSlotsDoesNotOvertakeOthers(t *testing.T) {
	l := newLedger(t)
	first := reserve(t, l, payerWithSlots("key", 1, 0), demand(0, 1))
	tried := make(chan struct{})
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			r := reserve(t, l, payerWithSlots("key", 1, 0), demand(0, 1))
			<-tried
			r.Release()
		})
	}
	for l.Load().Waiting < 3 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Reserve(ctx, payerWithSlots("key", 3, 0), newRequest(), demand(0, 1), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want it to wait: two of the others run", err)
	}
	close(tried)
	first.Release()
	waiting.Wait()
	wantIdle(t, l)
}

var errDisconnected = errors.New("the client disconnected")

// Requests of keys with few slots come, wait, run and disconnect: neither a key nor the account ever runs more than it has slots,
// and none is lost.
func TestConcurrentRequestsNeverExceedTheSlots(t *testing.T) {
	const keys, requests, ofAccount = 8, 3000, 5
	l := newLedger(t)
	var running [keys]atomic.Int64
	var all sync.WaitGroup
	var ofAll, served, cancelled atomic.Int64
	within := func(n *atomic.Int64, most int) {
		if got := n.Add(1); got > int64(most) {
			t.Errorf("%d requests run beside each other, want at most %d", got, most)
		}
	}
	for i := range requests {
		all.Go(func() {
			key := i % keys
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if rand.IntN(4) == 0 {
				all.Go(func() { cancel(errDisconnected) })
			}
			r, err := l.Reserve(ctx, payerWithSlots(fmt.Sprint("key", key), key/2+1, ofAccount), newRequest(), demand(0, 1), nil)
			if err != nil {
				if !errors.Is(err, errDisconnected) {
					t.Error(err)
				}
				cancelled.Add(1)
				return
			}
			defer r.Release()
			within(&running[key], key/2+1)
			within(&ofAll, ofAccount)
			runtime.Gosched()
			ofAll.Add(-1)
			running[key].Add(-1)
			served.Add(1)
		})
	}
	all.Wait() // blocks for ever if a slot is lost
	if served.Load()+cancelled.Load() != requests || served.Load() < requests/2 {
		t.Errorf("%d served, %d cancelled, want %d in total and at least half served", served.Load(), cancelled.Load(), requests)
	}
	wantIdle(t, l)
}

// A slot granted to a request that is cancelled at the same moment must reach the next request, or stay free.
func TestSlotOfACancelledRequestIsNotLost(t *testing.T) {
	l, p := newLedger(t), payerWithSlots("key", 1, 0)
	for range 300 {
		first := reserve(t, l, p, demand(0, 1))
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			r, err := l.Reserve(ctx, p, newRequest(), demand(0, 1), nil)
			if err == nil {
				r.Release()
			} else if !errors.Is(err, errDisconnected) {
				t.Errorf("got error %v, want the cause of the cancellation", err)
			}
		})
		all.Go(func() { reserve(t, l, p, demand(0, 1)).Release() })
		for l.Load().Waiting < 2 {
			runtime.Gosched()
		}
		all.Go(func() { cancel(errDisconnected) })
		all.Go(first.Release)
		all.Wait() // blocks for ever if the slot is lost
		wantIdle(t, l)
	}
}

func TestKeysTakeTheSlotsOfTheirParent(t *testing.T) {
	s := newSlots(t)
	s.adopt("P", 2, "a", "b")
	s.arrive("a1", "P1", "b1", "a2", "P2", "c1", "b2")
	s.want("a1", "P1", "c1")
	s.wantBefore(map[string]int{"b1": 0, "a2": 1, "P2": 2, "b2": 3})
	s.end("P1")
	s.want("b1")
	s.adopt("P", 3, "a")
	s.grant(true)
	s.want("a2")
	s.limit("a", 1, 0)
	s.arrive("a3")
	s.wantBefore(map[string]int{"P2": 0, "b2": 1, "a3": 2})
	s.end("b1")
	s.want("P2")
	s.end("P2")
	s.want("b2")
	for _, id := range []string{"a1", "a2", "a3", "b2", "c1"} {
		s.end(id)
	}
	s.wantNothing()
}

func TestTenThousandWaitersUseLittleMemory(t *testing.T) {
	const waiters = 10_000
	l, p := newLedger(t), payerWithSlots("key", 1, 0)
	first := reserve(t, l, p, demand(0, 1))
	before := memoryInUse()
	ctx, cancel := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { _, _ = l.Reserve(ctx, p, newRequest(), demand(0, 1), &fakeRequester{}) })
	}
	for l.Load().Waiting < waiters {
		runtime.Gosched()
	}
	each := (memoryInUse() - before) / waiters
	t.Logf("%d bytes per waiter, including its goroutine", each)
	if each > 16<<10 {
		t.Errorf("%d bytes per waiter, want at most %d", each, 16<<10)
	}
	start := time.Now()
	cancel(errDisconnected)
	all.Wait()
	t.Logf("all were cancelled within %v", time.Since(start))
	first.Release()
	wantIdle(t, l)
}

func memoryInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// The load tells requests that wait for a slot from those that wait for tokens, and leaves lines of batches out of those that run.
func TestLoadAndStatsCountRequests(t *testing.T) {
	l := newLedger(t)
	slots := payerWithSlots("key", 1, 2)
	tokens := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
	tokens.Key, tokens.Account = "other", "other"
	line := newRequest()
	line.Batch = "batch"
	ofLine, err := l.TryReserve(t.Context(), slots, line, demand(0, 1), nil)
	must(t, err)
	held := []budget.Reservation{ofLine, reserve(t, l, slots, demand(0, 10)), reserve(t, l, tokens, demand(0, 60))}
	var waiting sync.WaitGroup
	for _, p := range []budget.Payer{slots, slots, tokens} {
		waiting.Go(func() { reserve(t, l, p, demand(0, 60)).Release() })
	}
	for l.Load().Waiting < 3 {
		runtime.Gosched()
	}
	if got, want := l.Load(), (budget.Load{Reserved: 71, Open: 3, Keys: 2, Running: 2, Waiting: 3, Queued: 2, Blocked: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if key, account := l.Stats(slots); key != (budget.Stats{Running: 1, Waiting: 2}) || account != key {
		t.Errorf("got %+v and %+v, want one that runs and two that wait", key, account)
	}
	if key, account := l.Stats(payerWithSlots("unknown", 1, 1)); key != (budget.Stats{}) || account.Running != 1 {
		t.Errorf("a key without requests: got %+v and %+v", key, account)
	}
	for _, r := range slices.Backward(held) {
		r.Release()
	}
	waiting.Wait()
	wantIdle(t, l)
}

// Nothing is sent to a backend that could not be charged, also after a wait.
func TestRequestThatHasWaitedIsRefusedWhileTheDatabaseIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		l, p := startLedger(t, db), payerWithSlots("key", 1, 0)
		first := reserve(t, l, p, demand(0, 1))
		waits := goReserve(t, l, p, demand(0, 1))
		setDiskFull(t, db, true)
		for err := error(nil); err == nil; { // until the existing pages are full
			var r budget.Reservation
			r, err = l.Reserve(t.Context(), budget.Payer{Key: "other", Account: "other"}, newRequest(), demand(1, 9), nil)
			if err == nil { // else the release of the one before has found the disk full
				err = budget.OpenRow(t.Context(), r)
				r.Release()
			}
		}
		first.Release()
		if !waits.returned() || !errors.Is(waits.err, database.ErrUnavailable) {
			t.Errorf("got error %v, want ErrUnavailable", waits.err)
		}
		wantIdle(t, l)
		setDiskFull(t, db, false)
	})
}
