package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"basegate/budget"
	"basegate/budget/usage"
)

// promptLengths returns the different lengths of prompts that are truncated to a context, and how many prompts have each, so
// that a request with very many prompts costs the database little.
func promptLengths(prompts []int64, limit int64) (lengths, times []int64) {
	if prompts == nil {
		return nil, nil
	}
	count := map[int64]int64{}
	for _, tokens := range prompts {
		count[min(max(tokens, 0), max(limit, 0))]++
	}
	lengths = slices.Sorted(maps.Keys(count))
	times = make([]int64, len(lengths))
	for i, length := range lengths {
		times[i] = count[length]
	}
	return lengths, times
}

// Reserve is budget.Ledger.Reserve for all gateways, and reserves a slot of the key too. It returns database.ErrUnavailable if the
// database does not respond in time, but a request that waits keeps its place during an outage.
func (l *Ledger) Reserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error) {
	return l.reserve(ctx, p, r, d, requester, false)
}

// TryReserve is Reserve without waiting: it returns budget.ErrReserved instead.
func (l *Ledger) TryReserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error) {
	return l.reserve(ctx, p, r, d, requester, true)
}

func (l *Ledger) reserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester,
	noWait bool,
) (budget.Reservation, error) {
	for {
		e := l.epoch.Load()
		if e == nil || l.closed.Load() {
			return nil, budget.ErrClosed
		}
		reserved, err := l.reserveIn(ctx, e, p, r, d, requester, noWait)
		if !errors.Is(err, errNotSent) || !e.awaitNext(ctx) {
			return reserved, err
		}
	}
}

// reserveIn is reserve in one epoch. The error is errNotSent if the epoch has ended before the request was sent.
func (l *Ledger) reserveIn(ctx context.Context, e *epoch, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester,
	noWait bool,
) (budget.Reservation, error) {
	lane := e.lane(p.Account)
	if err := lane.ready(); err != nil {
		return nil, fmt.Errorf("reserve tokens: %w", notSent(err))
	}
	d = d.Normalized()
	if requester == nil {
		d.Exact = true
	}
	o, got, err := l.admit(ctx, lane, p, r, d, noWait)
	if err == nil && got.Kind == budget.MustCount {
		if err := d.Count(ctx, requester); err != nil {
			return nil, err
		}
		o, got, err = l.admit(ctx, lane, p, r, d, noWait)
	}
	if err == nil && got.Kind == budget.Waits {
		got, err = lane.await(ctx, o, got.ended, requester)
	}
	if err != nil {
		return nil, err
	}
	if got.Kind != budget.Granted {
		return nil, got.failure()
	}
	return lane.addOpen(o, &d, got), nil
}

// errNotSent is returned for an operation that no call has carried when the epoch ended.
var errNotSent = errors.New("it was not sent")

func notSent(err error) error {
	if errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return err
}

// admit submits an admission and waits for its first decision.
func (l *Ledger) admit(ctx context.Context, lane *lane, p budget.Payer, r budget.Request, d budget.Demand, noWait bool) (*operation, decision, error) {
	a := &admission{
		ID: r.ID, Key: p.Key, Account: p.Account, Prompt: d.PromptTokens, Candidates: d.Candidates, Max: d.MaxTokens,
		Min: d.MinTokens, Context: d.Context, demand: d, noWait: noWait, arrived: r.Time, address: r.Address, chain: r.ChainID,
		Model: escape(r.Model), Endpoint: escape(r.Endpoint), Workload: escape(r.Workload), Tag: escape(r.User), Stream: r.Stream,
		Batch: escape(r.Batch), Run: escape(r.Run), Details: escape(usage.EncodeDetails(nil, r.ChainID)),
	}
	a.Prompts, a.Times = promptLengths(d.Prompts, d.Context)
	done := make(chan decision, 1)
	o := &operation{account: p.Account, key: p.Key, admit: a, done: done}
	if err := lane.enqueue(o); err != nil {
		return nil, decision{}, fmt.Errorf("reserve tokens: %w", notSent(err))
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
		return nil, decision{}, fmt.Errorf("reserve tokens: %w", errTimeout)
	}
}

// await waits until a wait has ended. If it fails first, the request leaves the queue, and a reservation made at the same
// moment is dropped.
func (l *lane) await(ctx context.Context, o *operation, ended <-chan decision, requester budget.Requester) (decision, error) {
	if requester != nil {
		release, err := requester.Wait(nil)
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
