package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/proxy/loglikelihood"
	"basegate/validate"
)

// requester counts the prompt and the memory of a waiting request if the ledger needs it.
type requester struct {
	s *Server
	x *exchange
}

// CountPrompt implements budget.Requester. Without caps, a live request waits for a slot alone, and the upper bound will do: if a
// cap is set meanwhile that refuses the request by it, reserve counts the prompt.
func (r requester) CountPrompt(ctx context.Context) (tokens int64, each []int64, err error) {
	if r.x.caller.payer.HasCaps() || r.x.caller.line != nil {
		err = r.x.countForDecision(ctx)
	}
	return r.x.prompt.tokens, r.x.prompt.each, err
}

// countForDecision is countPrompt for a decision on caps: if no backend has a tokenizer, the upper bound becomes final.
func (x *exchange) countForDecision(ctx context.Context) error {
	switch err := x.inTurn(ctx, x.countPrompt); {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrNoTokenizer):
		x.prompt.final = true
		return nil
	default:
		return errors.Join(errUncounted, err)
	}
}

func (r requester) Wait(before func() (requests int, forSlot bool)) (over func(), err error) {
	if err := r.x.memory.Grow(admission.WaitingCost); err != nil {
		return nil, err
	}
	comment := r.s.atMostBefore(r.x)
	if before != nil {
		comment = func() string {
			if n, forSlot := before(); forSlot {
				return fmt.Sprintf("queued, %d before you", n)
			}
			return waitingForBudget()
		}
	}
	r.x.delivery.keepalive.waitingFor(comment)
	return func() {
		r.x.delivery.keepalive.waitingFor(waitingForFirstEvent)
		r.x.memory.Shrink(admission.WaitingCost)
	}, nil
}

// atMostBefore returns the comment of a request that waits in a ledger that does not know its place. The requests that wait of
// its key, and of its account if that has no slot, are known without their order, so their number is an upper bound; it only
// falls, since later ones come behind.
func (s *Server) atMostBefore(x *exchange) func() string {
	most, p := math.MaxInt, x.caller.payer
	return func() string {
		key, account := s.deps.Ledger.Stats(p)
		waiting := key.Waiting
		if waiting > 0 && p.AccountSlots > 0 && account.Running >= p.AccountSlots {
			waiting = max(waiting, account.Waiting)
		}
		if waiting > 0 {
			most = min(most, waiting-1)
			return fmt.Sprintf("queued, at most %d before you", most)
		}
		return waitingForBudget()
	}
}

// errUncounted marks a decision that failed because the prompt's tokens could not be counted.
var errUncounted = errors.New("count the prompt's tokens")

// demand returns the most that the request can cost.
func (x *exchange) demand() budget.Demand {
	r := x.request
	if x.scoring != nil && x.scoring.covered {
		return x.scoring.demand()
	}
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

// reserveAny is reserve for any request. A log-likelihood whose next tokens may not include all continuations also reserves what
// its scored prompts cost, unless a cap leaves less: then it has its results only if they do.
func (s *Server) reserveAny(x *exchange) error {
	c := x.scoring
	if c == nil || c.method == loglikelihood.Scored {
		return s.reserve(x)
	}
	c.covered = true
	err := s.reserve(x)
	if err == nil || apierr.From(err).Code != apierr.BudgetExceeded { // a line of a batch may wait
		return err
	}
	c.covered, c.refused = false, err
	return s.reserve(x)
}

// reserve reserves the most that the request can cost against all its caps, and a slot of its key and account. It waits while
// other requests stand in the way. The reservation may allow fewer tokens than requested. A line of a batch does not wait, and
// gets no fewer.
func (s *Server) reserve(x *exchange) (err error) {
	demand, request := x.demand(), x.ledgerRequest()
	if x.caller.line != nil {
		demand.MinTokens = demand.MaxTokens
		x.reservation, err = s.deps.Ledger.TryReserve(x.r.Context(), x.caller.payer, request, demand, requester{s, x})
		if err != nil {
			return x.lineBudgetErr(demand, err)
		}
		return nil
	}
	began, queued, endQueue := time.Now(), x.timings.queued, x.trace.child("queue")
	x.reservation, err = s.deps.Ledger.Reserve(x.r.Context(), x.caller.payer, request, demand, requester{s, x})
	exceeded, isExceeded := errors.AsType[*budget.Exceeded](err)
	if isExceeded {
		s.showCap(x, exceeded)
	}
	if isExceeded && !x.prompt.exact && !x.prompt.final { // the cap is new: see CountPrompt
		if err = x.countForDecision(x.r.Context()); err == nil {
			x.reservation, err = s.deps.Ledger.Reserve(x.r.Context(), x.caller.payer, request, x.demand(), requester{s, x})
		}
	}
	endQueue()
	x.timings.queued = queued + time.Since(began)
	if err != nil {
		return x.reserveErr(err)
	}
	if x.request.Truncate != 0 {
		x.prompt.tokens = x.promptTokens(x.prompt.largest, x.maxTokens())
	}
	return nil
}

func (x *exchange) ledgerRequest() budget.Request {
	r := budget.Request{
		ID: x.id, Model: x.model.ID(), Endpoint: x.r.URL.Path, Workload: x.workload(), User: x.request.User, Stream: x.request.Stream,
		Time: x.timings.arrived, Run: x.run(), Address: x.caller.address,
	}
	if d := x.caller.dialect; d != nil {
		r.ChainID = d.ChainID
	}
	if l := x.caller.line; l != nil {
		r.Batch = l.Batch
	}
	return r
}

// showCap makes the headers show the cap that has refused the request. The database may have a change of it that this gateway
// has not read yet.
func (s *Server) showCap(x *exchange, e *budget.Exceeded) {
	for _, c := range (budget.Balance{Payer: s.currentPayer(x.caller.payer)}).Caps() {
		if c.Scope == e.Scope && c.Window == e.Window && c.Meter == e.Meter && c.Limit == e.Limit {
			return
		}
	}
	if s.deps.Keys.CatchUp(x.r.Context()) == nil {
		_ = s.authenticate(x) // the refusal stands
	}
}

// tightestTotal returns the total cap with the fewest tokens left, by the caps currently configured, and false if none is set.
func (s *Server) tightestTotal(p budget.Payer) (c budget.Exceeded, ok bool) {
	if p = s.currentPayer(p); !p.HasCaps() {
		return budget.Exceeded{}, false
	}
	return s.deps.Ledger.Balance(p).TightestTotal()
}

// currentPayer returns a payer with the caps currently configured. It is zero if the payer had none, or the key may not be used.
func (s *Server) currentPayer(p budget.Payer) budget.Payer {
	if !p.HasCaps() {
		return budget.Payer{}
	}
	i, err := s.deps.Keys.Lookup(p.Key)
	if err != nil {
		return budget.Payer{}
	}
	return s.Payer(&i)
}

// exhausted returns the cap of which all tokens are used, or nil. A payer without caps costs no look at the ledger.
func (s *Server) exhausted(p budget.Payer) *budget.Exceeded {
	if !p.HasCaps() {
		return nil
	}
	return s.deps.Ledger.Balance(p).Exhausted()
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

func apiBudget(e *budget.Exceeded) apierr.Budget {
	return apierr.Budget{
		Scope: string(e.Scope), Window: e.Window.String(), Meter: e.Meter.String(),
		Limit: e.Limit, Used: e.Used, Reserved: e.Reserved, ResetsAt: e.ResetsAt,
	}
}

// ledgerRetry is when a client should retry that was refused because the ledger cannot be written.
const ledgerRetry = 2 * time.Second

// ledgerUnavailable refuses a request that could not be charged.
func ledgerUnavailable(cause error) error {
	return apierr.Overload(apierr.NoDatabase, "the ledger cannot be written at the moment", ledgerRetry, cause)
}

// Ledger reserves and charges the tokens of requests. A budget.Ledger is one on SQLite, a cluster.Ledger one that several
// gateways share on PostgreSQL.
type Ledger interface {
	// Reserve reserves the worst-case cost of a request and a slot, and waits as long as other requests stand in the way.
	Reserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error)

	// TryReserve is Reserve without waiting: it returns budget.ErrReserved instead.
	TryReserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error)

	// Balance returns the counters of a payer as they are known, with the caps that it has in p.
	Balance(p budget.Payer) budget.Balance

	// ReadBalance returns what Reserve would decide on, or an error with what is known of that.
	ReadBalance(ctx context.Context, p budget.Payer) (budget.Balance, error)

	// Recent returns what is known of the counters of a payer, at most about a second old, also if its key may not be used.
	Recent(ctx context.Context, p budget.Payer) budget.Balance

	// Stats returns the live requests of a payer's key and of all keys of its account, as they are known.
	Stats(p budget.Payer) (key, account budget.Stats)
}
