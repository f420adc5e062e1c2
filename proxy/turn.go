package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"basegate/admission"
	"basegate/budget"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/keys"
)

// busyRetry is when a client should come back that found too much waiting, and failingRetry one that came while the
// ledger could not be written.
const (
	busyRetry    = 5 * time.Second
	failingRetry = 2 * time.Second
)

// Payer is who pays for what a key asks, and within which caps.
func Payer(i *keys.Identity) budget.Payer {
	return budget.Payer{Key: i.KeyID, Account: i.AccountID, KeyCaps: i.KeyCaps, AccountCaps: i.AccountCaps}
}

// refuseSpent refuses who has nothing left, without a place in the queue.
func (s *Server) refuseSpent(x *exchange) error {
	if e := s.ledger.Exhausted(x.payer); e != nil {
		return budgetSpent(e)
	}
	return nil
}

func budgetSpent(e *budget.Exceeded) error {
	return apierr.BudgetSpent(apierr.Budget{
		Scope: string(e.Scope), Window: string(e.Window), Meter: string(e.Meter),
		Limit: e.Limit, Used: e.Used, Reserved: e.Reserved, ResetsAt: e.ResetsAt,
	})
}

// waitForSlot waits for the request's turn among those of its key. The slot must be left, and is then in x.slot too.
// Who has waited may have been paused meanwhile, or given another budget, and is looked at again.
func (s *Server) waitForSlot(x *exchange, bytes int64) error {
	began := time.Now()
	slot, err := s.queue.Acquire(x.r.Context(), x.identity.KeyID, s.Concurrency(&x.identity), bytes)
	x.queued = time.Since(began)
	switch {
	case errors.Is(err, admission.ErrFull):
		return tooMuchWaits(err)
	case err != nil:
		return x.ending()
	}
	x.slot = slot
	if x.queued < lookAgain {
		return nil
	}
	if err := s.authenticate(x); err != nil {
		slot.Release()
		return err
	}
	return nil
}

// Concurrency is how many requests of a key may run at a time.
func (s *Server) Concurrency(i *keys.Identity) int {
	if i.Concurrency > 0 {
		return i.Concurrency
	}
	return s.settings.Load().ConcurrencyPerKey
}

func tooMuchWaits(cause error) error {
	return apierr.Overload("too much is waiting here already", busyRetry, cause)
}

// lookAgain is how long a request must have waited for its key to be looked at again.
const lookAgain = time.Second

// errUncounted marks a reservation that failed because the prompt's tokens could not be counted.
var errUncounted = errors.New("count the prompt's tokens")

// reserve takes the most that the request can cost out of its budgets, and waits where the reservations of others stand
// in the way. What fits may be less than was asked for.
func (s *Server) reserve(x *exchange, bytes int64) (err error) {
	r := x.request
	began := time.Now()
	x.reservation, err = s.ledger.Reserve(x.r.Context(), x.payer, budget.Request{
		ID: x.id, Model: x.model.ID(), Endpoint: x.r.URL.Path, Workload: x.workload(), User: r.User, Stream: r.Stream, Time: x.arrived,
	}, budget.Demand{
		PromptTokens: x.prompt.tokens, Exact: x.prompt.exact, Candidates: int64(r.Prompts) * r.Candidates(), MaxTokens: r.MaxTokens,
	}, &requester{x: x, queue: s.queue, bytes: bytes})
	x.queued += time.Since(began)
	if err == nil {
		return nil
	}
	exceeded, spent := errors.AsType[*budget.Exceeded](err)
	switch {
	case spent:
		return budgetSpent(exceeded)
	case x.over():
		return x.ending()
	case errors.Is(err, admission.ErrFull):
		return tooMuchWaits(err)
	case errors.Is(err, budget.ErrKeyDisabled):
		x.payer = budget.Payer{} // whose budget it was is no longer for this client
		return apierr.BadKey(err)
	case errors.Is(err, errUncounted):
		return x.uncounted(err)
	case errors.Is(err, database.ErrUnavailable), errors.Is(err, budget.ErrClosed), errors.Is(err, database.ErrClosed):
		return ledgerFailed(err)
	default:
		return fmt.Errorf("reserve: %w", err)
	}
}

// requester is a request in Ledger.Reserve.
type requester struct {
	x     *exchange
	queue *admission.Queue
	bytes int64 // held in memory while the request waits
}

// CountPrompt implements budget.Requester.
func (r *requester) CountPrompt(ctx context.Context) (int64, error) {
	if err := r.x.countPrompts(ctx); err != nil {
		return 0, errors.Join(errUncounted, err)
	}
	return r.x.prompt.tokens, nil
}

// ReserveMemory implements budget.Requester.
func (r *requester) ReserveMemory() (release func(), err error) {
	return r.queue.ReserveMemory(r.bytes)
}

// ledgerFailed refuses what could not be written down: nothing is served that is not charged.
func ledgerFailed(cause error) error {
	return apierr.Overload("the ledger cannot be written at the moment", failingRetry, cause)
}

// setBudgetHeaders tells the client how much its tightest total cap leaves, and whether max_tokens was lowered.
func (s *Server) setBudgetHeaders(x *exchange) {
	h := x.w.Header()
	if room, ok := s.ledger.Headroom(x.payer); ok {
		h.Set("X-Ratelimit-Limit-Tokens", strconv.FormatInt(room.Limit, 10))
		h.Set("X-Ratelimit-Remaining-Tokens", strconv.FormatInt(room.Remaining, 10))
		h.Set("X-Ratelimit-Reset-Tokens", max(time.Until(room.ResetsAt).Round(time.Second), time.Second).String())
	}
	if x.reservation != nil && x.reservation.Clamped() {
		h.Set("X-Acs-Max-Tokens-Clamped", fmt.Sprintf("requested=%d,applied=%d,reason=budget", x.request.MaxTokens, x.reservation.MaxTokens()))
	}
}
