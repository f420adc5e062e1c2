package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/validate"
)

const (
	// backoffBase doubles with every attempt at the same backend, up to backoffMost.
	backoffBase = 100 * time.Millisecond
	backoffMost = time.Second
	// errorBody is how much of an error's body is read, in bytes.
	errorBody = 1 << 20
)

var (
	// errSilent is why an attempt is given up.
	errSilent     = errors.New("the backend was silent for too long")
	errUnreadable = errors.New("what the backend sent is not HTTP")
)

// forward makes attempts until one brings an answer, none may follow, or the client leaves. Nothing has gone to the
// client before an attempt succeeds.
func (s *Server) forward(x *exchange) error {
	var tried []fleet.Try
	var last breaker.Verdict
	for x.attempts < x.settings.Attempts {
		lease, err := x.model.Acquire(tried)
		if err != nil {
			if x.attempts == 0 {
				return x.unservable(err)
			}
			break
		}
		x.attempts++
		if err := x.pause(lease, tried); err != nil {
			lease.Release()
			return err
		}
		last, err = s.attempt(x, lease)
		if err != nil || last.Class == breaker.Success {
			return err
		}
		if last.Class == breaker.ClientGone {
			return x.ending()
		}
		if last.Class.Retry() == breaker.RetryNever {
			break
		}
		tried = append(tried, fleet.Try{Backend: lease.Backend, Again: last.Class.Retry() == breaker.RetryAnywhere})
	}
	return last.Err(x.model.ID(), x.attempts)
}

// pause waits before a backend is tried again: a random time up to a bound that doubles, so that those who failed
// together do not come back together.
func (x *exchange) pause(lease *fleet.Lease, tried []fleet.Try) error {
	bound := backoffBase / 2
	for _, t := range tried {
		if t.Backend == lease.Backend {
			bound = min(2*bound, backoffMost)
		}
	}
	if bound < backoffBase {
		return nil // not tried yet
	}
	timer := time.NewTimer(rand.N(bound)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-x.r.Context().Done():
		return x.ending()
	}
}

// attempt sends the request to one backend and, where an answer begins, delivers it. A Verdict other than Success
// means that nothing has gone to the client; an error that something may have.
func (s *Server) attempt(x *exchange, lease *fleet.Lease) (breaker.Verdict, error) {
	defer lease.Release()
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	watchdog := time.AfterFunc(x.settings.FirstByteTimeout, func() { cancel(errSilent) })
	defer watchdog.Stop()
	a, failed := s.ask(ctx, x, lease)
	if a == nil {
		return s.failedAttempt(x, lease, failed), nil
	}
	defer a.Body.Close()
	a.watchdog = watchdog
	if x.request.Stream {
		return s.stream(x, a)
	}
	return s.plain(x, a)
}

// ask sends the request and waits for the head of an answer that can be delivered; nil and why where there is none.
func (s *Server) ask(ctx context.Context, x *exchange, lease *fleet.Lease) (*answer, breaker.Verdict) {
	x.backend = lease.Backend
	x.sent, x.asked = time.Now(), true
	x.reservation.Attempt(lease.Name)
	edits := validate.Edits{Model: x.model.Checkpoint(), BestOf: bestOf(x.request, lease.Backend), TokenIDs: x.guest != nil}
	if x.reservation.Clamped() {
		edits.MaxTokens = x.reservation.MaxTokens()
	}
	response, err := s.roundTrip(ctx, x, lease.Backend, x.request.Upstream(edits))
	if err != nil {
		return nil, noAnswer(ctx, x, err)
	}
	a := &answer{Response: response, ctx: ctx, lease: lease, bestOf: edits.BestOf}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, a.refusal(x)
	}
	return a, breaker.Verdict{}
}

// answer is a backend's answer whose body is still to be read.
type answer struct {
	*http.Response
	ctx      context.Context //nolint:containedctx // of the attempt; its cause says why it ended
	lease    *fleet.Lease
	watchdog *time.Timer // gives the attempt up when it fires
	bestOf   validate.BestOf

	events     *events     // of a stream
	transcript *transcript // of a stream
}

func (s *Server) roundTrip(ctx context.Context, x *exchange, b *fleet.Backend, body validate.Body) (*http.Response, error) {
	req := &http.Request{
		Method: http.MethodPost, URL: b.Completions(), Host: b.Completions().Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.upstreamHeader(b), Body: io.NopCloser(body.Reader()), ContentLength: body.Size(),
	}
	return s.transport.RoundTrip(req.WithContext(ctx)) //nolint:wrapcheck // classified by noAnswer
}

// noAnswer classifies an attempt that no answer came from.
func noAnswer(ctx context.Context, x *exchange, err error) breaker.Verdict {
	var op *net.OpError
	switch {
	case x.over():
		return breaker.Verdict{Class: breaker.ClientGone}
	case errors.Is(context.Cause(ctx), errSilent):
		return breaker.Verdict{Class: breaker.TimedOut, Cause: errSilent}
	case errors.As(err, &op) && op.Op == "dial":
		return breaker.Verdict{Class: breaker.Refused, Cause: err}
	default:
		return breaker.Verdict{Class: breaker.Reset, Cause: unquoted(err)}
	}
}

// unquoted is what the log may hold of an error of the connection. What net/http says of an answer that it cannot
// parse quotes that answer, and a completion may be in it.
func unquoted(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, errEventTooLong} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errUnreadable
}

// broken classifies an answer whose body could not be read to its end.
func (a *answer) broken(x *exchange, err error) breaker.Verdict {
	switch {
	case x.over():
		return breaker.Verdict{Class: breaker.ClientGone}
	case errors.Is(context.Cause(a.ctx), errSilent):
		return breaker.Verdict{Class: breaker.TimedOut, Cause: errSilent}
	default:
		return breaker.Verdict{Class: breaker.Truncated, Status: a.StatusCode, Cause: unquoted(err)}
	}
}

// refusal classifies an answer of any status but 200.
func (a *answer) refusal(x *exchange) breaker.Verdict {
	body, err := io.ReadAll(io.LimitReader(a.Body, errorBody)) //nolint:forbidigo // bounded
	if err != nil {
		return a.broken(x, err)
	}
	return breaker.Answer(a.StatusCode, body)
}
