package budget_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/budget/quota"
)

// payerWithCap returns a payer with one cap.
func payerWithCap(scope budget.Scope, window quota.Window, meter quota.Meter, tokens int64) budget.Payer {
	p := budget.Payer{Key: "key", Account: "acc"}
	caps := &p.KeyCaps
	switch scope {
	case budget.ScopeAccount:
		caps = &p.AccountCaps
	case budget.ScopeParent:
		p.Parent = &budget.ParentKey{ID: "parent"}
		caps = &p.Parent.Caps
	case budget.ScopeKey:
	}
	for id, k := range quota.Table {
		if k.Window == window && k.Meter == meter {
			caps[id] = quota.Limit(tokens)
		}
	}
	return p
}

// spendOf makes one request of a payer that uses the given tokens, whatever its caps are.
func spendOf(t *testing.T, l *budget.Ledger, p budget.Payer, prompt, completion int64) {
	t.Helper()
	without := budget.Payer{Key: p.Key, Account: p.Account}
	if p.Parent != nil {
		without.Parent = &budget.ParentKey{ID: p.Parent.ID}
	}
	settle(t, reserve(t, l, without, demand(prompt, completion)), prompt, completion)
}

type capCase struct {
	scope  budget.Scope
	window quota.Window
	meter  quota.Meter
}

func capCases() []capCase {
	var all []capCase
	for _, scope := range []budget.Scope{budget.ScopeKey, budget.ScopeParent, budget.ScopeAccount} {
		for _, k := range quota.Table {
			all = append(all, capCase{scope, k.Window, k.Meter})
		}
	}
	return all
}

func nextReset(w quota.Window) time.Time {
	now := time.Now().UTC()
	if w == quota.Life {
		return time.Time{}
	}
	if w == quota.Day {
		return time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

func TestEveryCapRefusesAndLowersMaxTokensExactly(t *testing.T) {
	for _, c := range capCases() {
		t.Run(fmt.Sprint(c.scope, " ", c.window, " ", c.meter), func(t *testing.T) {
			l := newLedger(t)
			p := payerWithCap(c.scope, c.window, c.meter, 1000)
			spendOf(t, l, p, 300, 200)
			used := map[quota.Meter]int64{quota.Total: 500, quota.Input: 300, quota.Output: 200}[c.meter]
			refusal := &budget.Exceeded{
				Scope: c.scope, Window: c.window, Meter: c.meter, Limit: 1000, Used: used, ResetsAt: nextReset(c.window),
			}
			for _, try := range []struct {
				prompt, candidates, max int64
				total, input, output    int64 // tokens granted under a cap of that meter; 0 means refused
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
				want := map[quota.Meter]int64{quota.Total: try.total, quota.Input: try.input, quota.Output: try.output}[c.meter]
				d := budget.Demand{PromptTokens: try.prompt, Exact: true, Candidates: try.candidates, MaxTokens: try.max}
				r, err := l.Reserve(t.Context(), p, newRequest(), d, nil)
				if want == 0 {
					if got, ok := errors.AsType[*budget.Exceeded](err); !ok {
						t.Errorf("%+v: got error %v, want Exceeded", try, err)
					} else if diff := cmp.Diff(refusal, got); diff != "" {
						t.Errorf("%+v: refusal (-want +got)\n%s", try, diff)
					}
					continue
				}
				must(t, err)
				if r.MaxTokens() != want || r.Clamped() != (want < try.max) {
					t.Errorf("%+v: got %d tokens (clamped: %v), want %d", try, r.MaxTokens(), r.Clamped(), want)
				}
				settle(t, r, 0, 0)
			}
		})
	}
}

func TestExhaustedIgnoresReservations(t *testing.T) {
	for _, c := range capCases() {
		l := newLedger(t)
		p := payerWithCap(c.scope, c.window, c.meter, 100)
		spendOf(t, l, p, 99, 99)
		if c.meter == quota.Total {
			p = payerWithCap(c.scope, c.window, c.meter, 200)
		}
		if e := l.Balance(p).Exhausted(); e != nil {
			t.Errorf("%v: with tokens left: got %v, want nil", c, e)
		}
		held := reserve(t, l, p, demand(1, 1)) // reservations do not count
		if e := l.Balance(p).Exhausted(); e != nil {
			t.Errorf("%v: with the last tokens reserved: got %v, want nil", c, e)
		}
		settle(t, held, 1, 1)
		e := l.Balance(p).Exhausted()
		if e == nil || e.Scope != c.scope || e.Window != c.window || e.Meter != c.meter {
			t.Errorf("%v: with no token left: got %v, want this cap", c, e)
		}
	}
}

func TestRefusalNamesTheMonthlyCapWithTheFewestTokensLeft(t *testing.T) {
	l := newLedger(t)
	spend(t, l, "key", "acc", 50, 50)
	p := budget.Payer{
		Key: "key", Account: "acc",
		KeyCaps:     quota.Caps{quota.MonthTotal: quota.Limit(105), quota.DayTotal: quota.Limit(100)},
		AccountCaps: quota.Caps{quota.MonthTotal: quota.Limit(103), quota.MonthOutput: quota.Limit(53)},
	}
	d := budget.Demand{PromptTokens: 5, Exact: true, Candidates: 4, MaxTokens: 1}
	_, err := l.Reserve(t.Context(), p, newRequest(), d, nil)
	var e *budget.Exceeded
	if !errors.As(err, &e) || e.Scope != budget.ScopeAccount || e.Window != quota.Month || e.Meter != quota.Total {
		t.Errorf("got %v, want the account's monthly cap, which has the fewest tokens left", err)
	}
	p.AccountCaps = quota.Caps{quota.MonthTotal: quota.Limit(105)}
	_, err = l.Reserve(t.Context(), p, newRequest(), demand(5, 1), nil)
	if !errors.As(err, &e) || e.Scope != budget.ScopeKey || e.Window != quota.Month {
		t.Errorf("got %v, want the key's cap of two with equally many tokens left", err)
	}
}

func TestWithoutCapsNothingIsCountedOrClamped(t *testing.T) {
	l := newLedger(t)
	p := budget.Payer{Key: "key", Account: "acc"}
	d := budget.Demand{PromptTokens: 1 << 62, Candidates: 1 << 40, MaxTokens: 1 << 62}
	requester := &fakeRequester{}
	r, err := l.Reserve(t.Context(), p, newRequest(), d, requester)
	must(t, err)
	if requester.counted != 0 {
		t.Errorf("CountPrompt was called %d times, want 0", requester.counted)
	}
	if r.Clamped() {
		t.Error("max_tokens was lowered without a cap")
	}
	settle(t, r, 10, 5)
	if n := l.Reserved(); n != 0 {
		t.Errorf("%d tokens are reserved after the settlement, want 0", n)
	}
	if h, ok := l.Balance(p).TightestTotal(); ok {
		t.Errorf("headroom without a cap: got %+v, want none", h)
	}
	p.KeyCaps[quota.MonthTotal], p.KeyCaps[quota.DayTotal] = quota.Limit(100), quota.Limit(20)
	want := budget.Exceeded{Scope: budget.ScopeKey, Window: quota.Day, Meter: quota.Total, Limit: 20, Used: 15, ResetsAt: nextReset(quota.Day)}
	if got, ok := l.Balance(p).TightestTotal(); !ok || got != want {
		t.Errorf("headroom: got %+v, %v, want %+v", got, ok, want)
	}
}

func TestPromptIsCountedOnceIfTheBoundDoesNotFit(t *testing.T) {
	l := newLedger(t)
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
	try := func(bound, maxTokens int64, requester *fakeRequester) (budget.Reservation, error) {
		d := budget.Demand{PromptTokens: bound, Candidates: 1, MaxTokens: maxTokens}
		return l.Reserve(t.Context(), p, newRequest(), d, requester)
	}

	fits := &fakeRequester{tokens: 1}
	r, err := try(900, 100, fits)
	must(t, err)
	if fits.counted != 0 {
		t.Errorf("the bound fits, and the prompt was counted %d times, want 0", fits.counted)
	}
	settle(t, r, 0, 0)

	exact := &fakeRequester{tokens: 300}
	r, err = try(901, 100, exact)
	must(t, err)
	if exact.counted != 1 || r.Clamped() {
		t.Errorf("the count fits: counted %d times, clamped: %v; want once and not clamped", exact.counted, r.Clamped())
	}
	settle(t, r, 0, 0)

	clamped := &fakeRequester{tokens: 300}
	r, err = try(5000, 1000, clamped)
	must(t, err)
	if clamped.counted != 1 || r.MaxTokens() != 700 {
		t.Errorf("the count fits in part: counted %d times, got %d tokens; want once and 700", clamped.counted, r.MaxTokens())
	}
	settle(t, r, 0, 0)

	refused := &fakeRequester{tokens: 1000}
	var e *budget.Exceeded
	if _, err = try(5000, 1, refused); !errors.As(err, &e) || refused.counted != 1 {
		t.Errorf("the count does not fit: counted %d times, got error %v; want once and Exceeded", refused.counted, err)
	}

	failing := &fakeRequester{countErr: errors.New("the backend does not respond")}
	if _, err = try(5000, 1, failing); !errors.Is(err, failing.countErr) {
		t.Errorf("the count fails: got error %v, want %v", err, failing.countErr)
	}

	held := reserve(t, l, p, demand(500, 100))
	beside := &fakeRequester{tokens: 200}
	r, err = try(500, 100, beside)
	must(t, err)
	if beside.counted != 1 || r.Clamped() {
		t.Errorf("beside a reservation: counted %d times, clamped: %v; want once and not clamped", beside.counted, r.Clamped())
	}
	settle(t, r, 0, 0)
	settle(t, held, 0, 0)
}
