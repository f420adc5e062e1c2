package budget

import (
	"sort"
)

// Demand is the worst-case cost of a request.
type Demand struct {
	PromptTokens int64 // of all prompts together
	Exact        bool  // PromptTokens is the exact count; if false, it is an upper bound
	Candidates   int64 // prompts × max(n, best_of); at least 1
	MaxTokens    int64 // of each candidate; at least 1
	MinTokens    int64 // of each candidate: a lower max_tokens is no use

	// Prompts are the tokens of each prompt, if they are truncated to what max_tokens leaves of Context, so that a lower
	// max_tokens lengthens them; nil if PromptTokens does not depend on it. They must not be changed afterwards.
	Prompts []int64
	Context int64

	SlotOnly bool // it costs no tokens, and needs a slot
}

// promptAt returns the tokens of all prompts for a max_tokens.
func (d *Demand) promptAt(maxTokens int64) int64 {
	if d.Prompts == nil || maxTokens >= d.MaxTokens {
		return d.PromptTokens
	}
	var sum int64
	for _, tokens := range d.Prompts {
		sum = min(sum+min(max(tokens, 0), max(d.Context-maxTokens, 0)), maxCount)
	}
	return sum
}

// Normalized limits the counts to their valid ranges, so that a negative count cannot add budget.
func (d Demand) Normalized() Demand {
	if d.SlotOnly {
		return Demand{SlotOnly: true, Exact: true, Candidates: 1}
	}
	d.PromptTokens = min(max(d.PromptTokens, 0), maxCount)
	d.Candidates = min(max(d.Candidates, 1), maxCount)
	d.MaxTokens = min(max(d.MaxTokens, 1), maxCount)
	d.MinTokens = min(max(d.MinTokens, 0), maxCount)
	return d
}

// Output returns the tokens of all candidates for a max_tokens.
func (d *Demand) Output(maxTokens int64) int64 {
	if maxTokens > maxCount/d.Candidates {
		return maxCount
	}
	return d.Candidates * maxTokens
}

// maxCount is where token counts saturate: more than any cap leaves, and small enough to add up thousands of them.
const maxCount = 1 << 50

// left returns the tokens left if reservations are ignored. It is negative if the cap was lowered.
func (e *Exceeded) left() int64 { return e.Limit - e.Used }

// allowed returns how many tokens each candidate may have under this cap if reservations are ignored; 0 if the cap
// refuses the request.
func (e *Exceeded) allowed(d *Demand) int64 {
	left := e.left()
	switch e.Meter {
	case Input:
		if left <= 0 || d.PromptTokens > left {
			return 0
		}
		return d.MaxTokens
	case Output:
		return max(left, 0) / d.Candidates
	case Total:
	}
	if d.Prompts != nil { // the cost of one more token of max_tokens is never negative, since every prompt has a candidate
		cost := func(maxTokens int64) int64 { return d.promptAt(maxTokens) + d.Output(maxTokens) }
		return int64(sort.Search(int(d.MaxTokens), func(i int) bool { return cost(int64(i)+1) > left }))
	}
	if left <= d.PromptTokens {
		return 0
	}
	return (left - d.PromptTokens) / d.Candidates
}

// fitsBesideReserved reports whether the tokens fit into what used and reserved tokens together leave.
func (e *Exceeded) fitsBesideReserved(input, output int64) bool {
	return e.Meter.of(input, output) <= e.left()-e.Reserved
}

// namedBefore reports whether a refusal names this cap rather than other; see Exceeded.
func (e *Exceeded) namedBefore(other *Exceeded) bool {
	if e.Window != other.Window {
		return e.Window == Month
	}
	return e.left() < other.left()
}

// decision is the result of an evaluation. The request is refused if exceeded is set, waits if it is blocked, and is
// admitted otherwise.
type decision struct {
	maxTokens        int64 // of each candidate: what used tokens leave, up to the demand
	promptTokens     int64 // of all prompts, at that maxTokens
	exceeded         *Exceeded
	blockedBySlot    bool // as many requests of the key or the account run as may
	blockedByKey     bool // reservations against the key's caps stand in the way
	blockedByAccount bool // reservations against the account's caps stand in the way
}

func (d *decision) admitted() bool {
	return d.exceeded == nil && !d.blockedBySlot && !d.blockedByKey && !d.blockedByAccount
}

// decide decides by the caps alone.
func (b *Balance) decide(demand *Demand) decision {
	d := decision{maxTokens: demand.MaxTokens}
	least := max(1, min(demand.MinTokens, demand.MaxTokens))
	caps := b.appendCaps(make([]Exceeded, 0, maxCaps))
	var refusing *Exceeded
	for i := range caps {
		c := &caps[i]
		allowed := c.allowed(demand)
		if allowed < least && (refusing == nil || c.namedBefore(refusing)) {
			refusing = c
		}
		d.maxTokens = min(d.maxTokens, allowed)
	}
	d.promptTokens = demand.promptAt(d.maxTokens)
	for i := range caps { // a truncated prompt is longer at a lower max_tokens
		c := &caps[i]
		if c.Meter == Input && d.promptTokens > c.left() && (refusing == nil || c.namedBefore(refusing)) {
			refusing = c
		}
	}
	if refusing != nil {
		d.exceeded = b.withReset(*refusing)
		return d
	}
	output := demand.Output(d.maxTokens)
	for i := range caps {
		switch c := &caps[i]; {
		case c.fitsBesideReserved(d.promptTokens, output):
		case c.Scope == ScopeKey:
			d.blockedByKey = true
		default:
			d.blockedByAccount = true
		}
	}
	return d
}
