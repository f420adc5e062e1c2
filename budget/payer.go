package budget

import (
	"fmt"
	"time"

	"basegate/budget/quota"
)

// Payer identifies the key and the account that are charged, with their current caps.
type Payer struct {
	Key         string
	Account     string
	KeyCaps     quota.Caps
	AccountCaps quota.Caps

	// How many requests of the key, and of all keys of the account, may run at once; 0 is unbounded. Lines of batches do not
	// count.
	Slots, AccountSlots int

	Expires time.Time // when requests of the key are refused from then on; zero: never
}

// HasCaps reports whether the key or the account has a cap.
func (p *Payer) HasCaps() bool { return p.KeyCaps.Any() || p.AccountCaps.Any() }

// Refresh updates all but the ids to what current returns, unless it is nil. The error is ErrKeyDisabled.
func (p *Payer) Refresh(current func(key string) (Payer, error)) error {
	if current == nil {
		return nil
	}
	now, err := current(p.Key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeyDisabled, err)
	}
	now.Key, now.Account = p.Key, p.Account
	*p = now
	return nil
}

// Scope is the kind of owner that a cap belongs to.
type Scope string

// The scopes.
const (
	ScopeKey     Scope = "key"
	ScopeAccount Scope = "account"
)

// Window is the calendar window, in UTC, in which a cap counts tokens.
type Window string

// The windows.
const (
	Month Window = "month"
	Day   Window = "day"
)

// Meter is the kind of tokens that a cap counts.
type Meter string

// The meters.
const (
	Total  Meter = "total"
	Input  Meter = "input"
	Output Meter = "output"
)

// Exceeded is a cap with what is used of it, and the error of a request that it refuses: the tokens left in the cap's window are
// too few. If several caps refuse, it names a monthly cap before a daily one, then the cap with the fewest tokens left, then the key's.
type Exceeded struct { //nolint:errname // it is a cap first, and an error only if it is returned
	Scope    Scope
	Window   Window
	Meter    Meter
	Limit    int64     // tokens
	Used     int64     // tokens settled in the window
	Reserved int64     // tokens reserved by requests in flight, for information: they never cause a refusal
	ResetsAt time.Time // end of the window, UTC
}

// Error describes the cap that refuses.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("the %s's %s %s budget does not allow this: %d of %d tokens are used; it resets at %s",
		e.Scope, e.Window, e.Meter, e.Used, e.Limit, e.ResetsAt.Format(time.RFC3339))
}

// Remaining returns the tokens not used. Reservations do not reduce it; it is never negative.
func (e *Exceeded) Remaining() int64 { return max(e.left(), 0) }
