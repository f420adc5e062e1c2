package budget

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"basegate/database"
)

// Requester is the request for which Reserve is called. Reserve calls each method at most once, on the goroutine of its
// caller, and does not hold the ledger's lock meanwhile.
type Requester interface {
	// CountPrompt returns the number of tokens of all prompts by which the request is decided: the exact one, or the bound
	// if nothing can count them. Reserve calls it if Demand.Exact is false and the bound in Demand.PromptTokens is too
	// large to admit the request at once and in full. each are the tokens of each prompt, if the demand has Prompts.
	// Reserve returns its error.
	CountPrompt(ctx context.Context) (tokens int64, each []int64, err error)

	// Wait accounts for the memory that the request holds while it waits. Reserve calls it if the request has to wait, and
	// over when the wait ends. Reserve returns its error. before tells how many requests wait for a slot in front of this one,
	// and false if this one waits for tokens alone; it is nil if the ledger does not know.
	Wait(before func() (requests int, forSlot bool)) (over func(), err error)
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

// Reserve reserves the worst-case cost of a request against every cap at once. The reservation may allow fewer tokens
// than demanded. The error is *Exceeded if the tokens already used leave no room for the request.
//
// If d is not exact and the bound does not fit beside what is used and reserved, Reserve counts the prompt once. If
// requester is nil, the bound is used as if it were the exact count, and the memory held during a wait is not accounted
// for.
//
// Reserve waits as long as reservations of other requests or their slots stand in the way, until ctx ends; the caps that apply
// are those at the time of the decision. The error is ErrKeyDisabled if the key was disabled in the meantime. It is
// database.ErrUnavailable while the database cannot be written.
func (l *Ledger) Reserve(ctx context.Context, p Payer, r Request, d Demand, requester Requester) (Reservation, error) {
	return l.reserve(ctx, &p, &Waiter{Request: r, Demand: d}, requester)
}

func (l *Ledger) reserve(ctx context.Context, p *Payer, w *Waiter, requester Requester) (Reservation, error) {
	if err := l.db.WriteError(); err != nil && !w.Demand.SlotOnly {
		return nil, fmt.Errorf("reserve tokens: %w", err)
	}
	w.Request.KeyID, w.Request.AccountID = p.Key, p.Account
	w.Demand = w.Demand.Normalized()
	if requester == nil {
		w.Demand.Exact = true
	}
	r, d, err := l.admit(ctx, p, w)
	if d.Kind == MustCount {
		if err := w.Demand.Count(ctx, requester); err != nil {
			return nil, err
		}
		r, d, err = l.admit(ctx, p, w)
	}
	if err == nil && d.Kind == Waits {
		r, err = l.await(ctx, p, w, requester)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// admit decides on a new request. The error is that of a decision against it.
func (l *Ledger) admit(ctx context.Context, p *Payer, w *Waiter) (*reservation, Decision, error) {
	if err := l.lockHoldingMonth(ctx); err != nil {
		return nil, Decision{}, err
	}
	defer l.mu.Unlock()
	a := l.account(p.Account)
	slotsChanged, err := l.refresh(a, p)
	if err != nil {
		return nil, Decision{}, err
	}
	if slotsChanged {
		l.grant(a, true)
	}
	d := a.Admit(l.clock(), w)
	l.deliver(a)
	if d.Kind == Granted {
		return l.opened(a, w, &d), d, nil
	}
	if d.Kind == Waits {
		w.decided = make(chan struct{})
	}
	return nil, d, d.Err()
}

// Err returns the error of a decision against a request.
func (d *Decision) Err() error {
	switch d.Kind {
	case Refused:
		return d.Exceeded
	case Reserved:
		return ErrReserved
	case KeyInvalid:
		return ErrKeyDisabled
	case Duplicate:
		return ErrDuplicate
	case Granted, Waits, MustCount:
		return nil
	}
	return fmt.Errorf("%w: an unknown decision: %q", database.ErrUnavailable, d.Kind) // a newer gateway's
}

// refresh updates the caps, the slots and the state of a payer, and reports whether the slots have changed. The error is
// ErrKeyDisabled.
func (l *Ledger) refresh(a *Account, p *Payer) (slotsChanged bool, err error) {
	if err := p.Refresh(l.settings.Payer); err != nil {
		a.Key(p.Key).Disabled = true
		return false, err
	}
	return a.SetPayer(p), nil
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
		if l.holds(DateOf(l.clock()).month) {
			return nil
		}
		l.mu.Unlock()
		if err := l.loadMonth(ctx); err != nil {
			return err
		}
	}
}

// await waits for the decision on a queued request. If it fails first, the request leaves the queue, and a reservation
// made at the same moment is released.
func (l *Ledger) await(ctx context.Context, p *Payer, w *Waiter, requester Requester) (*reservation, error) {
	if requester != nil {
		over, err := requester.Wait(func() (int, bool) { return l.before(w) })
		if err != nil {
			l.cancel(w)
			return nil, fmt.Errorf("wait for other requests: %w", err)
		}
		defer over()
	}
	select {
	case <-w.decided:
	case <-l.closing:
		l.cancel(w)
		return nil, ErrClosed
	case <-ctx.Done():
		l.cancel(w)
		return nil, fmt.Errorf("wait for other requests: %w", context.Cause(ctx))
	}
	if w.Result.Kind == KeyInvalid {
		return nil, cmp.Or(p.Refresh(l.settings.Payer), ErrKeyDisabled)
	}
	if err := w.Result.Err(); err != nil {
		return nil, err
	}
	if err := l.db.WriteError(); err != nil && !w.Demand.SlotOnly {
		l.cancel(w)
		return nil, fmt.Errorf("reserve tokens: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened(l.account(p.Account), w, &w.Result), nil
}

// before returns how many requests wait for a slot in front of one; see Requester.
func (l *Ledger) before(w *Waiter) (requests int, forSlot bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account(w.Request.AccountID).Before(w)
}

// cancel removes a request from its queue, or releases what it has been granted.
func (l *Ledger) cancel(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(w.Request.AccountID)
	if !a.Cancel(w) && w.Result.Kind == Granted {
		a.Settle(&w.Result.Lease, 0, 0)
	}
	l.deliver(a)
	l.grant(a, false)
}

// grant evaluates the requests of an account that wait: with all, all of them, by the current caps, slots and states of their
// keys. If a month has begun of which the ledger does not hold the counters, they wait on until the maintenance goroutine has
// loaded them.
func (l *Ledger) grant(a *Account, all bool) {
	now := l.clock()
	if a.Waiting == 0 || l.closed || !l.holds(DateOf(now).month) {
		return
	}
	if all && l.settings.Payer != nil {
		for _, k := range a.waiting {
			_, _ = l.refresh(a, &Payer{Key: k.ID, Account: a.ID}) // it has disabled the key
		}
	}
	a.Grant(now, all)
	l.deliver(a)
}

// deliver passes on what an operation has changed.
func (l *Ledger) deliver(a *Account) {
	if a.Running+a.Waiting > 0 {
		l.active[a] = struct{}{}
	} else {
		delete(l.active, a)
	}
	for _, w := range a.Changes.Decided {
		close(w.decided)
	}
	for _, alarm := range a.Changes.Alarms {
		if l.settings.Alarm != nil {
			l.settings.Alarm(alarm)
		}
	}
	clear(a.Changes.Decided)
	a.Changes = Changes{a.Changes.Decided[:0], a.Changes.Alarms[:0]}
}

// opened returns the reservation of a request that was granted. l.mu is held.
func (l *Ledger) opened(a *Account, w *Waiter, d *Decision) *reservation {
	r := &reservation{
		Grant:  Grant{Input: d.Lease.Input, Output: d.Lease.Output, Max: d.MaxTokens, Lowered: d.MaxTokens < w.Demand.MaxTokens},
		ledger: l, request: w.Request, account: a, lease: d.Lease, admitted: time.Now(), index: len(l.open),
		rowless: w.Demand.SlotOnly,
	}
	r.request.Time = d.Time
	l.open = append(l.open, r)
	return r
}

// release replaces a reservation by the tokens used, and admits the requests for which that makes room.
func (l *Ledger) release(r *reservation, input, output int64) {
	r.account.Settle(&r.lease, input, output)
	l.deliver(r.account)
	last := l.open[len(l.open)-1]
	l.open[r.index], last.index = last, r.index
	l.open[len(l.open)-1] = nil
	l.open = l.open[:len(l.open)-1]
	l.grant(r.account, false)
}
