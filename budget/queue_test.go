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
	"basegate/quota"
)

// arrival is somebody who asks in a goroutine of its own.
type arrival struct {
	leave context.CancelFunc
	done  chan struct{}
	r     *budget.Reservation
	err   error
}

// arrive asks, and returns when that is decided or waits.
func arrive(t *testing.T, l *budget.Ledger, p budget.Payer, d budget.Demand) *arrival {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	a := &arrival{leave: leave, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.r, a.err = l.Reserve(ctx, p, request(), d, nil)
	}()
	synctest.Wait()
	return a
}

func (a *arrival) decided() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func TestReservationsOfOthersMakeWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := capOf(budget.Key, budget.Month, budget.Total, 1000)
		held := reserve(t, l, p, exactly(100, 800))
		a := arrive(t, l, p, exactly(100, 900))
		if a.decided() || l.Waiting() != 1 {
			t.Fatal("it does not wait")
		}
		settle(t, held, 100, 50)
		if !a.decided() || a.err != nil {
			t.Fatalf("it is not let in: %v", a.err)
		}
		if a.r.MaxTokens() != 750 {
			t.Errorf("%d tokens are left for it", a.r.MaxTokens())
		}
		b := arrive(t, l, p, exactly(100, 900))
		settle(t, a.r, 100, 750)
		var e *budget.Exceeded
		if !b.decided() || !errors.As(b.err, &e) || e.Used != 1000 || e.Reserved != 0 {
			t.Errorf("what is used refuses who waits: %v", b.err)
		}
	})
}

func TestWhoWaitsIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		account := capOf(budget.Account, budget.Month, budget.Total, 1000)
		other := account
		other.Key = "other"
		held := reserve(t, l, account, exactly(0, 900))
		big := arrive(t, l, account, exactly(0, 800))
		small := arrive(t, l, other, exactly(0, 50))
		free := arrive(t, l, budget.Payer{Key: "key", Account: "elsewhere", AccountCaps: account.AccountCaps}, exactly(0, 50))
		if big.decided() || small.decided() {
			t.Error("somebody overtakes who came first")
		}
		if !free.decided() {
			t.Error("somebody waits for another account")
		}
		settle(t, held, 0, 0)
		if !big.decided() || !small.decided() {
			t.Error("they wait for nothing")
		}
		settle(t, big.r, 0, 0)
		settle(t, small.r, 0, 0)
		settle(t, free.r, 0, 0)
	})
}

func TestAKeyThatWaitsDoesNotHoldItsAccountUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		one := capOf(budget.Key, budget.Month, budget.Total, 100)
		one.AccountCaps.MonthTotal = quota.Limit(1000)
		two := one
		two.Key = "other"
		held := reserve(t, l, one, exactly(0, 80))
		a := arrive(t, l, one, exactly(0, 90))
		b := arrive(t, l, two, exactly(0, 90))
		c := arrive(t, l, one, exactly(0, 10))
		if a.decided() || !b.decided() || c.decided() {
			t.Errorf("decided: %v, %v, %v", a.decided(), b.decided(), c.decided())
		}
		settle(t, held, 0, 0)
		if !a.decided() || !c.decided() {
			t.Error("they wait for nothing")
		}
		settle(t, a.r, 0, 0)
		settle(t, b.r, 0, 0)
		settle(t, c.r, 0, 0)
	})
}

func TestWhoLeavesLosesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := capOf(budget.Account, budget.Day, budget.Total, 100)
		held := reserve(t, l, p, exactly(0, 50))
		first := arrive(t, l, p, exactly(0, 80))
		second := arrive(t, l, p, exactly(0, 50))
		if second.decided() {
			t.Error("it overtakes")
		}
		first.leave()
		if !first.decided() || !errors.Is(first.err, context.Canceled) {
			t.Errorf("it stays: %v", first.err)
		}
		if !second.decided() || second.err != nil {
			t.Errorf("the next one is not let in: %v", second.err)
		}
		if n := l.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
		settle(t, held, 0, 0)
		settle(t, second.r, 0, 0)
		if n := l.Reserved(); n != 0 {
			t.Errorf("%d tokens stay reserved", n)
		}
	})
}

func TestCloseTurnsAwayWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		p := capOf(budget.Account, budget.Day, budget.Total, 100)
		held := reserve(t, l, p, exactly(0, 100))
		a := arrive(t, l, p, exactly(0, 80))
		l.Close()
		if !a.decided() || !errors.Is(a.err, budget.ErrClosed) {
			t.Errorf("it waits on: %v", a.err)
		}
		if _, err := l.Reserve(t.Context(), p, request(), exactly(0, 1), nil); !errors.Is(err, budget.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		settle(t, held, 0, 7)
	})
}

func TestANewWindowLetsIn(t *testing.T) {
	for _, c := range []struct {
		window budget.Window
		start  string
		turn   string
	}{
		{budget.Day, "2000-02-28T23:59:50Z", "2000-02-29T00:00:00Z"},
		{budget.Day, "2000-02-29T23:59:50Z", "2000-03-01T00:00:00Z"},
		{budget.Month, "2000-02-29T23:59:50Z", "2000-03-01T00:00:00Z"},
		{budget.Month, "2000-12-31T23:59:50Z", "2001-01-01T00:00:00Z"},
	} {
		t.Run(name(c.window, " ", c.turn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(at(t, c.start)))
				l := newLedger(t)
				p := capOf(budget.Key, c.window, budget.Total, 100)
				held := reserve(t, l, p, exactly(0, 60))
				a := arrive(t, l, p, exactly(0, 60))
				if a.decided() {
					t.Fatal("it does not wait")
				}
				spend(t, l, "key", "acc", 40, 0)
				_, err := l.Reserve(t.Context(), p, request(), exactly(60, 1), nil)
				var e *budget.Exceeded
				if !errors.As(err, &e) || !e.ResetsAt.Equal(at(t, c.turn)) || e.Used != 40 || e.Reserved != 60 {
					t.Errorf("refused with %+v, %v", e, err)
				}
				time.Sleep(time.Until(at(t, c.turn)) + 1500*time.Millisecond)
				if !a.decided() || a.err != nil || a.r.Clamped() {
					t.Fatalf("it is not let in: %v", a.err)
				}
				settle(t, held, 0, 60) // belongs to the window that has ended
				settle(t, a.r, 0, 10)
				if h, _ := l.Tightest(p); h.Remaining != 90 {
					t.Errorf("%d tokens are left in the new window", h.Remaining)
				}
			})
		})
	}
}

func TestManyAtOnceNeverPassACap(t *testing.T) {
	for _, c := range capCases() {
		t.Run(name(c.scope, " ", c.window, " ", c.meter), func(t *testing.T) {
			const limit, most = 5000, 60
			l := newLedger(t)
			p := capOf(c.scope, c.window, c.meter, limit)
			var refused, settled atomic.Int64
			var all sync.WaitGroup
			for i := range 400 {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					prompt := 1 + rng.Int64N(most/2)
					r, err := l.Reserve(t.Context(), p, request(), exactly(prompt, 1+rng.Int64N(most/2)), nil)
					if e := l.Overdrawn(p); e != nil {
						t.Errorf("overdrawn: %+v", e)
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
						t.Errorf("overdrawn: %+v", e)
					}
				})
			}
			all.Wait()
			if settled.Load()+refused.Load() != 400 || l.Reserved() != 0 || l.Waiting() != 0 {
				t.Errorf("%d settled, %d refused, %d reserved, %d waiting", settled.Load(), refused.Load(), l.Reserved(), l.Waiting())
			}
			var prompt, completion int64
			rows, err := l.Usage(t.Context(), budget.Filter{}, budget.ByAccount)
			must(t, err)
			for _, r := range rows {
				prompt, completion = prompt+r.PromptTokens, completion+r.CompletionTokens
			}
			used := map[budget.Meter]int64{budget.Total: prompt + completion, budget.Input: prompt, budget.Output: completion}[c.meter]
			if used > limit || refused.Load() > 0 && used < limit-most {
				t.Errorf("%d of %d tokens are used", used, limit)
			}
			fmt.Fprintln(t.Output(), used, "used,", refused.Load(), "refused")
		})
	}
}

// register is what the ledger is told of keys while the test changes it.
type register struct {
	mu     sync.Mutex
	payer  budget.Payer
	barred error
}

func (r *register) set(p budget.Payer, barred error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.payer, r.barred = p, barred
}

func (r *register) look(string) (budget.Payer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.payer, r.barred
}

func TestWhoWaitsIsJudgedByTheCapsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		came := capOf(budget.Key, budget.Month, budget.Total, 1000)
		keys := &register{payer: came}
		l := budget.New(openDatabase(t, newPath(t)), zap.NewNop(), budget.Settings{Payer: keys.look})
		must(t, l.Start(t.Context()))
		t.Cleanup(l.Close)
		capped := func(limit int64) budget.Payer { return capOf(budget.Key, budget.Month, budget.Total, limit) }

		first := reserve(t, l, came, exactly(0, 900))
		raised := arrive(t, l, came, exactly(100, 500))
		keys.set(capped(1500), nil)
		l.RefreshCaps()
		if !raised.decided() || raised.err != nil || raised.r.Clamped() {
			t.Fatalf("a cap that is raised does not let in: %v", raised.err)
		}

		lowered := arrive(t, l, came, exactly(100, 500))
		if lowered.decided() {
			t.Fatal("it does not wait")
		}
		keys.set(capped(50), nil)
		l.RefreshCaps()
		var e *budget.Exceeded
		if !lowered.decided() || !errors.As(lowered.err, &e) || e.Limit != 50 {
			t.Errorf("a cap below the prompt lets wait: %v", lowered.err)
		}

		keys.set(capped(1500), nil)
		barred := arrive(t, l, came, exactly(100, 500))
		paused := errors.New("paused")
		keys.set(came, paused)
		l.RefreshCaps()
		if !barred.decided() || !errors.Is(barred.err, budget.ErrKeyDisabled) || !errors.Is(barred.err, paused) {
			t.Errorf("a key that is paused waits on: %v", barred.err)
		}
		if _, err := l.Reserve(t.Context(), came, request(), exactly(1, 1), nil); !errors.Is(err, budget.ErrKeyDisabled) {
			t.Errorf("a key that is paused is let in: %v", err)
		}
		keys.set(came, nil)
		settle(t, first, 0, 0)
		settle(t, raised.r, 0, 0)
		if l.Waiting() != 0 {
			t.Errorf("%d wait", l.Waiting())
		}
	})
}
