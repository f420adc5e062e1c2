package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	apierr "basegate/errors"
)

// measureTimeout bounds the questions to /tokenize about what vLLM never told the price of. It is less than the gateway
// takes to stop once it has cut off what was under way.
const measureTimeout = 5 * time.Second

// settle puts what the request took on the ledger and waits until that is on disk: whoever calls it before the last
// byte has never finished an answer that is not charged. The error is for the client. Of a plain answer nothing has gone
// out then, so where it cannot be written it costs nothing.
func (x *exchange) settle(cost usage, status int, code apierr.Code) error {
	end := budget.Outcome{
		Prompt: cost.prompt, Completion: cost.completion, Status: status, Code: string(code),
		Queue: x.queued, FirstToken: x.firstToken, Total: time.Since(x.arrived),
	}
	if code == "" {
		unwritten := end
		unwritten.Code = string(apierr.Overloaded)
		if !x.streaming {
			unwritten.Prompt, unwritten.Completion, unwritten.Status = 0, 0, apierr.Overloaded.Status()
		}
		end.Fallback = &unwritten
	}
	x.usage, x.settled = cost, true
	// A commit ends by itself, soon. Were it given up where the gateway stops, an answer could be charged as whole and
	// its client told that it failed.
	err := x.reservation.Settle(context.WithoutCancel(x.r.Context()), end)
	switch {
	case err == nil:
		return nil
	case x.over():
		return x.ending()
	default:
		return ledgerFailed(err)
	}
}

// closeOut settles what is still open when the last attempt is over: of a request that failed, or whose client left.
// It returns err, since the client is to be told of that and not of the ledger.
func (s *Server) closeOut(x *exchange, err error) error {
	if err == nil || x.settled {
		return err
	}
	status, code := outcomeOf(x, err)
	var cost usage
	if x.streaming || (x.asked && code == codeClientGone) {
		cost = s.measure(x)
	}
	if failed := x.settle(cost, status, code); failed != nil && !errors.Is(failed, errClientGone) {
		s.log.Warn("the end of a failed request is not on the ledger yet", zap.String("request_id", x.id), zap.Error(failed))
	}
	return err
}

// outcomeOf is what the log and the ledger say of a request that failed.
func outcomeOf(x *exchange, err error) (status int, code apierr.Code) {
	if errors.Is(err, errClientGone) {
		return statusClientGone, codeClientGone
	}
	code = apierr.From(err).Code
	if x.streaming {
		return x.status, code
	}
	return code.Status(), code
}

// measure counts what vLLM has not: the prompt, and of a stream that was cut off what had gone to the client. The slot
// is free meanwhile, as vLLM is done with the request. Where the tokenizer does not answer, the prompt's bound is
// charged, and a token for each event.
func (s *Server) measure(x *exchange) usage {
	x.slot.Release()
	x.stopCounting()
	if x.streaming {
		x.boundWrites() // the event that tells of the failure is to go out behind this
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), measureTimeout)
	defer cancel()
	if err := x.countPrompts(ctx); err != nil {
		s.log.Warn("a prompt is charged by its bytes", zap.String("request_id", x.id), zap.Error(err))
	}
	if x.transcript != nil {
		x.delivered = x.transcript.choices
	}
	cost := usage{prompt: x.prompt.tokens, known: true}
	for i := range x.delivered {
		cost.completion += x.delivered[i].least()
	}
	if cost.completion == 0 {
		return cost
	}
	completion, err := x.countDelivered(ctx)
	if err != nil {
		s.log.Warn("a stream that was cut off is charged by its events", zap.String("request_id", x.id), zap.Error(err))
		return cost
	}
	cost.completion = completion
	return cost
}
