package budget

import (
	"fmt"
	"time"

	"basegate/quota"
)

// Payer is who is charged: a key and the account that it belongs to, with the caps in force.
type Payer struct {
	Key         string
	Account     string
	KeyCaps     quota.Caps
	AccountCaps quota.Caps
}

// Scope is whose cap it is.
type Scope string

// The scopes.
const (
	Key     Scope = "key"
	Account Scope = "account"
)

// Window is the calendar period, UTC, in which a cap counts.
type Window string

// The windows.
const (
	Month Window = "month"
	Day   Window = "day"
)

// Meter is which tokens a cap counts.
type Meter string

// The meters.
const (
	Total  Meter = "total"
	Input  Meter = "input"
	Output Meter = "output"
)

// Exceeded is a refusal: the cap in whose window nothing of what was asked for is left. Where several caps refuse, it is
// one of a month before that of a day, then the one with least left, then the key's.
type Exceeded struct { //nolint:errname // a refusal is an answer first, and an error where one is returned
	Scope    Scope
	Window   Window
	Meter    Meter
	Limit    int64
	Used     int64     // settled in the window
	Reserved int64     // by requests in flight; the refusal does not rest on it
	ResetsAt time.Time // UTC
}

// Error says which cap refuses.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("the %s's %s %s budget does not allow this: %d of %d tokens are used; it resets at %s",
		e.Scope, e.Window, e.Meter, e.Used, e.Limit, e.ResetsAt.Format(time.RFC3339))
}

// Headroom is how much one cap leaves.
type Headroom struct {
	Limit     int64
	Remaining int64     // of what is used alone; never negative
	ResetsAt  time.Time // UTC
}
