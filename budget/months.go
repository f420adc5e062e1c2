package budget

import (
	"context"
	"fmt"
	"slices"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
)

// monthsKept is how many months of counters the ledger keeps, so that a clock that is set back and forth does not read
// them each time.
const monthsKept = 3

// holds reports whether the ledger holds the counters of a month. The caller holds the ledger's lock.
func (l *Ledger) holds(month int) bool { return slices.Contains(l.months, month) }

// loadMonth reads the counters of the month that the clock shows, unless the ledger holds them. Until then nothing is
// admitted, so nothing is charged to that month meanwhile. The error is database.ErrUnavailable, database.ErrClosed, or
// the cause of the end of ctx.
func (l *Ledger) loadMonth(ctx context.Context) error {
	l.loading.Lock()
	defer l.loading.Unlock()
	month := DateOf(l.clock()).month
	l.mu.Lock()
	held := l.holds(month)
	l.mu.Unlock()
	if held {
		return nil
	}
	// If the month was dropped a moment ago, settlements of it may be queued still.
	if err := l.db.WriteGrouped(ctx, func(database.Tx) error { return nil }); err != nil {
		return fmt.Errorf("load counters: %w", err)
	}
	type use struct {
		key, account       string
		day                int
		prompt, completion int64
	}
	parents, err := selectParents(ctx, l.db.Read())
	if err != nil {
		return fmt.Errorf("%w: load counters: %w", database.ErrUnavailable, err)
	}
	var used []use
	start := Date{month: month}
	err = usage.KeyDays(ctx, l.db, start.Start(), start.windowEnd(quota.Month), func(r *usage.Row) {
		used = append(used, use{r.KeyID, r.AccountID, DateOf(r.Time).day, r.PromptTokens, r.CompletionTokens})
	})
	if err != nil {
		return fmt.Errorf("%w: load counters: %w", database.ErrUnavailable, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropMonths()
	for _, u := range used {
		a := l.account(u.account)
		for o := a.child(u.key, parents); o != nil; o = a.above(o) {
			o.month(month).add(u.day, quota.Tokens{Input: u.prompt, Output: u.completion}, quota.Tokens{})
		}
	}
	l.months = append(l.months, month)
	return nil
}

// loadLives reads what all keys have used ever. It is called by Start, before anything is charged; months are dropped and read
// again later, and lives never.
func (l *Ledger) loadLives(ctx context.Context) error {
	parents, err := selectParents(ctx, l.db.Read())
	if err != nil {
		return fmt.Errorf("%w: load counters: %w", database.ErrUnavailable, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err = usage.KeyTotals(ctx, l.db, func(r *usage.Row) {
		a := l.account(r.AccountID)
		for o := a.child(r.KeyID, parents); o != nil; o = a.above(o) {
			o.life.add(quota.Tokens{Input: r.PromptTokens, Output: r.CompletionTokens}, quota.Tokens{})
		}
	})
	if err != nil {
		return fmt.Errorf("%w: load counters: %w", database.ErrUnavailable, err)
	}
	return nil
}

// child returns a key with its parent.
func (a *Account) child(id string, parents map[string]string) *Owner {
	k := a.Key(id)
	if parent := parents[id]; parent != "" {
		k.Parent = a.Key(parent)
	}
	return k
}

// dropMonths drops the counters of months, so that monthsKept are left with the one to be added. It keeps those of
// requests in flight, and all while rows wait for the database: these counters have what is not in the rows yet.
func (l *Ledger) dropMonths() {
	for len(l.months) >= monthsKept && len(l.backlog) == 0 {
		at := slices.IndexFunc(l.months, func(month int) bool { return !l.reserves(month) })
		if at < 0 {
			return
		}
		for _, k := range l.keys {
			k.dropMonth(l.months[at])
		}
		for _, a := range l.accounts {
			a.dropMonth(l.months[at])
		}
		l.months = slices.Delete(l.months, at, at+1)
	}
}

// reserves reports whether requests in flight were admitted in a month.
func (l *Ledger) reserves(month int) bool {
	for _, account := range l.accounts {
		if account.reserves(month) {
			return true
		}
	}
	return false
}
