package admission_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/admission"
)

func take(tb testing.TB, turns *admission.Turns, account string) *admission.Turn {
	tb.Helper()
	turn, err := turns.Acquire(tb.Context(), account)
	if err != nil {
		tb.Fatal(err)
	}
	return turn
}

// An account that waits more than another one gets no more places.
func TestAccountsGetPlacesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(1, 1)
		first := take(t, turns, "a")
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		for _, account := range []string{"a", "a", "a", "b", "b", "c"} {
			wg.Go(func() {
				turn := take(t, turns, account)
				mu.Lock()
				order = append(order, account)
				mu.Unlock()
				turn.Release()
			})
			synctest.Wait()
		}
		first.Release()
		wg.Wait()
		if want := []string{"a", "b", "c", "a", "b", "a"}; !slices.Equal(order, want) {
			t.Errorf("got turns %v, want %v", order, want)
		}
		if s := turns.Stats(); s.Running != 0 || s.Waiting != 0 || s.Accounts != 0 {
			t.Errorf("after all turns: got %+v, want none held", s)
		}
	})
}

// holdMany lets 20 callers acquire a place, and hold it until release.
func holdMany(t *testing.T, acquire func(context.Context) (*admission.Turn, error)) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if turn, err := acquire(ctx); err == nil {
				<-ctx.Done()
				turn.Release()
			}
		})
	}
	synctest.Wait()
	return func() {
		cancel()
		wg.Wait()
	}
}

func TestAnAccountLeavesPlacesForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(8, 8)
		release := holdMany(t, func(ctx context.Context) (*admission.Turn, error) { return turns.Acquire(ctx, "greedy") })
		if s := turns.Stats(); s.Running != 4 || s.Waiting != 16 {
			t.Errorf("of one account: got %d places and %d waiting, want 4 and 16", s.Running, s.Waiting)
		}
		for i := range 4 {
			take(t, turns, fmt.Sprint("account ", i)) // at once
		}
		release()
		if s := turns.Stats(); s.Running != 4 || s.Waiting != 0 {
			t.Errorf("got %+v, want the four others' places", s)
		}
	})
}

func TestAKeyLeavesPlacesOfItsAccountForOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(32, 8)
		release := holdMany(t, func(ctx context.Context) (*admission.Turn, error) { return turns.AcquireOf(ctx, "a", "greedy") })
		if s := turns.Stats(); s.Running != 4 || s.Waiting != 16 {
			t.Errorf("of one key: got %d places and %d waiting, want 4 and 16", s.Running, s.Waiting)
		}
		for round := range 2 {
			var held []*admission.Turn
			for i := range 4 { // behind those that wait, at once
				turn, err := turns.AcquireOf(t.Context(), "a", fmt.Sprint("key ", i))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, turn)
			}
			if s := turns.Stats(); s.Running != 8 || s.Waiting != 16 {
				t.Errorf("round %d: got %d places and %d waiting, want 8 and 16", round, s.Running, s.Waiting)
			}
			for _, turn := range held {
				turn.Release()
			}
		}
		release()
		if s := turns.Stats(); s.Running != 0 || s.Waiting != 0 || s.Accounts != 0 {
			t.Errorf("got %+v, want nothing held", s)
		}
	})
}

func TestYieldGivesThePlaceToAnotherAccountOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(1, 1)
		long := take(t, turns, "a")
		var second, other *admission.Turn
		var wg sync.WaitGroup
		wg.Go(func() { second = take(t, turns, "a") })
		synctest.Wait()
		if err := long.Yield(t.Context()); err != nil || second != nil {
			t.Errorf("with another waiter of the account: got %v, %v, want that the place is kept", err, second)
		}
		wg.Go(func() { other = take(t, turns, "b") })
		synctest.Wait()
		yielded := make(chan error)
		go func() { yielded <- long.Yield(t.Context()) }()
		synctest.Wait()
		if other == nil || second != nil {
			t.Fatal("the other account does not have the place")
		}
		other.Release()
		synctest.Wait()
		// Within the account it is the turn of the one who came first.
		if second == nil {
			t.Fatal("the account's second one does not have the place")
		}
		second.Release()
		if err := <-yielded; err != nil {
			t.Error(err)
		}
		long.Release()
		wg.Wait()
	})
}

func TestWaitThatEndsTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(1, 1)
		first := take(t, turns, "a")
		why := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() {
			_, err := turns.Acquire(ctx, "b")
			failed <- err
		}()
		synctest.Wait()
		time.Sleep(time.Minute)
		if s := turns.Stats(); s.Longest != time.Minute {
			t.Errorf("the longest wait: got %v, want a minute", s.Longest)
		}
		cancel(why)
		if err := <-failed; !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
		if err := first.Yield(ctx); !errors.Is(err, why) {
			t.Errorf("Yield: got %v, want the cause", err)
		}
		first.Release() // it was not held any more
		if s := turns.Stats(); s.Running != 0 || s.Waiting != 0 || s.Accounts != 0 || s.Refused != 1 {
			t.Errorf("got %+v, want nothing held, one refused", s)
		}
		take(t, turns, "c").Release()
	})
}

func TestNoPlaceIsLostWhileWaitersLeave(t *testing.T) {
	turns := admission.NewTurns(4, 3)
	var wg sync.WaitGroup
	for account := range 8 {
		for i := range 8 {
			wg.Go(func() {
				for round := range 50 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*round)*time.Microsecond)
					if turn, err := turns.Acquire(ctx, fmt.Sprint(account)); err == nil {
						if turn.Yield(ctx) == nil {
							turn.Release()
						}
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if s := turns.Stats(); s.Running != 0 || s.Waiting != 0 || s.Accounts != 0 {
		t.Errorf("got %+v, want nothing held", s)
	}
}

func TestTurnsSayWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(2, 1)
		held := take(t, turns, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { turns.Acquire(ctx, "a") })
		}
		defer take(t, turns, "b").Release()
		time.Sleep(3 * time.Second)
		want := []admission.AccountTurns{{Account: "a", Running: 1, Waiting: 2, Longest: 3 * time.Second}, {Account: "b", Running: 1}}
		if got := turns.Accounts(); !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		metrics := func() string {
			var text strings.Builder
			registry := prometheus.NewRegistry()
			registry.MustRegister(turns.Collectors("uploads")...)
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				m := f.Metric[0]
				fmt.Fprintf(&text, "%s %s %g\n", f.GetName(), m.Label[0].GetValue(), m.Gauge.GetValue()+m.Counter.GetValue())
			}
			return text.String()
		}
		wanted := `basegate_turns_longest_wait_seconds uploads 3
basegate_turns_places uploads 2
basegate_turns_refused_total uploads 0
basegate_turns_running uploads 2
basegate_turns_waiting uploads 2
`
		if got := metrics(); got != wanted {
			t.Errorf("got metrics\n%swant\n%s", got, wanted)
		}
		wg.Wait() // for the minute
		held.Release()
		if got := metrics(); !strings.Contains(got, "refused_total uploads 2\n") {
			t.Errorf("after two refusals, got metrics\n%s", got)
		}
	})
}

// Places that are held beyond a lower number are kept, and nobody gets another one before enough are given back.
func TestTheNumberOfPlacesMayChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(3, 0)
		held := make([]admission.Turn, 3)
		for i := range held {
			if !turns.Try(&held[i]) {
				t.Fatalf("place %d of 3 is not free", i+1)
			}
		}
		if turns.Try(new(admission.Turn)) {
			t.Error("got a fourth place of three")
		}
		var wg sync.WaitGroup
		granted := make(chan string, 2)
		for _, account := range []string{"a", "b"} {
			wg.Go(func() {
				turn := take(t, turns, account)
				granted <- account
				turn.Release()
			})
			synctest.Wait()
		}
		turns.SetPlaces(1)
		held[0].Release()
		held[0].Release() // has no effect
		held[1].Release()
		synctest.Wait()
		if s := turns.Stats(); s.Running != 1 || s.Waiting != 2 {
			t.Errorf("with one place that is held: got %+v, want one running and two waiting", s)
		}
		turns.SetPlaces(2)
		wg.Wait()
		if first, second := <-granted, <-granted; first != "a" || second != "b" {
			t.Errorf("got turns of %s and %s, want a and b", first, second)
		}
		held[2].Release()
		if s := turns.Stats(); s.Running != 0 || s.Accounts != 0 {
			t.Errorf("at the end: got %+v, want no place held", s)
		}
	})
}

// Each account has a number of its own, and a changed one applies to calls that wait already.
func TestAccountsHoldAsManyPlacesAsTheyMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := admission.NewTurns(math.MaxInt, 0)
		got := make(chan *admission.Turn, 4)
		acquire := func(account string, most int) {
			go func() {
				turn, err := turns.AcquireUpTo(t.Context(), account, most)
				if err != nil {
					t.Error(err)
				}
				got <- turn
			}()
			synctest.Wait()
		}
		for range 3 {
			acquire("a", 1)
		}
		acquire("b", 1)
		if s := turns.Stats(); s.Running != 2 || s.Waiting != 2 {
			t.Errorf("got %+v, want one place of each", s)
		}
		acquire("a", 3)
		if s := turns.Stats(); s.Running != 4 || s.Waiting != 1 {
			t.Errorf("got %+v, want three places of the account", s)
		}
		for range 5 {
			(<-got).Release()
		}
		if s := turns.Stats(); s.Running != 0 || s.Accounts != 0 {
			t.Errorf("after all: got %+v, want none held", s)
		}
	})
}
