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

	Parent *ParentKey // which is charged too; nil if no other key has made this one. It is not changed

	// How many requests of the key, and of all keys of the account, may run at once; 0 is unbounded. Lines of batches do not
	// count.
	Slots, AccountSlots int

	Expires time.Time // when requests of the key are refused from then on; zero: never
}

// ParentKey is the key that has made another one of its account, whose requests count against both.
type ParentKey struct {
	ID      string
	Caps    quota.Caps
	Slots   int       // as Payer.Slots: its own requests take them, and those of the keys that it has made
	Expires time.Time // as Payer.Expires, of these keys too
}

// HasCaps reports whether the key, its parent or the account has a cap.
func (p *Payer) HasCaps() bool {
	return p.KeyCaps.Any() || p.AccountCaps.Any() || p.Parent != nil && p.Parent.Caps.Any()
}

// ParentID returns the id of the key's parent; empty if it has none.
func (p *Payer) ParentID() string {
	if p.Parent == nil {
		return ""
	}
	return p.Parent.ID
}

// Refresh updates all but the ids to what current returns, unless it is nil. The error is ErrKeyDisabled.
func (p *Payer) Refresh(current func(key string) (Payer, error)) error {
	if current == nil {
		return nil
	}
	key, account := p.Key, p.Account
	var err error
	*p, err = current(key)
	p.Key, p.Account = key, account
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeyDisabled, err)
	}
	return nil
}

// Scope is the kind of owner that a cap belongs to.
type Scope string

// The scopes.
const (
	ScopeKey     Scope = "key"
	ScopeParent  Scope = "parent" // the key that has made the key of the request
	ScopeAccount Scope = "account"
)

// scopes are the scopes of the owners of a request, in the order in which their caps are evaluated.
var scopes = [...]Scope{placeKey: ScopeKey, placeParent: ScopeParent, placeAccount: ScopeAccount}

const (
	placeKey = iota
	placeParent
	placeAccount
)

// Exceeded is a cap with what is used of it, and the error of a request that it refuses: the tokens left in the cap's window are
// too few. If several caps refuse, it names one for life before a monthly one, and that before a daily one, then the cap with the
// fewest tokens left, then the key's, then that of its parent.
type Exceeded struct { //nolint:errname // it is a cap first, and an error only if it is returned
	Scope    Scope
	Window   quota.Window
	Meter    quota.Meter
	Limit    int64     // tokens
	Used     int64     // tokens settled in the window
	Reserved int64     // tokens reserved by requests in flight, for information: they never cause a refusal
	ResetsAt time.Time // end of the window, UTC; zero: it has none
}

// Error describes the cap that refuses.
func (e *Exceeded) Error() string {
	resets := "it does not reset"
	if !e.ResetsAt.IsZero() {
		resets = "it resets at " + e.ResetsAt.Format(time.RFC3339)
	}
	return fmt.Sprintf("the %s's %s %s budget does not allow this: %d of %d tokens are used; %s", e.Scope, e.Window, e.Meter, e.Used, e.Limit, resets)
}

// Remaining returns the tokens not used. Reservations do not reduce it; it is never negative.
func (e *Exceeded) Remaining() int64 { return max(e.Limit-e.Used, 0) }
