package budget_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/quota"
)

// capOf is a payer with one cap.
func capOf(scope budget.Scope, window budget.Window, meter budget.Meter, tokens int64) budget.Payer {
	p := budget.Payer{Key: "key", Account: "acc"}
	caps := &p.KeyCaps
	if scope == budget.Account {
		caps = &p.AccountCaps
	}
	switch {
	case window == budget.Day:
		caps.DayTotal = quota.Limit(tokens)
	case meter == budget.Input:
		caps.MonthInput = quota.Limit(tokens)
	case meter == budget.Output:
		caps.MonthOutput = quota.Limit(tokens)
	default:
		caps.MonthTotal = quota.Limit(tokens)
	}
	return p
}

type capCase struct {
	scope  budget.Scope
	window budget.Window
	meter  budget.Meter
}

func capCases() []capCase {
	var all []capCase
	for _, scope := range []budget.Scope{budget.Key, budget.Account} {
		all = append(all,
			capCase{scope, budget.Month, budget.Total}, capCase{scope, budget.Day, budget.Total},
			capCase{scope, budget.Month, budget.Input}, capCase{scope, budget.Month, budget.Output})
	}
	return all
}

func nextReset(w budget.Window) time.Time {
	now := time.Now().UTC()
	if w == budget.Day {
		return time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

func TestEveryCapRefusesAndClampsExactly(t *testing.T) {
	for _, c := range capCases() {
		t.Run(name(c.scope, " ", c.window, " ", c.meter), func(t *testing.T) {
			l := newLedger(t)
			p := capOf(c.scope, c.window, c.meter, 1000)
			spend(t, l, "key", "acc", 300, 200)
			used := map[budget.Meter]int64{budget.Total: 500, budget.Input: 300, budget.Output: 200}[c.meter]
			refusal := &budget.Exceeded{
				Scope: c.scope, Window: c.window, Meter: c.meter, Limit: 1000, Used: used, ResetsAt: nextReset(c.window),
			}
			for _, try := range []struct {
				prompt, candidates, max int64
				total, input, output    int64 // what is granted under such a cap; 0: refused
			}{
				{100, 1, 400, 400, 400, 400},
				{100, 1, 401, 400, 401, 401},
				{100, 3, 400, 133, 400, 266},
				{499, 1, 16, 1, 16, 16},
				{500, 1, 16, 0, 16, 16},
				{499, 2, 16, 0, 16, 16},
				{700, 1, 900, 0, 900, 800},
				{701, 1, 900, 0, 0, 800},
				{1, 800, 9, 0, 9, 1},
				{1, 801, 9, 0, 9, 0},
			} {
				want := map[budget.Meter]int64{budget.Total: try.total, budget.Input: try.input, budget.Output: try.output}[c.meter]
				d := budget.Demand{PromptTokens: try.prompt, Exact: true, Candidates: try.candidates, MaxTokens: try.max}
				r, err := l.Reserve(t.Context(), p, request(), d, nil)
				if want == 0 {
					if got, ok := errors.AsType[*budget.Exceeded](err); !ok {
						t.Errorf("%+v: granted, or %v", try, err)
					} else if diff := cmp.Diff(refusal, got); diff != "" {
						t.Errorf("%+v: (-want +got)\n%s", try, diff)
					}
					continue
				}
				must(t, err)
				if r.MaxTokens() != want || r.Clamped() != (want < try.max) {
					t.Errorf("%+v: %d tokens, clamped %v; want %d", try, r.MaxTokens(), r.Clamped(), want)
				}
				settle(t, r, 0, 0)
			}
		})
	}
}

func TestSpentIsWhatIsUsedUp(t *testing.T) {
	for _, c := range capCases() {
		l := newLedger(t)
		p := capOf(c.scope, c.window, c.meter, 100)
		spend(t, l, "key", "acc", 99, 99)
		if c.meter == budget.Total {
			p = capOf(c.scope, c.window, c.meter, 199)
		}
		if e := l.Spent(p); e != nil {
			t.Errorf("%v: with a token left: %v", c, e)
		}
		held := reserve(t, l, p, exactly(0, 1)) // others' reservations do not count
		if e := l.Spent(p); e != nil {
			t.Errorf("%v: with a token reserved: %v", c, e)
		}
		settle(t, held, 1, 1)
		e := l.Spent(p)
		if e == nil || e.Scope != c.scope || e.Window != c.window || e.Meter != c.meter {
			t.Errorf("%v: with nothing left: %v", c, e)
		}
	}
}

func TestWhatNamesARefusal(t *testing.T) {
	l := newLedger(t)
	spend(t, l, "key", "acc", 50, 50)
	p := budget.Payer{
		Key: "key", Account: "acc",
		KeyCaps:     quota.Caps{MonthTotal: quota.Limit(105), DayTotal: quota.Limit(100)},
		AccountCaps: quota.Caps{MonthTotal: quota.Limit(103), MonthOutput: quota.Limit(53)},
	}
	_, err := l.Reserve(t.Context(), p, request(), budget.Demand{PromptTokens: 5, Exact: true, Candidates: 4, MaxTokens: 1}, nil)
	var e *budget.Exceeded
	if !errors.As(err, &e) || e.Scope != budget.Account || e.Window != budget.Month || e.Meter != budget.Total {
		t.Errorf("a month with least left is named, not: %v", err)
	}
	p.AccountCaps = quota.Caps{MonthTotal: quota.Limit(105)}
	_, err = l.Reserve(t.Context(), p, request(), exactly(5, 1), nil)
	if !errors.As(err, &e) || e.Scope != budget.Key || e.Window != budget.Month {
		t.Errorf("the key's is named of two alike, not: %v", err)
	}
}

func TestNoCapsNoQuestions(t *testing.T) {
	l := newLedger(t)
	p := budget.Payer{Key: "key", Account: "acc"}
	d := budget.Demand{PromptTokens: 1 << 62, Candidates: 1 << 40, MaxTokens: 1 << 62}
	r, err := l.Reserve(t.Context(), p, request(), d, func(context.Context) (int64, error) {
		t.Error("asked")
		return 0, nil
	})
	must(t, err)
	if r.Clamped() {
		t.Error("clamped")
	}
	settle(t, r, 10, 5)
	if n := l.Reserved(); n != 0 {
		t.Errorf("%d tokens stay reserved", n)
	}
	if _, ok := l.Tightest(p); ok {
		t.Error("there is a tightest cap")
	}
	p.KeyCaps.MonthTotal, p.KeyCaps.DayTotal = quota.Limit(100), quota.Limit(20)
	want := budget.Headroom{Limit: 20, Remaining: 5, ResetsAt: nextReset(budget.Day)}
	if got, ok := l.Tightest(p); !ok || got != want {
		t.Errorf("tightest: %+v", got)
	}
}

func TestABoundThatDoesNotFitIsCountedOnce(t *testing.T) {
	l := newLedger(t)
	p := capOf(budget.Key, budget.Month, budget.Total, 1000)
	asked := 0
	counting := func(n int64, err error) budget.Count {
		asked = 0
		return func(context.Context) (int64, error) {
			asked++
			return n, err
		}
	}
	try := func(bound, max int64, exact budget.Count) (*budget.Reservation, error) {
		return l.Reserve(t.Context(), p, request(), budget.Demand{PromptTokens: bound, Candidates: 1, MaxTokens: max}, exact)
	}
	r, err := try(900, 100, counting(1, nil))
	must(t, err)
	if asked != 0 {
		t.Error("asked although the bound fits")
	}
	settle(t, r, 0, 0)
	r, err = try(901, 100, counting(300, nil))
	must(t, err)
	if asked != 1 || r.Clamped() {
		t.Errorf("asked %d times, clamped %v", asked, r.Clamped())
	}
	settle(t, r, 0, 0)
	r, err = try(5000, 1000, counting(300, nil))
	must(t, err)
	if asked != 1 || r.MaxTokens() != 700 {
		t.Errorf("asked %d times, %d tokens", asked, r.MaxTokens())
	}
	settle(t, r, 0, 0)
	var e *budget.Exceeded
	if _, err = try(5000, 1, counting(1000, nil)); !errors.As(err, &e) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	broken := errors.New("no answer")
	if _, err = try(5000, 1, counting(0, broken)); !errors.Is(err, broken) {
		t.Errorf("the count fails: %v", err)
	}
	held := reserve(t, l, p, exactly(500, 100))
	r, err = try(500, 100, counting(200, nil))
	must(t, err)
	if asked != 1 || r.Clamped() {
		t.Errorf("beside a reservation: asked %d times, clamped %v", asked, r.Clamped())
	}
	settle(t, r, 0, 0)
	settle(t, held, 0, 0)
}
