package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	apierr "basegate/errors"
	"basegate/proxy/stream"
)

// settle charges the request and waits until the charge is on disk, so that no client receives the last byte of a
// response that is not charged. The error is for the client. If the charge of a plain response cannot be written, nothing
// of it has been sent, and it costs nothing.
func (x *exchange) settle(usage stream.Usage, status int, code apierr.Code) error {
	outcome := budget.Outcome{
		Prompt: usage.Prompt, Completion: usage.Completion, Status: status, Code: string(code),
		Queue: x.timings.queued, FirstToken: x.timings.firstToken, Total: time.Since(x.timings.arrived),
		Boot: x.timings.booting, Attempts: x.attemptRecords(code),
	}
	if code == "" {
		fallback := outcome
		fallback.Code = string(apierr.Overloaded)
		if !x.delivery.streaming {
			fallback.Prompt, fallback.Completion, fallback.Status = 0, 0, apierr.Overloaded.Status()
		}
		outcome.Fallback = &fallback
		if x.receipt != nil {
			outcome.Receipt = x.receipt.entry.Pending()
		}
	}
	x.charge.usage, x.charge.settled = usage, true
	if x.caller.line != nil && code == "" {
		x.caller.line.settlement = x.reservation.Prepare(outcome)
		return nil
	}
	// The commit must not be cancelled when the gateway stops: a response could be charged as complete while its client
	// receives an error.
	ctx := context.WithoutCancel(x.r.Context())
	err := x.reservation.Settle(ctx, outcome)
	if err == nil && code == "" && x.receipt != nil {
		err = x.receipt.entry.Confirm(ctx)
	}
	switch {
	case err == nil:
		return nil
	case x.cancelled():
		return x.cancelErr()
	default:
		return ledgerUnavailable(err)
	}
}

// settleFailure settles a request that failed or whose client disconnected. It returns err, which is the error
// for the client, and not an error of the ledger.
func (s *Server) settleFailure(x *exchange, err error) error {
	if err == nil || x.charge.settled {
		return err
	}
	status, code := x.failureOutcome(err)
	var usage stream.Usage
	if x.charge.stream != nil || (x.attempts.working && code == codeClientGone) {
		usage = s.chargeable(x, usage)
	}
	if failed := x.settle(usage, status, code); failed != nil && !errors.Is(failed, errClientGone) {
		s.log.Warn("the end of a failed request is not on the ledger yet", zap.String("request_id", x.id), zap.Error(failed))
	}
	return err
}

// failureOutcome returns what the log and the ledger record of a request that failed.
func (x *exchange) failureOutcome(err error) (status int, code apierr.Code) {
	if errors.Is(err, errClientGone) {
		return statusClientGone, codeClientGone
	}
	code = apierr.From(err).Code
	switch {
	case x.delivery.streaming:
		return x.delivery.status, code
	case x.timedOut(err) != nil:
		return http.StatusOK, code
	default:
		return code.Status(), code
	}
}

// chargeable returns the usage to charge: the reported one, or what the gateway counts if that is not known, and no more than was
// reserved, or a backend could make a key exceed its caps.
func (s *Server) chargeable(x *exchange, u stream.Usage) stream.Usage {
	if !u.Known {
		u = s.countUsage(x)
	}
	prompt, completion := x.reservation.Reserved()
	charged := stream.Usage{Prompt: min(u.Prompt, prompt), Completion: min(u.Completion, completion), Known: true}
	if rest := u.Prompt + u.Completion - charged.Prompt - charged.Completion; rest > 0 {
		backend := x.attempts.backend.Name
		s.metrics.unreserved.WithLabelValues(x.model.ID(), backend).Add(float64(rest))
		s.log.Warn("a request used more tokens than were reserved for it",
			zap.String("request_id", x.id), zap.String("backend", backend),
			zap.Int64("prompt_tokens", u.Prompt), zap.Int64("completion_tokens", u.Completion),
			zap.Int64("reserved_prompt_tokens", prompt), zap.Int64("reserved_completion_tokens", completion))
	}
	return charged
}

// countTimeout limits the requests to /tokenize for a usage that vLLM did not report. It is shorter than what the gateway
// takes to stop after it has cancelled the requests in flight.
const countTimeout = 5 * time.Second

// countPromptForCharge makes x.prompt exact unless it has too many prompts.
func (x *exchange) countPromptForCharge(ctx context.Context) error {
	if !x.prompt.exact && x.request.Prompts > maxCounted {
		return errTooMany
	}
	return x.countPrompt(ctx)
}

// countUsage counts a usage that vLLM did not report: the prompt, and what the client has received of a stream. The request
// keeps its slot meanwhile, so that a client cannot start more counts than it may run requests. If the tokenizer does not
// respond, or has too much to count, the prompt's upper bound is charged, and one token for each event.
func (s *Server) countUsage(x *exchange) stream.Usage {
	x.stopCounting()
	if x.delivery.streaming {
		release := x.delivery.keepalive.hold()
		x.extendWriteDeadline() // an error event is sent after this
		release()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), countTimeout)
	defer cancel()
	if err := x.countPromptForCharge(ctx); err != nil {
		s.log.Warn("a prompt is charged by its bytes", zap.String("request_id", x.id), zap.Error(err))
	}
	if x.charge.stream != nil {
		x.charge.choices = x.charge.stream.Choices()
	}
	usage := stream.Usage{Prompt: x.servedPrompt(), Known: true}
	for i := range x.charge.choices {
		usage.Completion += x.charge.choices[i].MinTokens()
	}
	if usage.Completion == 0 {
		return usage
	}
	completion, err := x.countCompletion(ctx)
	if err != nil {
		s.log.Warn("a stream that was cut off is charged by its events", zap.String("request_id", x.id), zap.Error(err))
		return usage
	}
	usage.Completion = completion
	return usage
}
