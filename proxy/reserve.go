package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// checkBudget refuses a request of a key or an account with an exhausted cap, before it waits in the queue.
func (s *Server) checkBudget(x *exchange) error {
	if e := s.ledger.Exhausted(x.caller.payer); e != nil {
		return x.budgetExceeded(e)
	}
	return nil
}

// requester counts the prompt and the memory of a waiting request if the ledger needs it.
type requester struct {
	s *Server
	x *exchange
}

// CountPrompt implements budget.Requester.
func (r requester) CountPrompt(ctx context.Context) (int64, []int64, error) {
	release, err := r.s.acquireCount(ctx, r.x)
	if err != nil {
		return 0, nil, err
	}
	defer release()
	if err := r.x.countForDecision(ctx); err != nil {
		return 0, nil, errors.Join(errUncounted, err)
	}
	return r.x.prompt.tokens, r.x.prompt.each, nil
}

// countForDecision is countPrompt for a decision on caps: if no backend has a tokenizer, the upper bound becomes final.
func (x *exchange) countForDecision(ctx context.Context) error {
	err := x.countPrompt(ctx)
	if errors.Is(err, fleet.ErrNoTokenizer) {
		x.prompt.final = true
		return nil
	}
	return err
}

// ReserveMemory implements budget.Requester.
func (r requester) ReserveMemory() (release func(), err error) {
	if err := r.x.memory.Grow(admission.WaitingCost); err != nil {
		return nil, err
	}
	return func() { r.x.memory.Shrink(admission.WaitingCost) }, nil
}

// errUncounted marks a reservation that failed because the prompt's tokens could not be counted.
var errUncounted = errors.New("count the prompt's tokens")

// demand returns the most that the request can cost.
func (x *exchange) demand() budget.Demand {
	r := x.request
	d := budget.Demand{
		PromptTokens: x.prompt.tokens, Exact: x.prompt.exact, Candidates: int64(r.Prompts) * r.Candidates(),
		MaxTokens: r.MaxTokens, MinTokens: r.MinTokens,
	}
	if r.Truncate != validate.TruncateToFit {
		return d
	}
	if x.prompt.largest > 0 {
		d.Prompts, d.Context = x.prompt.each, x.prompt.largest
	}
	if lengthLimitsOf(x.model, r).scored > 0 {
		d.MinTokens = r.MaxTokens // a lower max_tokens would score a longer prompt than checkLength has allowed
	}
	return d
}

// reserve reserves the most that the request can cost against all its caps, and waits while reservations of other requests
// stand in the way. The reservation may allow fewer tokens than requested.
func (s *Server) reserve(x *exchange) (err error) {
	r := x.request
	began := time.Now()
	if s.slots == nil {
		x.delivery.keepalive.waitingFor(waitingForBudget)
	} else {
		x.slot.Release()
		x.delivery.keepalive.waitingFor(s.clusterComment(x))
	}
	x.reservation, err = s.ledger.Reserve(x.r.Context(), x.caller.payer, budget.Request{
		ID: x.id, Model: x.model.ID(), Endpoint: x.r.URL.Path, Workload: x.workload(), User: r.User, Stream: r.Stream, Time: x.timings.arrived,
		ChainID: x.chainID(),
	}, x.demand(), requester{s, x})
	x.timings.queued += time.Since(began)
	if err == nil && s.slots != nil {
		err = s.countRunning(x)
	}
	if err == nil {
		if r.Truncate != 0 {
			x.prompt.tokens = x.promptTokens(x.prompt.largest, x.maxTokens())
		}
		return nil
	}
	if exceeded, ok := errors.AsType[*budget.Exceeded](err); ok && s.slots != nil {
		s.showCap(x, exceeded)
	}
	return x.reserveErr(err)
}

// showCap makes the headers show the cap that has refused the request. The database may have a change of it that this gateway
// has not read yet.
func (s *Server) showCap(x *exchange, e *budget.Exceeded) {
	for _, c := range s.ledger.Standings(x.caller.payer) {
		if c.Scope == e.Scope && c.Window == e.Window && c.Meter == e.Meter && c.Limit == e.Limit {
			return
		}
	}
	if s.keys.CatchUp(x.r.Context()) == nil {
		_ = s.authenticate(x) // the refusal stands
	}
}

// reserveErr converts an error of the ledger to the API error for the client.
func (x *exchange) reserveErr(err error) error {
	exceeded, isExceeded := errors.AsType[*budget.Exceeded](err)
	switch {
	case isExceeded:
		return x.budgetExceeded(exceeded)
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(err, admission.ErrFull):
		return bufferFull(err)
	case errors.Is(err, budget.ErrKeyDisabled):
		x.caller.payer = budget.Payer{} // the response must not show the budget of a key that no longer works
		return apierr.BadKey(err)
	case errors.Is(err, errUncounted):
		return x.uncountable(err)
	case errors.Is(err, database.ErrUnavailable), errors.Is(err, budget.ErrClosed), errors.Is(err, database.ErrClosed):
		return ledgerUnavailable(err)
	default:
		return fmt.Errorf("reserve: %w", err)
	}
}

func (x *exchange) budgetExceeded(e *budget.Exceeded) error {
	b := apiBudget(e)
	if x.prompt.final {
		b.PromptBound = x.prompt.tokens
	}
	return apierr.BudgetSpent(b)
}

// freeTextExceeded returns the error of text for the tokenizer beyond an exhausted budget.
func freeTextExceeded(e *budget.Exceeded) error {
	b := apiBudget(e)
	b.FreeText = freeText
	return apierr.BudgetSpent(b)
}

func apiBudget(e *budget.Exceeded) apierr.Budget {
	return apierr.Budget{
		Scope: string(e.Scope), Window: string(e.Window), Meter: string(e.Meter),
		Limit: e.Limit, Used: e.Used, Reserved: e.Reserved, ResetsAt: e.ResetsAt,
	}
}

// ledgerRetry is when a client should retry that was refused because the ledger cannot be written.
const ledgerRetry = 2 * time.Second

// ledgerUnavailable refuses a request that could not be charged.
func ledgerUnavailable(cause error) error {
	return apierr.Overload(apierr.NoDatabase, "the ledger cannot be written at the moment", ledgerRetry, cause)
}
