package proxy

import (
	"bytes"
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

// errSilent is why an attempt is given up.
var errSilent = errors.New("the backend was silent for too long")

// forward makes attempts until one brings an answer, none may follow, or the client leaves. The answer is sound as far
// as can be told before any of it goes to the client, and the caller closes it.
func (s *Server) forward(x *exchange) (*answer, error) {
	var tried []fleet.FailedAttempt
	var last breaker.Outcome
	for x.attempts < x.settings.Attempts {
		lease, err := x.model.Acquire(tried)
		if err != nil {
			if x.attempts == 0 {
				return nil, x.unservable(err)
			}
			break
		}
		x.attempts++
		if err := x.pause(lease, tried); err != nil {
			lease.Release()
			return nil, err
		}
		a, failed := s.attempt(x, lease)
		if a != nil {
			return a, nil
		}
		last = failed
		if last.Class == breaker.ClientGone {
			return nil, x.ending()
		}
		if last.Class.Retry() == breaker.RetryNever {
			break
		}
		tried = append(tried, fleet.FailedAttempt{Backend: lease.Backend, RetrySame: last.Class.Retry() == breaker.RetryAnywhere})
	}
	return nil, last.Err(x.model.ID(), x.attempts)
}

// pause waits before a backend is tried again: a random time up to a bound that doubles, so that those who failed
// together do not come back together.
func (x *exchange) pause(lease *fleet.Lease, tried []fleet.FailedAttempt) error {
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

// attempt has one backend answer. There is an answer, or the verdict says why not; nothing has gone to the client.
func (s *Server) attempt(x *exchange, lease *fleet.Lease) (*answer, breaker.Outcome) {
	a := &answer{lease: lease}
	a.ctx, a.cancel = context.WithCancelCause(x.r.Context())
	a.watchdog = time.AfterFunc(x.settings.FirstByteTimeout, func() { a.cancel(errSilent) })
	sound := false
	defer func() {
		if !sound {
			a.close()
		}
	}()
	x.backend = lease.Backend
	x.sent, x.asked = time.Now(), true
	x.reservation.SetBackend(lease.Name)
	v := s.ask(x, a)
	if v.Class != breaker.Success {
		return nil, s.failedAttempt(x, lease, v)
	}
	s.succeededAttempt(x, lease)
	sound = true
	return a, v
}

// ask sends the request, and takes of the answer what has to be known before any of it may go to the client: of a
// stream its first events, of a plain answer all.
func (s *Server) ask(x *exchange, a *answer) breaker.Outcome {
	edits := validate.Edits{Model: x.model.Checkpoint(), BestOf: bestOf(x.request, a.lease.Backend), TokenIDs: x.guest != nil}
	if x.reservation.Clamped() {
		edits.MaxTokens = x.reservation.MaxTokens()
	}
	a.bestOf = edits.BestOf
	var err error
	a.Response, err = s.roundTrip(a.ctx, x, a.lease.Backend, x.request.Upstream(edits)) //nolint:bodyclose // by close
	switch {
	case err != nil:
		return noAnswer(a.ctx, x, err)
	case a.StatusCode != http.StatusOK:
		return a.refusal(x)
	case x.request.Stream:
		return a.begin(x)
	default:
		return a.whole(x)
	}
}

// answer is a backend's answer on its way to the client.
type answer struct {
	*http.Response // nil while there is none

	lease    *fleet.Lease
	ctx      context.Context //nolint:containedctx // of the attempt; its cause says why it ended
	cancel   context.CancelCauseFunc
	watchdog *time.Timer // gives the attempt up when it fires
	bestOf   validate.BestOf

	// Of a stream:
	events     *events
	transcript *transcript
	first      []byte // what goes to the client first
	firstEnd   ending // behind that

	// Of a plain answer:
	buffer *bytes.Buffer // the whole body
	cost   usage
}

// close ends the attempt.
func (a *answer) close() {
	if a.events != nil {
		a.events.release()
	}
	if a.buffer != nil {
		releaseBuffer(a.buffer)
	}
	if a.Response != nil {
		a.Body.Close()
	}
	a.watchdog.Stop()
	a.cancel(nil)
	a.lease.Release()
}

func (s *Server) roundTrip(ctx context.Context, x *exchange, b *fleet.Backend, body validate.Body) (*http.Response, error) {
	req := &http.Request{
		Method: http.MethodPost, URL: b.CompletionsURL(), Host: b.CompletionsURL().Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.upstreamHeader(b), Body: io.NopCloser(body.Reader()), ContentLength: body.Size(),
	}
	answer, err := s.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, err //nolint:wrapcheck // classified by noAnswer
	}
	answer.Request = nil // a stream that is held would hold it too
	return answer, nil
}

// noAnswer classifies an attempt that no answer came from.
func noAnswer(ctx context.Context, x *exchange, err error) breaker.Outcome {
	var op *net.OpError
	switch {
	case x.over():
		return breaker.Outcome{Class: breaker.ClientGone}
	case errors.Is(context.Cause(ctx), errSilent):
		return breaker.Outcome{Class: breaker.TimedOut, Cause: errSilent}
	case errors.As(err, &op) && op.Op == "dial":
		return breaker.Outcome{Class: breaker.Refused, Cause: err}
	default:
		return breaker.Outcome{Class: breaker.Reset, Cause: err}
	}
}

// broken classifies an answer whose body could not be read to its end.
func (a *answer) broken(x *exchange, err error) breaker.Outcome {
	switch {
	case x.over():
		return breaker.Outcome{Class: breaker.ClientGone}
	case errors.Is(context.Cause(a.ctx), errSilent):
		return breaker.Outcome{Class: breaker.TimedOut, Cause: errSilent}
	default:
		return breaker.Outcome{Class: breaker.Truncated, Status: a.StatusCode, Cause: err}
	}
}

// refusal classifies an answer of any status but 200.
func (a *answer) refusal(x *exchange) breaker.Outcome {
	body, err := io.ReadAll(io.LimitReader(a.Body, errorBody)) //nolint:forbidigo // bounded
	if err != nil {
		return a.broken(x, err)
	}
	return breaker.Classify(a.StatusCode, body)
}
