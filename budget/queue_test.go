package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
)

// call is a call of Reserve in another goroutine. r and err may be read when it has returned.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	r      budget.Reservation
	err    error
}

// goReserve calls Reserve in another goroutine, until it returns or waits. It must run in a synctest bubble.
func goReserve(t *testing.T, l *budget.Ledger, p budget.Payer, d budget.Demand) *call {
	t.Helper()
	return goReserveFor(t, l, p, d, nil)
}

func goReserveFor(t *testing.T, l *budget.Ledger, p budget.Payer, d budget.Demand, requester budget.Requester) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.r, c.err = l.Reserve(ctx, p, newRequest(), d, requester)
	}()
	synctest.Wait()
	return c
}

func (c *call) returned() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func TestRequestWaitsForReservationsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		held := reserve(t, l, p, demand(100, 800))
		a := goReserve(t, l, p, demand(100, 900))
		if a.returned() || l.Load().Waiting != 1 {
			t.Fatal("the request does not wait")
		}
		settle(t, held, 100, 50)
		if !a.returned() || a.err != nil {
			t.Fatalf("the request is not admitted after the settlement: error %v", a.err)
		}
		if a.r.MaxTokens() != 750 {
			t.Errorf("got %d tokens, want 750", a.r.MaxTokens())
		}
		b := goReserve(t, l, p, demand(100, 900))
		settle(t, a.r, 100, 750)
		var e *budget.Exceeded
		if !b.returned() || !errors.As(b.err, &e) || e.Used != 1000 || e.Reserved != 0 {
			t.Errorf("got error %v, want the waiting request refused once all tokens are used", b.err)
		}
	})
}

func TestRequestsBlockedByTheSameCapsAreAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		account := payerWithCap(budget.ScopeAccount, quota.Month, quota.Total, 1000)
		other := account
		other.Key = "other"
		held := reserve(t, l, account, demand(0, 900))
		big := goReserve(t, l, account, demand(0, 800))
		small := goReserve(t, l, other, demand(0, 50))
		free := goReserve(t, l, budget.Payer{Key: "key", Account: "elsewhere", AccountCaps: account.AccountCaps}, demand(0, 50))
		if big.returned() || small.returned() {
			t.Error("a later request was admitted before an earlier one")
		}
		if !free.returned() {
			t.Error("a request waits for reservations of another account")
		}
		settle(t, held, 0, 0)
		if !big.returned() || !small.returned() {
			t.Error("requests wait although their tokens fit")
		}
		settle(t, big.r, 0, 0)
		settle(t, small.r, 0, 0)
		settle(t, free.r, 0, 0)
	})
}

func TestARequestBlockedByItsKeyDoesNotBlockOtherKeysOfTheAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		one := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
		one.AccountCaps[quota.MonthTotal] = quota.Limit(1000)
		two := one
		two.Key = "other"
		held := reserve(t, l, one, demand(0, 80))
		a := goReserve(t, l, one, demand(0, 90))
		b := goReserve(t, l, two, demand(0, 90))
		c := goReserve(t, l, one, demand(0, 10))
		if a.returned() || !b.returned() || c.returned() {
			t.Errorf("returned: %v, %v, %v; want only the other key's request", a.returned(), b.returned(), c.returned())
		}
		settle(t, held, 0, 0)
		if !a.returned() || !c.returned() {
			t.Error("requests wait although their tokens fit")
		}
		settle(t, a.r, 0, 0)
		settle(t, b.r, 0, 0)
		settle(t, c.r, 0, 0)
	})
}

func TestCancelledRequestLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := payerWithCap(budget.ScopeAccount, quota.Day, quota.Total, 100)
		held := reserve(t, l, p, demand(0, 50))
		first := goReserve(t, l, p, demand(0, 80))
		second := goReserve(t, l, p, demand(0, 50))
		if second.returned() {
			t.Error("the second request was admitted before the first")
		}
		first.cancel()
		if !first.returned() || !errors.Is(first.err, context.Canceled) {
			t.Errorf("cancelled: got error %v, want context.Canceled", first.err)
		}
		if !second.returned() || second.err != nil {
			t.Errorf("the next request is not admitted: error %v", second.err)
		}
		if n := l.Load().Waiting; n != 0 {
			t.Errorf("%d requests wait, want 0", n)
		}
		settle(t, held, 0, 0)
		settle(t, second.r, 0, 0)
		if n := l.Reserved(); n != 0 {
			t.Errorf("%d tokens are reserved after all settlements, want 0", n)
		}
	})
}

func TestMemoryIsReservedOnlyWhileARequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		atOnce := &fakeRequester{}
		held, err := l.Reserve(t.Context(), p, newRequest(), demand(0, 900), atOnce)
		must(t, err)
		if atOnce.memoryReserved != 0 {
			t.Errorf("a request that does not wait reserved memory %d times, want 0", atOnce.memoryReserved)
		}
		waiting := &fakeRequester{}
		c := goReserveFor(t, l, p, demand(0, 500), waiting)
		if c.returned() || waiting.memoryReserved != 1 || waiting.memoryReleased != 0 {
			t.Errorf("while it waits: returned %v, memory reserved %d times and released %d times; want false, 1, 0",
				c.returned(), waiting.memoryReserved, waiting.memoryReleased)
		}
		if _, forSlot := waiting.before(); forSlot {
			t.Error("a request that waits for tokens is told a place in the queue for slots")
		}
		full := &fakeRequester{memoryErr: errors.New("no memory")}
		if _, err := l.Reserve(t.Context(), p, newRequest(), demand(0, 500), full); !errors.Is(err, full.memoryErr) {
			t.Errorf("without memory: got error %v, want %v", err, full.memoryErr)
		}
		if n := l.Load().Waiting; n != 1 {
			t.Errorf("%d requests wait, want 1", n)
		}
		settle(t, held, 0, 0)
		if !c.returned() || c.err != nil || waiting.memoryReleased != 1 {
			t.Errorf("after the wait: returned %v with error %v, memory released %d times; want true, nil, 1",
				c.returned(), c.err, waiting.memoryReleased)
		}
		settle(t, c.r, 0, 0)
	})
}

func TestCloseRefusesWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := payerWithCap(budget.ScopeAccount, quota.Day, quota.Total, 100)
		held := reserve(t, l, p, demand(0, 100))
		a := goReserve(t, l, p, demand(0, 80))
		l.Close()
		if !a.returned() || !errors.Is(a.err, budget.ErrClosed) {
			t.Errorf("waiting request: got error %v, want ErrClosed", a.err)
		}
		if _, err := l.Reserve(t.Context(), p, newRequest(), demand(0, 1), nil); !errors.Is(err, budget.ErrClosed) {
			t.Errorf("after Close: got error %v, want ErrClosed", err)
		}
		settle(t, held, 0, 7)
	})
}

func TestANewWindowAdmitsWaitingRequests(t *testing.T) {
	for _, c := range []struct {
		window   quota.Window
		start    string
		rollover string
	}{
		{quota.Day, "2000-02-28T23:59:50Z", "2000-02-29T00:00:00Z"},
		{quota.Day, "2000-02-29T23:59:50Z", "2000-03-01T00:00:00Z"},
		{quota.Month, "2000-02-29T23:59:50Z", "2000-03-01T00:00:00Z"},
		{quota.Month, "2000-12-31T23:59:50Z", "2001-01-01T00:00:00Z"},
	} {
		t.Run(fmt.Sprint(c.window, " ", c.rollover), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(parseTime(t, c.start)))
				l := newLedger(t)
				p := payerWithCap(budget.ScopeKey, c.window, quota.Total, 100)
				held := reserve(t, l, p, demand(0, 60))
				spend(t, l, "key", "acc", 40, 0)
				a := goReserve(t, l, p, demand(0, 60))
				if a.returned() {
					t.Fatal("the request does not wait")
				}
				_, err := l.Reserve(t.Context(), p, newRequest(), demand(60, 1), nil)
				var e *budget.Exceeded
				if !errors.As(err, &e) || !e.ResetsAt.Equal(parseTime(t, c.rollover)) || e.Used != 40 || e.Reserved != 60 {
					t.Errorf("got error %v (%+v), want 40 used and 60 reserved until %s", err, e, c.rollover)
				}
				time.Sleep(time.Until(parseTime(t, c.rollover)) + 1500*time.Millisecond)
				if !a.returned() || a.err != nil || a.r.Clamped() {
					t.Fatalf("the request is not admitted in full in the new window: error %v", a.err)
				}
				settle(t, held, 0, 60) // is charged to the window that has ended
				settle(t, a.r, 0, 10)
				if h, _ := l.Balance(p).TightestTotal(); h.Remaining() != 90 {
					t.Errorf("%d tokens are left in the new window, want 90", h.Remaining())
				}
			})
		})
	}
}

func TestConcurrentRequestsNeverExceedACap(t *testing.T) {
	for _, c := range capCases() {
		t.Run(fmt.Sprint(c.scope, " ", c.window, " ", c.meter), func(t *testing.T) {
			const limit, most = 5000, 60
			l := newLedger(t)
			p := payerWithCap(c.scope, c.window, c.meter, limit)
			var refused, settled atomic.Int64
			var all sync.WaitGroup
			for i := range 400 {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					prompt := 1 + rng.Int64N(most/2)
					r, err := l.Reserve(t.Context(), p, newRequest(), demand(prompt, 1+rng.Int64N(most/2)), nil)
					if e := l.Overdrawn(p); e != nil {
						t.Errorf("used and reserved tokens exceed a cap: %+v", e)
					}
					if _, ok := errors.AsType[*budget.Exceeded](err); ok {
						refused.Add(1)
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					taken := r.MaxTokens() - rng.Int64N(r.MaxTokens())
					if err := r.Settle(t.Context(), budget.Outcome{Prompt: prompt, Completion: taken, Status: 200}); err != nil {
						t.Error(err)
					}
					settled.Add(1)
					if e := l.Overdrawn(p); e != nil {
						t.Errorf("used and reserved tokens exceed a cap: %+v", e)
					}
				})
			}
			all.Wait()
			if settled.Load()+refused.Load() != 400 || l.Reserved() != 0 || l.Load().Waiting != 0 {
				t.Errorf("%d settled, %d refused, want 400 in total; %d tokens reserved, %d requests waiting, want 0",
					settled.Load(), refused.Load(), l.Reserved(), l.Load().Waiting)
			}
			var prompt, completion int64
			for _, r := range usageBy(t, l, usage.Filter{}, usage.ByAccount) {
				prompt, completion = prompt+r.PromptTokens, completion+r.CompletionTokens
			}
			used := map[quota.Meter]int64{quota.Total: prompt + completion, quota.Input: prompt, quota.Output: completion}[c.meter]
			if used > limit || refused.Load() > 0 && used < limit-most {
				t.Errorf("%d tokens are used, want at most %d, and at least %d if a request was refused", used, limit, limit-most)
			}
			fmt.Fprintln(t.Output(), used, "used,", refused.Load(), "refused")
		})
	}
}

// fakePayers is a Settings.Payer whose result the test sets.
type fakePayers struct {
	mu    sync.Mutex
	payer budget.Payer
	err   error
}

func (f *fakePayers) set(p budget.Payer, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.payer, f.err = p, err
}

func (f *fakePayers) lookup(string) (budget.Payer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payer, f.err
}

func TestRefreshCapsEvaluatesWaitingRequestsByTheCurrentCaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		initial := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		payers := &fakePayers{payer: initial}
		l := budget.New(openDatabase(t, newPath(t)), zap.NewNop(), budget.Settings{Payer: payers.lookup})
		must(t, l.Start(t.Context()))
		t.Cleanup(l.Close)
		capped := func(limit int64) budget.Payer {
			return payerWithCap(budget.ScopeKey, quota.Month, quota.Total, limit)
		}

		first := reserve(t, l, initial, demand(0, 900))
		raised := goReserve(t, l, initial, demand(100, 500))
		payers.set(capped(1500), nil)
		l.RefreshCaps()
		if !raised.returned() || raised.err != nil || raised.r.Clamped() {
			t.Fatalf("a raised cap does not admit the request in full: error %v", raised.err)
		}

		lowered := goReserve(t, l, initial, demand(100, 500))
		if lowered.returned() {
			t.Fatal("the request does not wait")
		}
		payers.set(capped(50), nil)
		l.RefreshCaps()
		var e *budget.Exceeded
		if !lowered.returned() || !errors.As(lowered.err, &e) || e.Limit != 50 {
			t.Errorf("a cap lowered below the prompt: got error %v, want Exceeded with a limit of 50", lowered.err)
		}

		payers.set(capped(1500), nil)
		disabled := goReserve(t, l, initial, demand(100, 500))
		paused := errors.New("paused")
		payers.set(initial, paused)
		l.RefreshCaps()
		if !disabled.returned() || !errors.Is(disabled.err, budget.ErrKeyDisabled) || !errors.Is(disabled.err, paused) {
			t.Errorf("waiting request of a paused key: got error %v, want ErrKeyDisabled with its cause", disabled.err)
		}
		if _, err := l.Reserve(t.Context(), initial, newRequest(), demand(1, 1), nil); !errors.Is(err, budget.ErrKeyDisabled) {
			t.Errorf("new request of a paused key: got error %v, want ErrKeyDisabled", err)
		}
		payers.set(initial, nil)
		settle(t, first, 0, 0)
		settle(t, raised.r, 0, 0)
		if l.Load().Waiting != 0 {
			t.Errorf("%d requests wait, want 0", l.Load().Waiting)
		}
	})
}

// A request that waits for tokens does not begin beside more requests of its key than may run by then.
func TestLoweredSlotsHoldBackRequestsThatWaitForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		p.Slots = 3
		payers := &fakePayers{payer: p}
		l := budget.New(openDatabase(t, newPath(t)), zap.NewNop(), budget.Settings{Payer: payers.lookup})
		must(t, l.Start(t.Context()))
		t.Cleanup(l.Close)

		first, second := reserve(t, l, p, demand(0, 300)), reserve(t, l, p, demand(0, 300))
		waits := goReserve(t, l, p, demand(0, 600))
		lowered := p
		lowered.Slots = 1
		payers.set(lowered, nil)
		l.RefreshCaps()
		settle(t, first, 0, 0) // its tokens would do
		if waits.returned() {
			t.Fatal("a second request of a key with one slot runs")
		}
		line := newRequest()
		line.Batch = "batch_1"
		needsNoSlot, err := l.TryReserve(t.Context(), p, line, demand(0, 10), nil)
		must(t, err)
		settle(t, needsNoSlot, 0, 0)
		if waits.returned() {
			t.Fatal("a line of a batch has given the slot of another request away")
		}
		settle(t, second, 0, 0)
		if !waits.returned() || waits.err != nil {
			t.Fatalf("the request waits although a slot is free: error %v", waits.err)
		}
		next := goReserve(t, l, p, demand(0, 10))
		payers.set(p, nil)
		l.RefreshCaps()
		if !next.returned() || next.err != nil {
			t.Errorf("the request waits although more slots are free: error %v", next.err)
		}
		settle(t, waits.r, 0, 0)
		settle(t, next.r, 0, 0)
	})
}

// Every settlement of the account decides again on all that wait, also while none of them can get a slot of the account.
func TestLinesTakeNoTokensThatARequestWithoutASlotWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
		p.AccountSlots = 1
		other := budget.Payer{Key: "other", Account: p.Account, AccountSlots: 1}
		line := func(p budget.Payer, tokens int64) (budget.Reservation, error) {
			r := newRequest()
			r.Batch = "batch_1"
			return l.TryReserve(t.Context(), p, r, demand(0, tokens), nil)
		}
		ofKey, err := line(p, 80)
		must(t, err)
		ofOther, err := line(other, 10)
		must(t, err)
		running := reserve(t, l, other, demand(0, 10))
		first, second := goReserve(t, l, other, demand(0, 10)), goReserve(t, l, p, demand(0, 60))
		settle(t, ofOther, 0, 10)
		if _, err := line(p, 20); !errors.Is(err, budget.ErrReserved) {
			t.Errorf("a line beside a request that waits for its tokens: got error %v, want ErrReserved", err)
		}
		settle(t, running, 0, 10)
		settle(t, ofKey, 0, 0)
		if !first.returned() || second.returned() {
			t.Fatalf("returned: %v, %v; want only the first request", first.returned(), second.returned())
		}
		settle(t, first.r, 0, 10)
		if !second.returned() {
			t.Fatal("the request waits although its slot and its tokens are free")
		}
		last, err := line(p, 20)
		must(t, err)
		settle(t, last, 0, 20)
		settle(t, second.r, 0, 60)
	})
}
