package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	apierr "basegate/errors"
	"basegate/proxy/replay"
	"basegate/proxy/stream"
)

// settle charges the request and waits until the charge is on disk, so that no client receives the last byte of a
// response that is not charged. The error is for the client. If the charge of a plain response cannot be written, nothing
// of it has been sent, and it costs nothing.
func (x *exchange) settle(usage stream.Usage, status int, code apierr.Code) error {
	x.timings.charged = time.Since(x.timings.arrived)
	x.charge.reports = limitReported(x.charge.reports, usage.Prompt)
	outcome := budget.Outcome{
		Prompt: usage.Prompt, Completion: usage.Completion, Status: status, Code: string(code),
		Queue: x.timings.queued, FirstToken: x.timings.firstToken, Total: x.timings.charged,
		Boot: x.timings.booting, Attempts: x.attemptRecords(code), Reported: x.charge.reports,
	}
	if code == "" {
		fallback := outcome
		fallback.Code = string(apierr.Overloaded)
		if !x.delivery.streaming {
			fallback.Prompt, fallback.Completion, fallback.Status = 0, 0, apierr.Overloaded.Status()
			fallback.Reported = limitReported(fallback.Reported, 0)
		}
		outcome.Fallback = &fallback
		if x.receipt != nil {
			outcome.Receipt = x.receipt.entry.Pending()
		}
		if x.receipt != nil && x.delivery.streaming {
			outcome.Queued = func() { x.receipt.entry.AwaitRound(x.r.Context()) }
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
	endCommit := x.trace.child("commit")
	err := x.reservation.Settle(ctx, outcome)
	endCommit()
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

// settleAndKeep charges a whole response, and stores it if the request asks for that. A lower max_tokens than the client's has made
// another response of it, and so has an adapter that was added again meanwhile.
func (x *exchange) settleAndKeep(p *response, usage stream.Usage, contentType string, body []byte, reasons []string, log *zap.Logger) error {
	r := x.replay
	if r == nil || r.call == nil || x.reservation.Clamped() || r.tooMuch || adapterName(x.serving()) != adapterName(x.model) {
		return x.settle(usage, http.StatusOK, "")
	}
	defer r.leave()
	if err := x.memory.Grow(int64(len(body))); err != nil { // that is encrypted
		log.Debug("a response is not kept", zap.String("request_id", x.id), zap.Error(err))
		return x.settle(usage, http.StatusOK, "")
	}
	defer x.memory.Shrink(int64(len(body)))
	kept, err := r.call.Keep(x.r.Context(), &replay.Response{Body: body, Origin: replay.Origin{
		Server: serverOf(p.lease.Backend), RequestID: x.id, Time: time.Now().UTC(), ContentType: contentType,
		PromptTokens: usage.Prompt, CompletionTokens: usage.Completion, FinishReasons: reasons,
	}}, r.refresh, func() error { return x.settle(usage, http.StatusOK, "") })
	if kept {
		r.result = replayStored
	}
	return err
}

// settleFailure settles a request that failed or whose client disconnected. It returns err, which is the error
// for the client, and not an error of the ledger.
func (s *Server) settleFailure(x *exchange, err error) error {
	if err == nil || x.charge.settled {
		return err
	}
	status, code := x.failureOutcome(err)
	var usage stream.Usage
	if x.charge.stream != nil || (x.attempts.working && code == codeClientGone) { // also of a request that was stopped
		usage = s.chargeable(x, usage)
	}
	if failed := x.settle(usage, status, code); failed != nil && !errors.Is(failed, errClientGone) {
		s.deps.Log.Warn("the end of a failed request is not on the ledger yet", zap.String("request_id", x.id), zap.Error(failed))
	}
	return err
}

// failureOutcome returns what the log and the ledger record of a request that failed.
func (x *exchange) failureOutcome(err error) (status int, code apierr.Code) {
	if errors.Is(err, errClientGone) || errors.Is(err, errStopped) {
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
