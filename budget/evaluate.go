package budget

import (
	"sort"
	"time"

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

// normalized limits the counts to their valid ranges, so that a negative count cannot add budget.
func (d Demand) normalized() Demand {
	d.PromptTokens = min(max(d.PromptTokens, 0), maxCount)
	d.Candidates = max(d.Candidates, 1)
	d.MaxTokens = max(d.MaxTokens, 1)
	return d
}

// maxCount is where token counts saturate: more than any cap leaves, and small enough to add up thousands of them.
const maxCount = 1 << 50

// product returns a × b, at most maxCount.
func product(a, b int64) int64 {
	if a > maxCount/b {
		return maxCount
	}
	return a * b
}

// capCheck is one cap and the counter that it limits.
type capCheck struct {
	scope   Scope
	window  Window
	meter   Meter
	limit   int64
	counter *counter
}

// remaining returns the tokens left if reservations are ignored. It is negative if the cap was lowered.
func (c capCheck) remaining() int64 { return c.limit - c.counter.used }

// allowed returns how many tokens each candidate may have under this cap if reservations are ignored; 0 if the cap
// refuses the request.
func (c capCheck) allowed(d Demand) int64 {
	remaining := c.remaining()
	switch c.meter {
	case Input:
		if remaining <= 0 || d.PromptTokens > remaining {
			return 0
		}
		return d.MaxTokens
	case Output:
		return max(remaining, 0) / d.Candidates
	case Total:
	}
	if d.Prompts != nil { // the cost of one more token of max_tokens is never negative, since every prompt has a candidate
		cost := func(maxTokens int64) int64 { return d.promptAt(maxTokens) + product(d.Candidates, maxTokens) }
		return int64(sort.Search(int(min(d.MaxTokens, maxCount)), func(i int) bool { return cost(int64(i)+1) > remaining }))
	}
	if remaining <= d.PromptTokens {
		return 0
	}
	return (remaining - d.PromptTokens) / d.Candidates
}

// fitsBesideReserved reports whether the tokens fit into what used and reserved tokens together leave.
func (c capCheck) fitsBesideReserved(input, output int64) bool {
	need := input
	switch c.meter {
	case Total:
		need += output
	case Output:
		need = output
	case Input:
	}
	return need <= c.remaining()-c.counter.reserved
}

// exceeded returns the refusal that names this cap.
func (c capCheck) exceeded(today date) *Exceeded {
	return &Exceeded{
		Scope: c.scope, Window: c.window, Meter: c.meter,
		Limit: c.limit, Used: c.counter.used, Reserved: c.counter.reserved, ResetsAt: today.windowEnd(c.window),
	}
}

// namedBefore reports whether a refusal names this cap rather than other; see Exceeded.
func (c capCheck) namedBefore(other capCheck) bool {
	if c.window != other.window {
		return c.window == Month
	}
	return c.remaining() < other.remaining()
}

// capChecks are the bounded caps of one payer, the key's first. It is an array so that an evaluation allocates nothing.
type capChecks struct {
	list [8]capCheck
	n    int
}

func (c *capChecks) all() []capCheck { return c.list[:c.n] }

func (c *capChecks) addAll(scope Scope, caps quota.Caps, m *monthCounters, day int) {
	c.add(caps.MonthTotal, capCheck{scope: scope, window: Month, meter: Total, counter: &m.total})
	c.add(caps.DayTotal, capCheck{scope: scope, window: Day, meter: Total, counter: &m.days[day]})
	c.add(caps.MonthInput, capCheck{scope: scope, window: Month, meter: Input, counter: &m.input})
	c.add(caps.MonthOutput, capCheck{scope: scope, window: Month, meter: Output, counter: &m.output})
}

func (c *capChecks) add(limit quota.Cap, check capCheck) {
	if tokens, bounded := limit.Tokens(); bounded {
		check.limit = max(tokens, 0)
		c.list[c.n] = check
		c.n++
	}
}

// bucket holds the counters to which a request is charged: those of the date on which it was admitted.
type bucket struct {
	key, account *monthCounters
	date         date
	time         time.Time
}

func (b bucket) capChecks(p *Payer) (c capChecks) {
	if p.KeyCaps.Any() {
		c.addAll(Key, p.KeyCaps, b.key, b.date.day)
	}
	if p.AccountCaps.Any() {
		c.addAll(Account, p.AccountCaps, b.account, b.date.day)
	}
	return c
}

// decision is the result of an evaluation. The request is refused if exceeded is set, waits if it is blocked, and is
// admitted otherwise.
type decision struct {
	bucket           bucket
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

// evaluate decides on one request by all caps at once. Used tokens refuse the request or lower its max_tokens.
// Reservations, and earlier requests that reservations block at the same caps, make it wait. So do the requests of its key or
// account that run, if the number of slots was lowered since it got its own.
func evaluate(w *waiter, b bucket) decision {
	d := decision{bucket: b, maxTokens: w.demand.MaxTokens}
	least := max(1, min(w.demand.MinTokens, w.demand.MaxTokens))
	caps := b.capChecks(&w.payer)
	var refusing *capCheck
	for i := range caps.all() {
		c := &caps.list[i]
		allowed := c.allowed(w.demand)
		if allowed < least && (refusing == nil || c.namedBefore(*refusing)) {
			refusing = c
		}
		d.maxTokens = min(d.maxTokens, allowed)
	}
	d.promptTokens = w.demand.promptAt(d.maxTokens)
	for i := range caps.all() { // a truncated prompt is longer at a lower max_tokens
		c := &caps.list[i]
		if c.meter == Input && d.promptTokens > c.remaining() && (refusing == nil || c.namedBefore(*refusing)) {
			refusing = c
		}
	}
	if refusing != nil {
		d.exceeded = refusing.exceeded(b.date)
		return d
	}
	d.blockedBySlot = w.request.Batch == "" && (allTaken(w.key, w.payer.Slots) || allTaken(w.account, w.payer.AccountSlots))
	d.blockedByKey = w.key.blocked && w.payer.KeyCaps.Any()
	d.blockedByAccount = w.account.blocked && w.payer.AccountCaps.Any()
	output := product(w.demand.Candidates, d.maxTokens)
	for _, c := range caps.all() {
		if c.fitsBesideReserved(d.promptTokens, output) {
			continue
		}
		if c.scope == Key {
			d.blockedByKey = true
		} else {
			d.blockedByAccount = true
		}
	}
	return d
}

// allTaken reports whether as many requests of a key or an account run as it has slots; 0 is unbounded.
func allTaken(o *owner, slots int) bool { return slots > 0 && o.running >= slots }

// Exhausted returns the cap of which all tokens are used, or nil if every cap has tokens left. Reservations do not
// count.
func (l *Ledger) Exhausted(p Payer) *Exceeded {
	if !p.KeyCaps.Any() && !p.AccountCaps.Any() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucket(l.owners(&p)).exhausted(&p)
}

func (b bucket) exhausted(p *Payer) *Exceeded {
	var exhausted *capCheck
	caps := b.capChecks(p)
	for i := range caps.all() {
		c := &caps.list[i]
		if c.remaining() <= 0 && (exhausted == nil || c.namedBefore(*exhausted)) {
			exhausted = c
		}
	}
	if exhausted == nil {
		return nil
	}
	return exhausted.exceeded(b.date)
}
