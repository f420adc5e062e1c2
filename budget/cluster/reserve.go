package cluster

import (
	"context"
	"fmt"
	"time"

	"basegate/budget"
)

// Demand is the worst-case cost of a request, as budget.Demand, but with data in place of a function.
type Demand struct {
	PromptTokens int64 // of all prompts together
	Exact        bool  // PromptTokens is the exact count; if false, it is an upper bound
	Candidates   int64 // prompts × max(n, best_of); at least 1
	MaxTokens    int64 // of each candidate; at least 1
	MinTokens    int64 // of each candidate: a lower max_tokens is no use

	// Prompts are the tokens of each prompt, if a lower max_tokens makes them longer because they are truncated to what it
	// leaves of Context; nil otherwise.
	Prompts []int64
	Context int64
}

// maxCount is where token counts saturate, as in package budget.
const maxCount = 1 << 50

// normalized limits the counts to their valid ranges.
func (d Demand) normalized() Demand {
	d.PromptTokens = min(max(d.PromptTokens, 0), maxCount)
	d.Candidates = min(max(d.Candidates, 1), maxCount)
	d.MaxTokens = min(max(d.MaxTokens, 1), maxCount)
	d.MinTokens = min(max(d.MinTokens, 0), maxCount)
	return d
}

// product returns a × b, at most maxCount.
func product(a, b int64) int64 {
	if a > maxCount/b {
		return maxCount
	}
	return a * b
}

// Reserve reserves the worst-case cost of a request against every cap of its key and account at once, and a slot of its
// key. The reservation may allow fewer tokens than demanded. The error is *budget.Exceeded if the tokens already used leave
// no room for the request.
//
// Reserve waits as long as reservations of other requests or their slots stand in the way, until ctx ends. It returns
// ErrUnavailable if the database does not respond in time, but a request that waits keeps its place during an outage.
// Otherwise it is budget.Ledger.Reserve.
func (l *Ledger) Reserve(ctx context.Context, p budget.Payer, r budget.Request, d Demand, requester budget.Requester) (*Reservation, error) {
	return l.reserve(ctx, p, r, d, requester, false)
}

// TryReserve is Reserve without waiting: it returns budget.ErrReserved at once if only reservations or slots of other
// requests stand in the way.
func (l *Ledger) TryReserve(ctx context.Context, p budget.Payer, r budget.Request, d Demand, requester budget.Requester) (*Reservation, error) {
	return l.reserve(ctx, p, r, d, requester, true)
}

func (l *Ledger) reserve(ctx context.Context, p budget.Payer, r budget.Request, d Demand, requester budget.Requester,
	impatient bool,
) (*Reservation, error) {
	if l.closed.Load() {
		return nil, ErrClosed
	}
	lane := l.lane(p.Account)
	if err := lane.unavailable(); err != nil {
		return nil, fmt.Errorf("reserve tokens: %w", err)
	}
	d = d.normalized()
	if requester == nil {
		d.Exact = true
	}
	o, got, err := l.admit(ctx, lane, p, r, d, impatient)
	if err == nil && got.Kind == kindCount {
		tokens, failed := requester.CountPrompt(ctx)
		if failed != nil {
			return nil, fmt.Errorf("count the tokens of the prompt: %w", failed)
		}
		d.PromptTokens, d.Exact = tokens, true
		d = d.normalized()
		o, got, err = l.admit(ctx, lane, p, r, d, impatient)
	}
	if err == nil && got.Kind == kindWait {
		got, err = lane.await(ctx, o, got.ended, requester)
	}
	if err != nil {
		return nil, err
	}
	if got.Kind != kindGranted {
		return nil, got.failure()
	}
	return lane.addOpen(o, &d, got), nil
}

// admit submits an admission and waits for its first decision.
func (l *Ledger) admit(ctx context.Context, lane *lane, p budget.Payer, r budget.Request, d Demand, impatient bool) (*operation, decision, error) {
	a := &admission{
		ID: r.ID, Key: p.Key, Account: p.Account, Prompt: d.PromptTokens, Candidates: d.Candidates, Max: d.MaxTokens,
		Min: d.MinTokens, Output: product(d.Candidates, d.MaxTokens), Exact: d.Exact, Impatient: impatient, Prompts: d.Prompts,
		Context: d.Context, Model: escape(r.Model), Endpoint: escape(r.Endpoint), Workload: escape(r.Workload),
		Tag: escape(r.User), Stream: r.Stream, Batch: escape(r.Batch),
	}
	if !r.Time.IsZero() {
		a.Age = max(time.Since(r.Time).Microseconds(), 0)
	}
	done := make(chan decision, 1)
	o := &operation{account: p.Account, key: p.Key, admit: a, done: done}
	if err := lane.enqueue(o); err != nil {
		return nil, decision{}, err
	}
	limit := time.NewTimer(l.settings.AdmitTimeout)
	defer limit.Stop()
	select {
	case got := <-done:
		if got.err != nil {
			return nil, decision{}, fmt.Errorf("reserve tokens: %w", got.err)
		}
		return o, got, nil
	case <-ctx.Done():
		lane.abandon(o)
		return nil, decision{}, fmt.Errorf("reserve tokens: %w", context.Cause(ctx))
	case <-limit.C:
		lane.abandon(o)
		return nil, decision{}, fmt.Errorf("reserve tokens: %w", ErrUnavailable)
	}
}

// await waits until a wait has ended. If it fails first, the request leaves the queue, and a reservation made at the same
// moment is dropped.
func (l *lane) await(ctx context.Context, o *operation, ended <-chan decision, requester budget.Requester) (decision, error) {
	if requester != nil {
		release, err := requester.ReserveMemory()
		if err != nil {
			l.abandon(o)
			return decision{}, fmt.Errorf("wait for reservations to end: %w", err)
		}
		defer release()
	}
	select {
	case got := <-ended:
		if got.err != nil {
			return decision{}, fmt.Errorf("wait for reservations to end: %w", got.err)
		}
		return got, nil
	case <-ctx.Done():
		l.abandon(o)
		return decision{}, fmt.Errorf("wait for reservations to end: %w", context.Cause(ctx))
	}
}
