package keys

import (
	"errors"
	"fmt"
	"strings"
)

// What can be wrong with caps.
var (
	ErrBadCap       = errors.New("a budget is a number of tokens, 0 or more")
	ErrAboveAccount = errors.New("a key's budget may not exceed its account's")
)

// Caps are how many tokens may be spent, by the month and by the day. nil is unbounded; 0 allows nothing. What the
// pointers point to is shared and never changed: to change a cap is to put another pointer there.
//
// A key without a cap of its own is held by its account's alone.
type Caps struct {
	MonthTotal  *int64 // prompt and completion
	DayTotal    *int64 // prompt and completion
	MonthInput  *int64 // prompt
	MonthOutput *int64 // completion
}

// capNames are what the caps are called, in the order of list.
var capNames = [...]string{"monthly budget", "daily budget", "input budget", "output budget"}

func (c Caps) list() [len(capNames)]*int64 {
	return [...]*int64{c.MonthTotal, c.DayTotal, c.MonthInput, c.MonthOutput}
}

// String names the caps that there are.
func (c Caps) String() string {
	var parts []string
	for i, tokens := range c.list() {
		if tokens != nil {
			parts = append(parts, fmt.Sprintf("%s %d", capNames[i], *tokens))
		}
	}
	if parts == nil {
		return "unbounded"
	}
	return strings.Join(parts, ", ")
}

// clone is the caps behind pointers that nobody else has.
func (c Caps) clone() Caps {
	own := func(tokens *int64) *int64 {
		if tokens == nil {
			return nil
		}
		return new(*tokens)
	}
	return Caps{own(c.MonthTotal), own(c.DayTotal), own(c.MonthInput), own(c.MonthOutput)}
}

func (c Caps) check() error {
	for i, tokens := range c.list() {
		if tokens != nil && *tokens < 0 {
			return fmt.Errorf("%w: %s %d", ErrBadCap, capNames[i], *tokens)
		}
	}
	return nil
}

// exceeds names the first cap that is above the same cap of the account, with both; empty where none is.
func (c Caps) exceeds(account Caps) string {
	limits := account.list()
	for i, tokens := range c.list() {
		if tokens != nil && limits[i] != nil && *tokens > *limits[i] {
			return fmt.Sprintf("%s %d is above %d", capNames[i], *tokens, *limits[i])
		}
	}
	return ""
}

// within refuses caps of a key that exceed those of its account.
func (c Caps) within(a Account) error {
	if excess := c.exceeds(a.Caps); excess != "" {
		return fmt.Errorf("%w: %s of %s", ErrAboveAccount, excess, a.Email)
	}
	return nil
}

// hold refuses caps of an account that keys of it exceed, and names all those keys.
func (c Caps) hold(all []Key) error {
	var over []string
	for _, k := range all {
		if k.State == Revoked { // it spends nothing any more
			continue
		}
		if excess := k.Caps.exceeds(c); excess != "" {
			over = append(over, fmt.Sprintf("%s (%s): %s", k.ID, k.Name, excess))
		}
	}
	if over == nil {
		return nil
	}
	return fmt.Errorf("%w; lower or revoke these first: %s", ErrAboveAccount, strings.Join(over, "; "))
}
