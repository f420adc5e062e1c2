package budget_test

import (
	"testing"

	"basegate/budget"
	"basegate/budget/quota"
)

// An estimate names the cap that decides, of the key or of the account, and reserves nothing.
func TestEstimateNamesTheDecidingCapAndReservesNothing(t *testing.T) {
	l := newLedger(t)
	for name, c := range map[string]struct {
		key, account quota.Caps
		maxTokens    int64
		limited      *budget.Exceeded // without ResetsAt
		refused      bool
	}{
		"none":               {maxTokens: 10},
		"a cap that fits":    {key: quota.Caps{quota.MonthTotal: quota.Limit(25)}, maxTokens: 10},
		"the key's cap":      {key: quota.Caps{quota.DayTotal: quota.Limit(15)}, maxTokens: 5, limited: &budget.Exceeded{Scope: budget.ScopeKey, Window: quota.Day, Meter: quota.Total, Limit: 15}},
		"the account's cap":  {account: quota.Caps{quota.MonthOutput: quota.Limit(14)}, maxTokens: 7, limited: &budget.Exceeded{Scope: budget.ScopeAccount, Window: quota.Month, Meter: quota.Output, Limit: 14}},
		"the smaller of two": {quota.Caps{quota.MonthTotal: quota.Limit(19)}, quota.Caps{quota.MonthTotal: quota.Limit(17)}, 6, &budget.Exceeded{Scope: budget.ScopeAccount, Window: quota.Month, Meter: quota.Total, Limit: 17}, false},
		"a refusal":          {account: quota.Caps{quota.MonthInput: quota.Limit(4)}, limited: &budget.Exceeded{Scope: budget.ScopeAccount, Window: quota.Month, Meter: quota.Input, Limit: 4}, refused: true},
	} {
		p := budget.Payer{Key: name, Account: name, KeyCaps: c.key, AccountCaps: c.account}
		for range 2 { // the second is the same, since nothing has been reserved
			balance, err := l.ReadBalance(t.Context(), p)
			must(t, err)
			got := balance.Estimate(budget.Demand{PromptTokens: 5, Exact: true, Candidates: 2, MaxTokens: 10})
			if got.MaxTokens != c.maxTokens || got.Output != 20 || (got.Refused != nil) != c.refused || (got.LimitedBy == nil) != (c.limited == nil) {
				t.Fatalf("%s: got %+v", name, got)
			}
			if got.LimitedBy != nil {
				have := *got.LimitedBy
				if have.ResetsAt.IsZero() {
					t.Errorf("%s: no time of the reset", name)
				}
				have.ResetsAt = c.limited.ResetsAt
				if have != *c.limited {
					t.Errorf("%s: limited by %+v, want %+v", name, have, *c.limited)
				}
			}
		}
	}
}
