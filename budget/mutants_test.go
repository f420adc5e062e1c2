package budget_test

import (
	"slices"
	"testing"
	"time"

	"basegate/budget"
	"basegate/internal/ledgertest"
)

// The cases find mistakes that an implementation may make.
func TestCasesFindMutants(t *testing.T) {
	cases := ledgertest.Read(t, casesFile)
	admitAs := func(change func(*budget.Account, *budget.Waiter)) func(*accountEngine) {
		return func(e *accountEngine) {
			e.admit = func(a *budget.Account, now time.Time, w *budget.Waiter) budget.Decision {
				change(a, w)
				return a.Admit(now, w)
			}
		}
	}
	grantAs := func(grant func(a *budget.Account, now time.Time, all bool)) func(*accountEngine) {
		return func(e *accountEngine) { e.grant = grant }
	}
	settleAs := func(settle func(e *accountEngine, a *budget.Account, l *budget.Lease, input, output int64)) func(*accountEngine) {
		return func(e *accountEngine) {
			e.settle = func(a *budget.Account, l *budget.Lease, input, output int64) { settle(e, a, l, input, output) }
		}
	}
	for name, mutate := range map[string]func(*accountEngine){
		"a bound is taken for the exact count":   admitAs(func(_ *budget.Account, w *budget.Waiter) { w.Demand.Exact = true }),
		"min_tokens is ignored":                  admitAs(func(_ *budget.Account, w *budget.Waiter) { w.Demand.MinTokens = 0 }),
		"a truncated prompt keeps its length":    admitAs(func(_ *budget.Account, w *budget.Waiter) { w.Demand.Prompts = nil }),
		"a line of a batch needs a slot":         admitAs(func(_ *budget.Account, w *budget.Waiter) { w.Request.Batch = "" }),
		"a line of a batch waits":                admitAs(func(_ *budget.Account, w *budget.Waiter) { w.NoWait = false }),
		"the last to arrive comes first":         admitAs(func(a *budget.Account, _ *budget.Waiter) { a.Ticket -= 2 }),
		"a blocked account is forgotten":         admitAs(func(a *budget.Account, _ *budget.Waiter) { a.Blocked = false }),
		"a blocked key is forgotten":             admitAs(func(a *budget.Account, w *budget.Waiter) { a.Key(w.Request.KeyID).Blocked = false }),
		"an account is blocked by all that wait": admitAs(func(a *budget.Account, _ *budget.Waiter) { a.Blocked = a.Waiting > 0 }),
		"a key is blocked by all that wait": admitAs(func(a *budget.Account, w *budget.Waiter) {
			k := a.Key(w.Request.KeyID)
			k.Blocked = k.Waiting > 0
		}),
		"nobody is evaluated when a request ends": grantAs(func(a *budget.Account, now time.Time, all bool) {
			if all {
				a.Grant(now, true)
			}
		}),
		"all are evaluated when a request ends":  grantAs(func(a *budget.Account, now time.Time, _ bool) { a.Grant(now, true) }),
		"some are evaluated when caps change":    grantAs(func(a *budget.Account, now time.Time, _ bool) { a.Grant(now, false) }),
		"an account that stays blocked is freed": grantAs(func(a *budget.Account, now time.Time, all bool) { a.Blocked = false; a.Grant(now, all) }),
		"a grant takes no slot": grantAs(func(a *budget.Account, now time.Time, all bool) {
			running := a.Running
			a.Grant(now, all)
			a.Running = running
		}),
		"a request is settled twice": settleAs(func(_ *accountEngine, a *budget.Account, l *budget.Lease, input, output int64) {
			a.Settle(l, input, output)
			a.Settle(l, input, output)
		}),
		"the reservation is charged": settleAs(func(_ *accountEngine, a *budget.Account, l *budget.Lease, _, _ int64) {
			a.Settle(l, l.Input, l.Output)
		}),
		"the day of the end is charged": settleAs(func(e *accountEngine, a *budget.Account, l *budget.Lease, input, output int64) {
			l.Date = budget.DateOf(e.now)
			a.Settle(l, input, output)
		}),
		"a slot is not returned": settleAs(func(_ *accountEngine, a *budget.Account, l *budget.Lease, input, output int64) {
			a.Settle(l, input, output)
			a.Running++
		}),
	} {
		if !slices.ContainsFunc(cases, func(c ledgertest.Case) bool {
			e := newAccountEngine(&c)
			mutate(e)
			return ledgertest.Play(&c, e) != nil
		}) {
			t.Errorf("%s: no case finds it", name)
		}
	}
}
