package budget

import (
	"context"
	"fmt"
	"time"

	"basegate/budget/quota"
)

// Counters are the tokens of a key or an account in the windows of some time.
type Counters struct {
	Used     [quota.Windows]quota.Tokens
	Reserved [quota.Windows]quota.Tokens // by requests in flight that were admitted in the window
}

// In returns the counters of a day as they are on a later one, on which other windows may have begun.
func (c Counters) In(of, day Date) Counters {
	for w := range quota.Windows {
		if !of.shares(w, day) {
			c.Used[w], c.Reserved[w] = quota.Tokens{}, quota.Tokens{}
		}
	}
	return c
}

// Balance is a payer with its counters at some time. All rules of caps are evaluated on it.
type Balance struct {
	Payer                Payer
	Key, Parent, Account Counters
	Time                 time.Time
}

// Balance returns the balance of a payer, with the caps that it has in p.
func (l *Ledger) Balance(p Payer) Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.balance(p)
}

// Recent is Balance, which no other gateway changes.
func (l *Ledger) Recent(_ context.Context, p Payer) Balance { return l.Balance(p) }

// RecentOf returns the balances of several payers.
func (l *Ledger) RecentOf(_ context.Context, payers []Payer) []Balance {
	all := make([]Balance, len(payers))
	for i, p := range payers {
		all[i] = l.Balance(p)
	}
	return all
}

// ReadBalance returns the balance that Reserve would decide on, by the caps currently configured. Its errors are those of
// Reserve but *Exceeded. The balance is the latest known one if the database is not available, and has no caps if the key
// may not be used.
func (l *Ledger) ReadBalance(ctx context.Context, p Payer) (Balance, error) {
	if err := p.Refresh(l.settings.Payer); err != nil {
		return Balance{}, err
	}
	if err := l.db.WriteError(); err != nil {
		return l.Balance(p), fmt.Errorf("read the balance: %w", err)
	}
	if err := l.lockHoldingMonth(ctx); err != nil {
		return l.Balance(p), err
	}
	defer l.mu.Unlock()
	return l.balance(p), nil
}

// balance creates no counters for an owner or a month without usage.
func (l *Ledger) balance(p Payer) Balance {
	now := l.clock()
	today := DateOf(now)
	b := Balance{Payer: p, Key: l.keys[p.Key].Counters(today), Parent: l.keys[p.ParentID()].Counters(today), Time: now}
	if a := l.accounts[p.Account]; a != nil {
		b.Account = a.Counters(today)
	}
	return b
}

// appendLimits appends the caps that are set, the key's first.
func (b *Balance) appendLimits(to []limit) []limit {
	to = appendLimits(to, placeKey, &b.Payer.KeyCaps, &b.Key)
	if p := b.Payer.Parent; p != nil {
		to = appendLimits(to, placeParent, &p.Caps, &b.Parent)
	}
	return appendLimits(to, placeAccount, &b.Payer.AccountCaps, &b.Account)
}

// Caps returns the caps that are set, with what is used of them: the key's, its parent's, then the account's.
func (b Balance) Caps() (all []Exceeded) {
	for _, l := range b.appendLimits(nil) {
		all = append(all, *l.exceeded(DateOf(b.Time)))
	}
	return all
}

// Exhausted returns the cap of which all tokens are used, or nil if every cap has tokens left. Reservations do not count.
func (b Balance) Exhausted() *Exceeded {
	return b.named(func(l *limit) bool { return l.left() <= 0 })
}

// TightestTotal returns the total cap with the fewest tokens left, and false if none is set.
func (b Balance) TightestTotal() (tightest Exceeded, ok bool) {
	var found *limit
	limits := b.appendLimits(make([]limit, 0, maxLimits))
	for i := range limits {
		if l := &limits[i]; l.meter() == quota.Total && (found == nil || max(l.left(), 0) < max(found.left(), 0)) {
			found = l
		}
	}
	if found == nil {
		return Exceeded{}, false
	}
	return *found.exceeded(DateOf(b.Time)), true
}

// named returns the cap that a refusal would name of those that is selects, or nil.
func (b *Balance) named(is func(l *limit) bool) *Exceeded {
	var chosen *limit
	limits := b.appendLimits(make([]limit, 0, maxLimits))
	for i := range limits {
		if l := &limits[i]; is(l) && (chosen == nil || l.namedBefore(chosen)) {
			chosen = l
		}
	}
	if chosen == nil {
		return nil
	}
	return chosen.exceeded(DateOf(b.Time))
}
