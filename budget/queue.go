package budget

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Requester is the request for which Reserve is called. Reserve calls each method at most once, on the goroutine of its
// caller, and does not hold the ledger's lock meanwhile.
type Requester interface {
	// CountPrompt returns the number of tokens of all prompts by which the request is decided: the exact one, or the bound
	// if nothing can count them. Reserve calls it if Demand.Exact is false and the bound in Demand.PromptTokens is too
	// large to admit the request at once and in full. each are the tokens of each prompt, if the demand has Prompts.
	// Reserve returns its error.
	CountPrompt(ctx context.Context) (tokens int64, each []int64, err error)

	// ReserveMemory accounts for the memory that the request holds while it waits. Reserve calls it if the request has
	// to wait, and release when the wait ends. Reserve returns its error.
	ReserveMemory() (release func(), err error)
}

// Count replaces the bound of the prompts' tokens by what the requester counts.
func (d *Demand) Count(ctx context.Context, requester Requester) error {
	tokens, each, err := requester.CountPrompt(ctx)
	if err != nil {
		return fmt.Errorf("count the tokens of the prompt: %w", err)
	}
	d.PromptTokens, d.Exact = tokens, true
	if d.Prompts != nil {
		d.Prompts = each
	}
	*d = d.Normalized()
	return nil
}

// waiter is a request in Reserve: being evaluated for the first time, or queued.
type waiter struct {
	payer        Payer
	request      Request
	demand       Demand
	noWait       bool // it does not wait for reservations of others
	key, account *owner

	decided     chan struct{} // closed when reservation or err is set; nil unless the request is queued
	reservation *reservation
	err         error
}

// Reserve reserves the worst-case cost of a request against every cap at once. The reservation may allow fewer tokens
// than demanded. The error is *Exceeded if the tokens already used leave no room for the request.
//
// If d is not exact and the bound does not fit beside what is used and reserved, Reserve counts the prompt once and
// evaluates the demand with that count, so that no refusal, lower max_tokens or wait rests on the bound alone. If
// requester is nil, the bound is used as if it were the exact count, and the memory held during a wait is not accounted
// for.
//
// Reserve waits as long as reservations of other requests stand in the way, until ctx ends; the caps that apply are
// those at the time of the decision. The error is ErrKeyDisabled if the key was disabled in the meantime. It is
// database.ErrUnavailable while the database cannot be written.
func (l *Ledger) Reserve(ctx context.Context, p Payer, r Request, d Demand, requester Requester) (Reservation, error) {
	return l.reserveFor(ctx, &waiter{payer: p, request: r, demand: d}, requester)
}

func (l *Ledger) reserveFor(ctx context.Context, w *waiter, requester Requester) (Reservation, error) {
	if err := l.db.WriteError(); err != nil {
		return nil, fmt.Errorf("reserve tokens: %w", err)
	}
	w.request.KeyID, w.request.AccountID = w.payer.Key, w.payer.Account
	w.demand = w.demand.Normalized()
	if requester == nil {
		w.demand.Exact = true
	}
	needsCount, err := l.admitOrEnqueue(ctx, w)
	if needsCount {
		if err := w.demand.Count(ctx, requester); err != nil {
			return nil, err
		}
		_, err = l.admitOrEnqueue(ctx, w)
	}
	if err == nil && w.decided != nil {
		err = l.await(ctx, w, requester)
	}
	if err != nil {
		return nil, err
	}
	return w.reservation, nil
}

// admitOrEnqueue evaluates a new request and admits, refuses or queues it. It does none of these but returns needsCount
// if the demand is not exact and the request would not be admitted in full.
func (l *Ledger) admitOrEnqueue(ctx context.Context, w *waiter) (needsCount bool, err error) {
	if err := l.lockHoldingMonth(ctx); err != nil {
		return false, err
	}
	defer l.mu.Unlock()
	if err := w.payer.Refresh(l.settings.Payer); err != nil {
		return false, err
	}
	w.key, w.account = l.owners(&w.payer)
	b := l.bucket(w.key, w.account)
	if len(w.account.queue) > 0 && w.account.dispatched != b.date {
		l.dispatch(w.account)
	}
	d := evaluate(w, b)
	if !w.demand.Exact && (!d.admitted() || d.maxTokens < w.demand.MaxTokens) {
		return true, nil
	}
	switch {
	case d.exceeded != nil:
		l.raiseRefusal(&w.payer, d.exceeded, b)
		return false, d.exceeded
	case d.admitted():
		w.reservation = l.reserve(w, &d)
	case w.noWait:
		return false, ErrReserved
	default:
		w.decided = make(chan struct{})
		w.account.queue = append(w.account.queue, w)
		w.account.dispatched = d.bucket.date
		w.block(&d)
		l.waiting++
	}
	return false, nil
}

// lockHoldingMonth locks the ledger when it holds the counters of the current month. If it returns an error, the ledger is
// not locked.
func (l *Ledger) lockHoldingMonth(ctx context.Context) error {
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return ErrClosed
		}
		if l.holds(dateOf(l.clock()).month) {
			return nil
		}
		l.mu.Unlock()
		if err := l.loadMonth(ctx); err != nil {
			return err
		}
	}
}

// block makes later requests wait behind w if the same owner's caps limit them.
func (w *waiter) block(d *decision) {
	w.key.blocked = w.key.blocked || d.blockedByKey
	w.account.blocked = w.account.blocked || d.blockedByAccount
}

// await waits for the decision on a queued request. If it fails first, the request leaves the queue, and a reservation
// made at the same moment is released.
func (l *Ledger) await(ctx context.Context, w *waiter, requester Requester) error {
	if requester != nil {
		release, err := requester.ReserveMemory()
		if err != nil {
			l.cancel(w)
			return fmt.Errorf("wait for reservations to end: %w", err)
		}
		defer release()
	}
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		l.cancel(w)
		return fmt.Errorf("wait for reservations to end: %w", context.Cause(ctx))
	}
}

// cancel removes a request from its queue, or releases its reservation.
func (l *Ledger) cancel(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(w.account.queue, w); at >= 0 {
		w.account.queue = slices.Delete(w.account.queue, at, at+1)
		l.waiting--
		w.key.blocked = false
		l.dispatch(w.account)
	} else if w.reservation != nil {
		l.release(w.reservation, 0, 0)
	}
}

// dispatch evaluates all requests that wait in an account's queue, in order of arrival. If a month has begun of which the
// ledger does not hold the counters, they wait on until the maintenance goroutine has loaded them.
func (l *Ledger) dispatch(account *owner) {
	today := dateOf(l.clock())
	if !l.holds(today.month) {
		return
	}
	account.blocked = false
	for _, w := range account.queue {
		w.key.blocked = false
	}
	account.dispatched = today
	before := len(account.queue)
	account.queue = slices.DeleteFunc(account.queue, l.decide)
	l.waiting -= before - len(account.queue)
}

// decide evaluates a queued request, and reports whether its wait is over.
func (l *Ledger) decide(w *waiter) (over bool) {
	err := w.payer.Refresh(l.settings.Payer)
	d := evaluate(w, l.bucket(w.key, w.account))
	switch {
	case err != nil:
		w.err = err
	case d.exceeded != nil:
		l.raiseRefusal(&w.payer, d.exceeded, d.bucket)
		w.err = d.exceeded
	case d.admitted():
		w.reservation = l.reserve(w, &d)
	default:
		w.block(&d)
		return false
	}
	close(w.decided)
	return true
}

// reserve adds the demand to the counters.
func (l *Ledger) reserve(w *waiter, d *decision) *reservation {
	r := &reservation{
		Grant: Grant{
			Input: d.promptTokens, Output: w.demand.Output(d.maxTokens), Max: d.maxTokens, Lowered: d.maxTokens < w.demand.MaxTokens,
		},
		ledger: l, request: w.request, bucket: d.bucket, key: w.key, account: w.account,
	}
	if arrived := r.request.Time; arrived.IsZero() || dateOf(arrived) != d.bucket.date {
		r.request.Time = d.bucket.time
	}
	r.request.Time = r.request.Time.UTC()
	w.key.recordUse(r.request.Time, d.bucket.time)
	r.admitted = time.Now()
	r.bucket.key.reserve(r.bucket.date.day, r.Input, r.Output)
	r.bucket.account.reserve(r.bucket.date.day, r.Input, r.Output)
	l.reserved += r.Input + r.Output
	if r.request.Batch == "" {
		w.key.running++
		w.account.running++
	}
	r.index = len(l.open)
	l.open = append(l.open, r)
	return r
}

// release replaces a reservation by the tokens used, and admits the requests for which that makes room.
func (l *Ledger) release(r *reservation, input, output int64) {
	r.bucket.key.reserve(r.bucket.date.day, -r.Input, -r.Output)
	r.bucket.account.reserve(r.bucket.date.day, -r.Input, -r.Output)
	r.bucket.key.charge(r.bucket.date.day, input, output)
	r.bucket.account.charge(r.bucket.date.day, input, output)
	l.raiseAlarms(r, input, output)
	l.reserved -= r.Input + r.Output
	if r.request.Batch == "" {
		r.key.running--
		r.account.running--
	}
	last := l.open[len(l.open)-1]
	l.open[r.index], last.index = last, r.index
	l.open[len(l.open)-1] = nil
	l.open = l.open[:len(l.open)-1]
	if len(r.account.queue) > 0 {
		l.dispatch(r.account)
	}
}
