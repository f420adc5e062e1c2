package budget

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Count counts a prompt's tokens exactly.
type Count = func(ctx context.Context) (int64, error)

// waiter is a demand on its way in.
type waiter struct {
	payer        Payer
	request      Request
	demand       Demand
	key, account *party

	decided     chan struct{} // closed when one of the next is set; nil unless it waits
	reservation *Reservation
	exceeded    *Exceeded
	err         error
}

// Reserve takes the most that a request can cost out of every cap at once. The reservation may allow fewer tokens than
// asked for. The error is *Exceeded when nothing fits what is used.
//
// Where d is not exact and the bound does not fit beside what is used and reserved, exact is asked once and the demand
// judged by its answer, so that no refusal, clamp or wait rests on the bound; its error is Reserve's. Without exact the
// bound is taken for the count.
//
// Reserve waits for as long as reservations of others stand in the way, and ctx allows; the caps by which it decides are
// those in force then. A key that may not be used any more gets ErrBarred. While the database cannot be written it admits
// nobody, with database.ErrUnavailable.
func (l *Ledger) Reserve(ctx context.Context, p Payer, r Request, d Demand, exact Count) (*Reservation, error) {
	if err := l.db.WriteError(); err != nil {
		return nil, fmt.Errorf("admit to the ledger: %w", err)
	}
	r.KeyID, r.AccountID = p.Key, p.Account
	w := &waiter{payer: p, request: r, demand: d.normal()}
	if exact == nil {
		w.demand.Exact = true
	}
	again, err := l.enter(w)
	if again {
		tokens, failed := exact(ctx)
		if failed != nil {
			return nil, fmt.Errorf("count the tokens of the prompt: %w", failed)
		}
		w.demand.PromptTokens, w.demand.Exact = tokens, true
		w.demand = w.demand.normal()
		_, err = l.enter(w)
	}
	if err == nil && w.decided != nil {
		err = l.await(ctx, w)
	}
	if err != nil {
		return nil, err
	}
	w.reservation.later = time.AfterFunc(openAfter, func() { w.reservation.open(false) })
	return w.reservation, nil
}

// enter judges who has come, and lets it in, refuses it, or has it wait. It does none of these but says again where
// that would rest on a bound.
func (l *Ledger) enter(w *waiter) (again bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, ErrClosed
	}
	if err := l.inForce(&w.payer); err != nil {
		return false, err
	}
	w.key, w.account = l.parties(&w.payer)
	if now, _ := l.now(); len(w.account.queue) > 0 && w.account.turned != now {
		l.pump(w.account)
	}
	v := judge(w, l.seat(w.key, w.account))
	if !w.demand.Exact && (!v.admitted() || v.maxTokens < w.demand.MaxTokens) {
		return true, nil
	}
	switch {
	case v.exceeded != nil:
		return false, v.exceeded
	case v.admitted():
		l.take(w, &v)
	default:
		w.decided = make(chan struct{})
		w.account.queue = append(w.account.queue, w)
		w.account.turned = v.seat.now
		w.hold(&v)
		l.waiting++
	}
	return false, nil
}

// hold makes those who come later wait behind w, as far as the same caps hold them up.
func (w *waiter) hold(v *verdict) {
	w.key.blocked = w.key.blocked || v.byKey
	w.account.blocked = w.account.blocked || v.byAccount
}

// await waits for the decision. Who leaves loses its place, and what it was given in the same moment.
func (l *Ledger) await(ctx context.Context, w *waiter) error {
	if w.demand.Hold != nil {
		release, err := w.demand.Hold()
		if err != nil {
			l.leave(w)
			return fmt.Errorf("wait for reservations to end: %w", err)
		}
		defer release()
	}
	select {
	case <-w.decided:
	case <-ctx.Done():
		l.leave(w)
		return fmt.Errorf("wait for reservations to end: %w", context.Cause(ctx))
	}
	if w.exceeded != nil {
		return w.exceeded
	}
	return w.err
}

func (l *Ledger) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(w.account.queue, w); at >= 0 {
		w.account.queue = slices.Delete(w.account.queue, at, at+1)
		l.waiting--
		w.key.blocked = false
		l.pump(w.account)
	} else if w.reservation != nil {
		l.give(w.reservation, 0, 0)
	}
}

// pump judges everybody who waits in an account, in order of arrival.
func (l *Ledger) pump(account *party) {
	account.blocked = false
	for _, w := range account.queue {
		w.key.blocked = false
	}
	account.turned, _ = l.now()
	before := len(account.queue)
	account.queue = slices.DeleteFunc(account.queue, func(w *waiter) bool {
		w.err = l.inForce(&w.payer)
		v := judge(w, l.seat(w.key, w.account))
		switch {
		case w.err != nil:
		case v.exceeded != nil:
			w.exceeded = v.exceeded
		case v.admitted():
			l.take(w, &v)
		default:
			w.hold(&v)
			return false
		}
		close(w.decided)
		return true
	})
	l.waiting -= before - len(account.queue)
}

// take reserves.
func (l *Ledger) take(w *waiter, v *verdict) {
	r := &Reservation{
		ledger: l, request: w.request, seat: v.seat, account: w.account,
		input: w.demand.PromptTokens, output: product(w.demand.Candidates, v.maxTokens),
		maxTokens: v.maxTokens, clamped: v.maxTokens < w.demand.MaxTokens,
	}
	if at := r.request.Time; at.IsZero() || momentOf(at) != v.seat.now {
		r.request.Time = v.seat.at
	}
	r.request.Time = r.request.Time.UTC()
	w.key.use(r.request.Time)
	r.prompt.Store(unknown)
	r.saved = r.latest()
	r.seat.key.reserve(r.seat.now.day, r.input, r.output)
	r.seat.account.reserve(r.seat.now.day, r.input, r.output)
	l.reserved += r.input + r.output
	r.index = len(l.open)
	l.open = append(l.open, r)
	w.reservation = r
}

// give puts what was taken in the reservation's place, and wakes whom that lets in.
func (l *Ledger) give(r *Reservation, input, output int64) {
	r.seat.key.reserve(r.seat.now.day, -r.input, -r.output)
	r.seat.account.reserve(r.seat.now.day, -r.input, -r.output)
	r.seat.key.charge(r.seat.now.day, input, output)
	r.seat.account.charge(r.seat.now.day, input, output)
	l.reserved -= r.input + r.output
	last := l.open[len(l.open)-1]
	l.open[r.index], last.index = last, r.index
	l.open[len(l.open)-1] = nil
	l.open = l.open[:len(l.open)-1]
	if len(r.account.queue) > 0 {
		l.pump(r.account)
	}
}
