// Package quota defines token caps: the most that a key or an account may spend in a calendar window. It holds the
// numbers only. Package identity stores them, and package budget enforces them.
package quota

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Cap limits the tokens spent in one window. Its zero value is unbounded; a cap of 0 allows nothing.
type Cap struct {
	tokens  int64
	bounded bool
}

// Limit returns a Cap of that many tokens.
func Limit(tokens int64) Cap { return Cap{tokens: tokens, bounded: true} }

// Unbounded returns the Cap that refuses nothing.
func Unbounded() Cap { return Cap{} }

// Tokens returns the number of tokens, and false if the cap is unbounded.
func (c Cap) Tokens() (tokens int64, bounded bool) { return c.tokens, c.bounded }

// Bounded reports whether the cap limits anything.
func (c Cap) Bounded() bool { return c.bounded }

// Equal reports whether both caps allow the same.
func (c Cap) Equal(other Cap) bool { return c == other }

// String returns the number of tokens in digits, or "unbounded".
func (c Cap) String() string {
	if !c.bounded {
		return "unbounded"
	}
	return strconv.FormatInt(c.tokens, 10)
}

// MarshalJSON encodes an unbounded cap as null.
func (c Cap) MarshalJSON() ([]byte, error) {
	if !c.bounded {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, c.tokens, 10), nil
}

// Value implements driver.Valuer; an unbounded cap is NULL.
func (c Cap) Value() (driver.Value, error) {
	if !c.bounded {
		return nil, nil
	}
	return c.tokens, nil
}

// Scan implements sql.Scanner.
func (c *Cap) Scan(column any) error {
	switch v := column.(type) {
	case nil:
		*c = Unbounded()
	case int64:
		*c = Limit(v)
	default:
		return fmt.Errorf("scan a cap from %T", column)
	}
	return nil
}

// Caps are the four caps of a key or an account. Months and days are calendar windows in UTC.
type Caps struct {
	MonthTotal  Cap // prompt and completion tokens
	DayTotal    Cap // prompt and completion tokens
	MonthInput  Cap // prompt tokens
	MonthOutput Cap // completion tokens
}

// ErrNegative is returned for a cap below 0.
var ErrNegative = errors.New("a budget is a number of tokens, 0 or more")

// names are what messages call the caps, in the order of list.
var names = [...]string{"monthly budget", "daily budget", "input budget", "output budget"}

func (c Caps) list() [len(names)]Cap {
	return [...]Cap{c.MonthTotal, c.DayTotal, c.MonthInput, c.MonthOutput}
}

// Any reports whether at least one cap is bounded.
func (c Caps) Any() bool { return c != Caps{} }

// Validate returns an error wrapping ErrNegative if a cap is negative.
func (c Caps) Validate() error {
	for i, limit := range c.list() {
		if limit.tokens < 0 {
			return fmt.Errorf("%w: %s %d", ErrNegative, names[i], limit.tokens)
		}
	}
	return nil
}

// Excess describes the first cap that is above the same cap of limits, such as "daily budget 20 is above 10". It returns
// an empty string if there is none. An unbounded cap exceeds nothing, because the limit applies beside it.
func (c Caps) Excess(limits Caps) string {
	allowed := limits.list()
	for i, own := range c.list() {
		if own.bounded && allowed[i].bounded && own.tokens > allowed[i].tokens {
			return fmt.Sprintf("%s %d is above %d", names[i], own.tokens, allowed[i].tokens)
		}
	}
	return ""
}

// Beyond describes the first cap that allows more than the same cap of limits, such as "daily budget unbounded is above
// 10". It returns an empty string if there is none. Unlike with Excess, the caps replace the limits, so an unbounded cap
// is beyond a bounded one.
func (c Caps) Beyond(limits Caps) string {
	allowed := limits.list()
	for i, own := range c.list() {
		if allowed[i].bounded && (!own.bounded || own.tokens > allowed[i].tokens) {
			return fmt.Sprintf("%s %s is above %s", names[i], own, allowed[i])
		}
	}
	return ""
}

// Changes lists the caps that are different in next, such as "daily budget 10 → unbounded".
func (c Caps) Changes(next Caps) []string {
	var changes []string
	after := next.list()
	for i, before := range c.list() {
		if before != after[i] {
			changes = append(changes, fmt.Sprintf("%s %s → %s", names[i], before, after[i]))
		}
	}
	return changes
}

// CopyChanges sets the caps that differ between before and after to those of after.
func (c *Caps) CopyChanges(before, after Caps) {
	was, now := before.list(), after.list()
	for i, to := range []*Cap{&c.MonthTotal, &c.DayTotal, &c.MonthInput, &c.MonthOutput} {
		if was[i] != now[i] {
			*to = now[i]
		}
	}
}

// String lists the bounded caps, or returns "unbounded".
func (c Caps) String() string {
	var parts []string
	for i, limit := range c.list() {
		if limit.bounded {
			parts = append(parts, names[i]+" "+limit.String())
		}
	}
	if parts == nil {
		return "unbounded"
	}
	return strings.Join(parts, ", ")
}
