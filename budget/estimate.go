package budget

import (
	"context"
	"fmt"
	"time"
)

// Estimate is what Reserve would decide about a request if no other one were in flight.
type Estimate struct {
	MaxTokens int64 // of each candidate: the demanded number, or what the caps leave; 0 if they refuse the request
	LimitedBy *Cap  // the cap that refuses the request or lowers MaxTokens the most; nil if there is none
	Output    int64 // of all candidates with the demanded max_tokens
	Refused   *Exceeded
}

// Cap is one cap of a payer and what it leaves.
type Cap struct {
	Scope     Scope
	Window    Window
	Meter     Meter
	Remaining int64     // tokens not used; reservations do not reduce it; never negative
	ResetsAt  time.Time // end of the window, UTC
}

// Estimate evaluates a request as Reserve does and reserves nothing. Its errors are those of Reserve but *Exceeded, which it
// returns as Estimate.Refused. It takes PromptTokens for the exact count.
func (l *Ledger) Estimate(ctx context.Context, p Payer, d Demand) (Estimate, error) {
	if err := l.db.WriteError(); err != nil {
		return Estimate{}, fmt.Errorf("estimate: %w", err)
	}
	w := &waiter{payer: p, demand: d.normalized()}
	if err := l.lockHoldingMonth(ctx); err != nil {
		return Estimate{}, err
	}
	defer l.mu.Unlock()
	if err := l.refreshCaps(&w.payer); err != nil {
		return Estimate{}, err
	}
	w.key, w.account = l.owners(&w.payer)
	return l.bucket(w.key, w.account).estimate(w), nil
}

func (b bucket) estimate(w *waiter) Estimate {
	decided := evaluate(w, b)
	output := product(w.demand.Candidates, w.demand.MaxTokens)
	if e := decided.exceeded; e != nil {
		limit := &Cap{e.Scope, e.Window, e.Meter, max(e.Limit-e.Used, 0), e.ResetsAt}
		return Estimate{LimitedBy: limit, Output: output, Refused: e}
	}
	estimate := Estimate{MaxTokens: decided.maxTokens, Output: output}
	if decided.maxTokens < w.demand.MaxTokens {
		estimate.LimitedBy = b.limiting(w, decided.maxTokens)
	}
	return estimate
}

// limiting returns the cap that lowers max_tokens to maxTokens. If there are several, it is the one that a refusal would
// name.
func (b bucket) limiting(w *waiter, maxTokens int64) *Cap {
	var chosen *capCheck
	caps := b.capChecks(&w.payer)
	for i := range caps.all() {
		c := &caps.list[i]
		if c.allowed(w.demand) == maxTokens && (chosen == nil || c.namedBefore(*chosen)) {
			chosen = c
		}
	}
	if chosen == nil {
		return nil
	}
	return &Cap{chosen.scope, chosen.window, chosen.meter, max(chosen.remaining(), 0), b.date.windowEnd(chosen.window)}
}
