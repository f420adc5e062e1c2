// Package quota defines token caps: the most that a key or an account may spend in a window. It holds the
// numbers only. Package identity stores them, and package budget enforces them.
package quota

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Cap limits the tokens spent in one window. Its zero value is unbounded; a cap of 0 allows nothing.
type Cap struct {
	flipped int64 // the tokens with another sign bit, so that only the impossible lowest number is unbounded
}

// Limit returns a Cap of that many tokens.
func Limit(tokens int64) Cap { return Cap{tokens ^ math.MinInt64} }

// Unbounded returns the Cap that refuses nothing.
func Unbounded() Cap { return Cap{} }

// Tokens returns the number of tokens, and false if the cap is unbounded.
func (c Cap) Tokens() (tokens int64, bounded bool) {
	if !c.Bounded() {
		return 0, false
	}
	return c.flipped ^ math.MinInt64, true
}

// Bounded reports whether the cap limits anything.
func (c Cap) Bounded() bool { return c != Cap{} }

// Equal reports whether both caps allow the same.
func (c Cap) Equal(other Cap) bool { return c == other }

// String returns the number of tokens in digits, or "unbounded".
func (c Cap) String() string {
	if tokens, bounded := c.Tokens(); bounded {
		return strconv.FormatInt(tokens, 10)
	}
	return "unbounded"
}

// MarshalJSON encodes an unbounded cap as null.
func (c Cap) MarshalJSON() ([]byte, error) {
	if tokens, bounded := c.Tokens(); bounded {
		return strconv.AppendInt(nil, tokens, 10), nil
	}
	return []byte("null"), nil
}

// Caps are the caps of a key or an account.
type Caps [Count]Cap

// ErrNegative is returned for a cap below 0.
var ErrNegative = errors.New("a budget is a number of tokens, 0 or more")

// Any reports whether at least one cap is bounded.
func (c *Caps) Any() bool { return *c != Caps{} }

// Validate returns an error wrapping ErrNegative if a cap is negative.
func (c Caps) Validate() error {
	for id, limit := range c {
		if tokens, _ := limit.Tokens(); tokens < 0 {
			return fmt.Errorf("%w: %s %d", ErrNegative, Table[id].Name, tokens)
		}
	}
	return nil
}

// Excess returns the first cap that is above the same cap of limits, and describes it, such as "daily budget 20 is above 10". The
// text is empty if there is none. An unbounded cap exceeds nothing, because the limit applies beside it.
func (c Caps) Excess(limits Caps) (first ID, text string) { return c.above(limits, false) }

// Beyond describes the first cap that allows more than the same cap of limits, such as "daily budget unbounded is above
// 10". It returns an empty string if there is none. Unlike with Excess, the caps replace the limits, so an unbounded cap
// is beyond a bounded one.
func (c Caps) Beyond(limits Caps) string {
	_, text := c.above(limits, true)
	return text
}

func (c Caps) above(limits Caps, unbounded bool) (first ID, text string) {
	for id, own := range c {
		tokens, bounded := own.Tokens()
		most, limited := limits[id].Tokens()
		if limited && (bounded && tokens > most || !bounded && unbounded) {
			return ID(id), fmt.Sprintf("%s %s is above %d", Table[id].Name, own, most)
		}
	}
	return 0, ""
}

// Changes lists the caps that are different in next, such as "daily budget 10 → unbounded".
func (c Caps) Changes(next Caps) []string {
	var changes []string
	for id, before := range c {
		if before != next[id] {
			changes = append(changes, fmt.Sprintf("%s %s → %s", Table[id].Name, before, next[id]))
		}
	}
	return changes
}

// CopyChanges sets the caps that differ between before and after to those of after.
func (c *Caps) CopyChanges(before, after Caps) {
	for id := range c {
		if before[id] != after[id] {
			c[id] = after[id]
		}
	}
}

// String lists the bounded caps, or returns "unbounded".
func (c Caps) String() string {
	var parts []string
	for id, limit := range c {
		if limit.Bounded() {
			parts = append(parts, Table[id].Name+" "+limit.String())
		}
	}
	if parts == nil {
		return "unbounded"
	}
	return strings.Join(parts, ", ")
}

// MarshalJSON encodes the bounded caps as an object, such as {"month_total":1000}.
func (c Caps) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for id, limit := range c {
		tokens, bounded := limit.Tokens()
		if !bounded {
			continue
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(strconv.AppendQuote(text, Table[id].Key()), ':'), tokens, 10)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON decodes what MarshalJSON has encoded. A cap that is not in Table is an error: to ignore it would let a key
// spend more than it may.
func (c *Caps) UnmarshalJSON(text []byte) error {
	var members map[string]int64
	if err := json.Unmarshal(text, &members); err != nil {
		return fmt.Errorf("decode caps: %w", err)
	}
	*c = Caps{}
	for id := range Table {
		key := Table[id].Key()
		if tokens, set := members[key]; set {
			c[id] = Limit(tokens)
			delete(members, key)
		}
	}
	for key := range members {
		return fmt.Errorf("decode caps: there is no cap %q", key)
	}
	return c.Validate()
}

// Value implements driver.Valuer: the caps are a column of JSON, which is NULL without any.
func (c Caps) Value() (driver.Value, error) {
	if !c.Any() {
		return nil, nil
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	text, err := c.MarshalJSON()
	return string(text), err
}

// Scan implements sql.Scanner.
func (c *Caps) Scan(column any) error {
	switch v := column.(type) {
	case nil:
		*c = Caps{}
		return nil
	case string:
		return c.UnmarshalJSON([]byte(v))
	case []byte:
		return c.UnmarshalJSON(v)
	}
	return fmt.Errorf("scan caps from %T", column)
}
