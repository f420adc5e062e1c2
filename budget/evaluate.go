package budget

import (
	"sort"

	"basegate/budget/quota"
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

// limit is a cap that is set, with what is used and reserved of it.
type limit struct {
	owner                uint8 // of the cap: an index of scopes
	id                   quota.ID
	most, used, reserved int64
}

// maxLimits is the number of caps of all owners of a request.
const maxLimits = len(scopes) * int(quota.Count)

// appendLimits appends the caps of an owner that are set.
func appendLimits(to []limit, owner uint8, caps *quota.Caps, c *Counters) []limit {
	for id := range quota.Count {
		if most, bounded := caps[id].Tokens(); bounded {
			k := &quota.Table[id]
			to = append(to, limit{owner, id, max(most, 0), k.Meter.Of(c.Used[k.Window]), k.Meter.Of(c.Reserved[k.Window])})
		}
	}
	return to
}

func (l *limit) meter() quota.Meter { return quota.Table[l.id].Meter }

func (l *limit) window() quota.Window { return quota.Table[l.id].Window }

// exceeded returns the cap as it is on a day.
func (l *limit) exceeded(today Date) *Exceeded {
	return &Exceeded{
		Scope: scopes[l.owner], Window: l.window(), Meter: l.meter(), Limit: l.most, Used: l.used, Reserved: l.reserved,
		ResetsAt: today.windowEnd(l.window()),
	}
}

// left returns the tokens left if reservations are ignored. It is negative if the cap was lowered.
func (l *limit) left() int64 { return l.most - l.used }

// allowed returns how many tokens each candidate may have under this cap if reservations are ignored; 0 if the cap
// refuses the request.
func (l *limit) allowed(d *Demand) int64 {
	left := l.left()
	switch l.meter() {
	case quota.Input:
		if left <= 0 || d.PromptTokens > left {
			return 0
		}
		return d.MaxTokens
	case quota.Output:
		return max(left, 0) / d.Candidates
	case quota.Total:
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
func (l *limit) fitsBesideReserved(need quota.Tokens) bool {
	return l.meter().Of(need) <= l.left()-l.reserved
}

// namedBefore reports whether a refusal names this cap rather than other; see Exceeded.
func (l *limit) namedBefore(other *limit) bool {
	if l.window() != other.window() {
		return l.window() < other.window()
	}
	return l.left() < other.left()
}

// decision is the result of an evaluation. The request is refused if a cap refuses it, waits if it is blocked, and is
// admitted otherwise.
type decision struct {
	maxTokens     int64 // of each candidate: what used tokens leave, up to the demand
	promptTokens  int64 // of all prompts, at that maxTokens
	refusing      *limit
	blockedBySlot bool              // as many requests of an owner run as may
	blocked       [len(scopes)]bool // reservations against the caps of these owners stand in the way
}

func (d *decision) admitted() bool {
	return d.refusing == nil && !d.blockedBySlot && d.blocked == [len(scopes)]bool{}
}

// decide decides by the caps alone.
func decide(limits []limit, demand *Demand) decision {
	d := decision{maxTokens: demand.MaxTokens}
	least := max(1, min(demand.MinTokens, demand.MaxTokens))
	for i := range limits {
		l := &limits[i]
		allowed := l.allowed(demand)
		if allowed < least && (d.refusing == nil || l.namedBefore(d.refusing)) {
			d.refusing = l
		}
		d.maxTokens = min(d.maxTokens, allowed)
	}
	d.promptTokens = demand.promptAt(d.maxTokens)
	for i := range limits { // a truncated prompt is longer at a lower max_tokens
		l := &limits[i]
		if l.meter() == quota.Input && d.promptTokens > l.left() && (d.refusing == nil || l.namedBefore(d.refusing)) {
			d.refusing = l
		}
	}
	if d.refusing != nil {
		return d
	}
	need := quota.Tokens{Input: d.promptTokens, Output: demand.Output(d.maxTokens)}
	for i := range limits {
		if l := &limits[i]; !l.fitsBesideReserved(need) {
			d.blocked[l.owner] = true
		}
	}
	return d
}
