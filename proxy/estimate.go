package proxy

import (
	"errors"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/quota"
	apierr "basegate/errors"
	"basegate/fleet"
)

// estimateObject is the response to POST /v1/estimate. Counts are in tokens.
type estimateObject struct {
	Object        string     `json:"object"`
	Model         string     `json:"model"`
	PromptTokens  int64      `json:"prompt_tokens"`
	Completion    int64      `json:"max_completion_tokens"` // of all completions, as requested
	Total         int64      `json:"total_tokens"`
	Fits          bool       `json:"fits"`       // every cap leaves room for Total
	LimitedBy     *limitedBy `json:"limited_by"` // null if it fits
	MaxTokens     int64      `json:"applied_max_tokens"`
	ModelStatus   string     `json:"model_status"`
	BootEstimate  *int64     `json:"boot_estimate_seconds"` // null if the model is warm; 0 if unknown
	QueuePosition int        `json:"queue_position"`        // 0: it would have a slot at once
	Receipt       bool       `json:"receipt"`               // it would have a receipt; the estimate itself has none
}

// limitedBy is the cap that lowers max_tokens.
type limitedBy struct {
	Scope     budget.Scope `json:"scope"`
	Window    quota.Window `json:"window"`
	Meter     quota.Meter  `json:"meter"`
	Remaining int64        `json:"remaining"` // reservations do not reduce it
	ResetsAt  *time.Time   `json:"resets_at"` // null: never
}

// estimate serves POST /v1/estimate: it checks the body of a completion, a chat completion or a log-likelihood in the order of the
// contract, and sends it to no backend. A model that a completion would start is no reason to refuse.
func (s *Server) estimate(x *exchange) error {
	if err := s.readRequest(x); err != nil {
		return err
	}
	if err := s.checkBudget(x); err != nil {
		return err
	}
	if err := x.checkKnownLength(); err != nil {
		return err
	}
	if err := x.model.CheckServable(x.routing()); err != nil {
		return x.unavailable(err)
	}
	if err := x.tokenizePairs(); err != nil {
		return err
	}
	estimate, err := s.estimateCost(x)
	if err != nil {
		return err
	}
	return s.sendJSON(x, s.newEstimateObject(x, estimate))
}

// estimateCost checks the length of the prompt and evaluates the caps.
func (s *Server) estimateCost(x *exchange) (budget.Estimate, error) {
	if err := x.checkLength(); err != nil {
		return budget.Estimate{}, err
	}
	uncounted := x.countForDecision(x.r.Context())
	_, refused := errors.AsType[*fleet.RefusedError](uncounted)
	if x.cancelled() || errors.Is(uncounted, admission.ErrFull) || refused && x.isChat() { // by the template, whatever the caps
		return budget.Estimate{}, x.uncountable(uncounted)
	}
	balance, err := s.deps.Ledger.ReadBalance(x.r.Context(), x.caller.payer)
	if err != nil {
		return budget.Estimate{}, x.reserveErr(err)
	}
	switch estimate := balance.Estimate(x.demand()); {
	case estimate.LimitedBy == nil:
		return estimate, nil
	case uncounted != nil && x.model.Status() == fleet.StatusWarm: // a completion would have to count too
		return estimate, x.uncountable(uncounted)
	case uncounted == nil && estimate.Refused != nil:
		return estimate, x.budgetExceeded(estimate.Refused)
	default: // no refusal rests on the upper bound of a prompt that cannot be counted before the model has started
		return estimate, nil
	}
}

func (s *Server) newEstimateObject(x *exchange, e budget.Estimate) estimateObject {
	o := estimateObject{
		Object: "estimate", Model: x.model.ID(),
		PromptTokens: x.prompt.tokens, Completion: e.Output,
		Fits: e.LimitedBy == nil, MaxTokens: e.MaxTokens, ModelStatus: x.model.Status(), QueuePosition: s.queuePosition(x),
		Receipt: x.receipt != nil,
	}
	o.Total = o.PromptTokens + o.Completion
	if c := e.LimitedBy; c != nil {
		o.LimitedBy = &limitedBy{c.Scope, c.Window, c.Meter, c.Remaining(), OrNull(c.ResetsAt)}
	}
	if o.ModelStatus != fleet.StatusWarm {
		seconds := apierr.Seconds(x.model.BootEstimate())
		o.BootEstimate = &seconds
	}
	return o
}

// queuePosition returns the place that the request would have in the queue of its key, or in that of its account if only this
// has no slot; 0 if it would have a slot at once.
func (s *Server) queuePosition(x *exchange) int {
	p := x.caller.payer
	key, account := s.deps.Ledger.Stats(p)
	switch {
	case key.Running >= p.Slots:
		return key.Waiting + 1
	case p.AccountSlots > 0 && account.Running >= p.AccountSlots:
		return account.Waiting + 1
	default:
		return 0
	}
}
