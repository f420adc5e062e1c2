package budget

import (
	"context"
	"fmt"
	"time"

	"basegate/budget/quota"
)

// Counters are the tokens of a key or an account in the day and the month of some time.
type Counters struct {
	MonthInput, MonthOutput       int64 // used
	Day                           int64 // used, input and output
	ReservedInput, ReservedOutput int64 // by requests in flight that were admitted this month
	ReservedDay                   int64 // by those that were admitted on this day
}

// Month returns the used tokens that a monthly total cap counts.
func (c Counters) Month() int64 { return c.MonthInput + c.MonthOutput }

// Reserved returns the tokens reserved by requests in flight that were admitted this month.
func (c Counters) Reserved() int64 { return c.ReservedInput + c.ReservedOutput }

// Balance is a payer with its counters at some time. All rules of caps are evaluated on it.
type Balance struct {
	Payer        Payer
	Key, Account Counters
	Time         time.Time
}

// Balance returns the balance of a payer, with the caps that it has in p.
func (l *Ledger) Balance(p Payer) Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.balance(p)
}

// Recent is Balance, which no other gateway changes.
func (l *Ledger) Recent(_ context.Context, p Payer) Balance { return l.Balance(p) }

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
	b := Balance{Payer: p, Key: l.keys[p.Key].Counters(today), Time: now}
	if a := l.accounts[p.Account]; a != nil {
		b.Account = a.Counters(today)
	}
	return b
}

// maxCaps is the number of caps of a key and its account.
const maxCaps = 8

// appendCaps appends the bounded caps, the key's first, without the ends of their windows.
func (b *Balance) appendCaps(to []Exceeded) []Exceeded {
	to = appendCaps(to, ScopeKey, &b.Payer.KeyCaps, &b.Key)
	return appendCaps(to, ScopeAccount, &b.Payer.AccountCaps, &b.Account)
}

func appendCaps(to []Exceeded, scope Scope, caps *quota.Caps, c *Counters) []Exceeded {
	add := func(limit quota.Cap, window Window, meter Meter, used, reserved int64) {
		if tokens, bounded := limit.Tokens(); bounded {
			to = append(to, Exceeded{Scope: scope, Window: window, Meter: meter, Limit: max(tokens, 0), Used: used, Reserved: reserved})
		}
	}
	add(caps.MonthTotal, Month, Total, c.Month(), c.Reserved())
	add(caps.DayTotal, Day, Total, c.Day, c.ReservedDay)
	add(caps.MonthInput, Month, Input, c.MonthInput, c.ReservedInput)
	add(caps.MonthOutput, Month, Output, c.MonthOutput, c.ReservedOutput)
	return to
}

// withReset returns a cap with the end of its window.
func (b *Balance) withReset(c Exceeded) *Exceeded {
	c.ResetsAt = DateOf(b.Time).windowEnd(c.Window)
	return &c
}

// Caps returns the caps that are set, with what is used of them: the key's, then the account's.
func (b Balance) Caps() []Exceeded {
	all := b.appendCaps(nil)
	for i, c := range all {
		all[i] = *b.withReset(c)
	}
	return all
}

// Exhausted returns the cap of which all tokens are used, or nil if every cap has tokens left. Reservations do not count.
func (b Balance) Exhausted() *Exceeded {
	return b.named(func(c *Exceeded) bool { return c.left() <= 0 })
}

// TightestTotal returns the total cap with the fewest tokens left, and false if none is set.
func (b Balance) TightestTotal() (tightest Exceeded, ok bool) {
	for _, c := range b.appendCaps(make([]Exceeded, 0, maxCaps)) {
		if c.Meter == Total && (!ok || c.Remaining() < tightest.Remaining()) {
			tightest, ok = c, true
		}
	}
	if !ok {
		return Exceeded{}, false
	}
	return *b.withReset(tightest), true
}

// Fits reports whether a demand fits all the caps beside what is used and reserved.
func (b Balance) Fits(d Demand) bool {
	d = d.Normalized()
	output := d.Output(d.MaxTokens)
	for _, c := range b.appendCaps(make([]Exceeded, 0, maxCaps)) {
		if !c.fitsBesideReserved(d.PromptTokens, output) {
			return false
		}
	}
	return true
}

// named returns the cap that a refusal would name of those that is selects, or nil.
func (b *Balance) named(is func(c *Exceeded) bool) *Exceeded {
	var chosen *Exceeded
	caps := b.appendCaps(make([]Exceeded, 0, maxCaps))
	for i := range caps {
		if c := &caps[i]; is(c) && (chosen == nil || c.namedBefore(chosen)) {
			chosen = c
		}
	}
	if chosen == nil {
		return nil
	}
	return b.withReset(*chosen)
}
