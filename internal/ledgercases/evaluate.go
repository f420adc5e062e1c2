package ledgercases

import (
	"slices"
	"time"
)

// capState is a cap that is set, with its counter.
type capState struct {
	Refusal
}

func (c *capState) left() int64 { return c.Limit - c.Used }

// caps returns the caps that are set of a key, then those of its account.
func (r *rules) caps(key *owner) (all []capState) {
	for _, o := range []*owner{key, r.owners[key.account]} {
		for _, c := range []struct {
			limit         *int64
			window, meter string
		}{
			{o.caps.MonthTotal, "month", "total"},
			{o.caps.DayTotal, "day", "total"},
			{o.caps.MonthInput, "month", "input"},
			{o.caps.MonthOutput, "month", "output"},
		} {
			if c.limit == nil {
				continue
			}
			used, reserved := r.sums(o, c.window)
			all = append(all, capState{Refusal{
				Scope: o.scope(), Window: c.window, Meter: c.meter, Limit: *c.limit,
				Used: used.of(c.meter), Reserved: reserved.of(c.meter), ResetsAt: r.windowEnd(c.window),
			}})
		}
	}
	return all
}

func (r *rules) windowEnd(window string) time.Time {
	year, month, day := r.now.Date()
	if window == "day" {
		return time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
}

// tokens are input and output tokens.
type tokens struct{ input, output int64 }

func (t tokens) of(meter string) int64 {
	switch meter {
	case "input":
		return t.input
	case "output":
		return t.output
	default:
		return t.input + t.output
	}
}

// sums returns the tokens of an owner's requests that were admitted in the current day or month: used by those that have
// ended, and reserved by those that run.
func (r *rules) sums(o *owner, window string) (used, reserved tokens) {
	within := sameMonth
	if window == "day" {
		within = sameDay
	}
	for i := range r.requests {
		q := &r.requests[i]
		if q.key != o && q.key.account != o.id || !within(q.admitted, r.now) {
			continue
		}
		switch q.state {
		case ended:
			used.input, used.output = used.input+q.tokens.input, used.output+q.tokens.output
		case running:
			reserved.input, reserved.output = reserved.input+q.tokens.input, reserved.output+q.tokens.output
		case waiting, gone:
		}
	}
	return used, reserved
}

func sameMonth(a, b time.Time) bool { return a.Year() == b.Year() && a.Month() == b.Month() }

func sameDay(a, b time.Time) bool { return a.Year() == b.Year() && a.YearDay() == b.YearDay() }

// evaluation is what used tokens leave of a request.
type evaluation struct {
	maxTokens int64    // of each candidate
	tokens    tokens   // the worst case, at that maxTokens
	refusal   *Refusal // the cap that refuses it; nil if none does
}

// evaluate decides on a request as if no other one were in flight. It tries every max_tokens.
func (r *rules) evaluate(q *request) evaluation {
	d := q.demand
	least := max(1, min(d.MinTokens, d.MaxTokens))
	e := evaluation{maxTokens: d.MaxTokens}
	all := r.caps(q.key)
	var refusing []capState
	for _, c := range all {
		allowed := c.allowed(d)
		if allowed < least {
			refusing = append(refusing, c)
		}
		e.maxTokens = min(e.maxTokens, allowed)
	}
	prompt := d.PromptTokens
	if e.maxTokens < d.MaxTokens {
		prompt = d.PromptAt(e.maxTokens) // a truncated prompt is longer at a lower max_tokens
	}
	for _, c := range all {
		if c.Meter == "input" && prompt > c.left() {
			refusing = append(refusing, c)
		}
	}
	if len(refusing) > 0 {
		e.refusal = &named(refusing).Refusal
	}
	e.tokens = tokens{prompt, d.Candidates * e.maxTokens}
	return e
}

// allowed returns the most tokens that each candidate may have under a cap; 0 if the cap refuses the request.
func (c *capState) allowed(d *Demand) int64 {
	for m := d.MaxTokens; m > 0; m-- {
		prompt := d.PromptTokens
		if m < d.MaxTokens && c.Meter != "input" {
			prompt = d.PromptAt(m)
		}
		need := tokens{prompt, d.Candidates * m}.of(c.Meter)
		if need <= c.left() && c.left() > 0 {
			return m
		}
	}
	return 0
}

// named returns the cap that a refusal names: a monthly one before a daily one, then the one with the fewest tokens left, then
// the first.
func named(refusing []capState) *capState {
	best := slices.MinFunc(refusing, func(a, b capState) int {
		if a.Window != b.Window {
			return map[string]int{"month": -1, "day": 1}[a.Window]
		}
		return int(a.left() - b.left())
	})
	return &best
}

// lacking returns the first cap of the scope, or of any if it is "", that leaves too little beside used and reserved tokens;
// nil if none does.
func (r *rules) lacking(q *request, e *evaluation, scope string) *capState {
	for _, c := range r.caps(q.key) {
		if (scope == "" || c.Scope == scope) && e.tokens.of(c.Meter) > c.left()-c.Reserved {
			return &c
		}
	}
	return nil
}
