package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/zap"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// The status and the code that the log and the ledger record for a client that disconnected before its response was
// complete: nginx's status, and a code that no client ever sees.
const (
	statusClientGone             = 499
	codeClientGone   apierr.Code = "client_gone"
)

// clientGone records that the client has disconnected before its response was complete.
func (d *delivery) clientGone() { d.status, d.code = statusClientGone, codeClientGone }

// fail sends err to the client: as a response, or as the last event of a stream that has begun.
func (s *Server) fail(x *exchange, err error) error {
	if err == nil {
		return nil
	}
	d := &x.delivery
	if errors.Is(err, errClientGone) {
		d.clientGone()
		panic(http.ErrAbortHandler) // otherwise the server would end the response as if it were complete
	}
	e := apierr.From(err)
	d.code, d.failure = e.Code, e
	if e.Code == apierr.Internal {
		s.deps.Log.Error("internal error", zap.String("request_id", x.id), zap.Error(e))
	}
	timeout := x.timedOut(e)
	switch {
	case timeout != nil: // no error in this dialect
		s.sendFailure(x, http.StatusOK, timeout, e.Code)
	case d.streaming:
		s.sendErrorEvent(x, e)
	case d.status != 0:
		panic(http.ErrAbortHandler) // a plain response has begun: cutting the connection shows that it is incomplete
	default:
		x.discardBody()
		e.SetHeaders(x.w.Header())
		s.sendFailure(x, e.Status(), append(x.appendError(nil, e), '\n'), e.Code)
	}
	return nil
}

func (s *Server) sendFailure(x *exchange, status int, body []byte, code apierr.Code) {
	s.writeHeader(x, status, "application/json", len(body), code)
	if _, err := x.w.Write(body); err != nil {
		x.delivery.clientGone()
	}
}

// sendErrorEvent ends a stream with one error event and no [DONE].
func (s *Server) sendErrorEvent(x *exchange, e *apierr.Error) {
	event := append(s.lateHeaders(x, e), "data: "...)
	event = x.appendError(event, e)
	event = append(event, "\n\n"...)
	if err := x.send(event); err != nil {
		x.delivery.clientGone()
	}
}

// writeHeader sends status and header of a response of known length; code is empty on success.
func (s *Server) writeHeader(x *exchange, status int, contentType string, length int, code apierr.Code) {
	s.setHeaders(x, code)
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(length))
	x.delivery.status = status
	x.extendWriteDeadline()
	x.w.WriteHeader(status)
}

// sendBody sends a whole successful response, whose body may be in several pieces.
func (s *Server) sendBody(x *exchange, status int, contentType string, pieces ...[]byte) error {
	length := 0
	for _, p := range pieces {
		length += len(p)
	}
	s.writeHeader(x, status, contentType, length, "")
	for _, p := range pieces {
		if _, err := x.w.Write(p); err != nil {
			return errClientGone
		}
	}
	x.delivery.complete = true
	return nil
}

// send writes part of a stream and flushes it.
func (x *exchange) send(b []byte) error {
	x.delivery.keepalive.hold()
	defer x.delivery.keepalive.release()
	x.extendWriteDeadline()
	if _, err := x.w.Write(b); err != nil {
		return errClientGone
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// extendWriteDeadline limits how long a client that does not read can hold the request. It moves the deadline at most
// once a second, so that calling it for every event costs nothing. The deadline is later than the idle timeout by
// writeSlack: over HTTP/2 an expired deadline ends the stream even without a write, and the error event that reports the
// idle timeout must still be sent. The server clears the deadline before the connection's next response.
func (x *exchange) extendWriteDeadline() {
	now := time.Now()
	if now.Sub(x.delivery.deadlineSetAt) < time.Second {
		return
	}
	if http.NewResponseController(x.w).SetWriteDeadline(now.Add(x.settings.IdleTimeout+writeSlack)) == nil {
		x.delivery.deadlineSetAt = now
	}
}

// writeSlack is longer than the second in which the write deadline is not moved.
const writeSlack = 3 * time.Second

// setHeaders sets the headers of every response: backend, budget, user tag and timings. code is empty on success.
func (s *Server) setHeaders(x *exchange, code apierr.Code) {
	s.setBudgetHeaders(x)
	h := x.w.Header()
	if b := x.attempts.backend; b != nil {
		h.Set("X-Acs-Upstream-Model", x.model.Checkpoint())
		if b.GPU != "" {
			h.Set("X-Acs-Upstream-Gpu", b.GPU)
		}
	}
	if code.FromUpstream() || (code == apierr.Overloaded && x.attempts.allBusy) {
		h.Set("X-Acs-Upstream-Error-Kind", string(code))
	}
	if x.request != nil {
		setUserTag(h, x.request)
	}
	if x.replay != nil && code == "" {
		h.Set(apierr.ReplayHeader, x.replay.result)
	}
	h.Set("Server-Timing", x.timings.header())
}

// setBudgetHeaders reports the remaining tokens of the tightest total cap, and whether max_tokens was lowered.
func (s *Server) setBudgetHeaders(x *exchange) {
	h := x.w.Header()
	if c, ok := s.tightestTotal(x.caller.payer); ok {
		h.Set("X-Ratelimit-Limit-Tokens", strconv.FormatInt(c.Limit, 10))
		h.Set("X-Ratelimit-Remaining-Tokens", strconv.FormatInt(c.Remaining(), 10))
		if !c.ResetsAt.IsZero() {
			h.Set("X-Ratelimit-Reset-Tokens", max(time.Until(c.ResetsAt).Round(time.Second), time.Second).String())
		}
	}
	if x.reservation != nil && x.reservation.Clamped() {
		h.Set("X-Acs-Max-Tokens-Clamped", fmt.Sprintf("requested=%d,applied=%d,reason=budget", x.request.MaxTokens, x.reservation.MaxTokens()))
	}
}

// header returns the Server-Timing header, in milliseconds.
func (t *timings) header() string {
	header := "queue;dur=" + milliseconds(t.queued) + ", upstream;dur=" + milliseconds(t.upstream)
	if t.loading > 0 {
		header = "adapter;dur=" + milliseconds(t.loading) + ", " + header
	}
	if t.booting > 0 {
		header = "boot;dur=" + milliseconds(t.booting) + ", " + header
	}
	return header
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(inMilliseconds(d), 'f', 3, 64)
}

// forwarded are the client's headers that a backend receives.
var forwarded = []string{"Accept", "Traceparent", "Tracestate"}

// upstreamHeader returns the header for a backend. Nothing of the client's passes but forwarded. The request id is
// different for every attempt, because older versions of vLLM refuse a second request with the same one.
func (x *exchange) upstreamHeader(b *fleet.Backend) http.Header {
	h := make(http.Header, len(forwarded)+4)
	for _, name := range forwarded {
		if values := x.r.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	x.trace.inject(propagation.HeaderCarrier(h))
	h["Content-Type"] = []string{"application/json"}
	h["X-Request-Id"] = []string{x.id + "-" + string(rune('0'+x.attempts.count%10))}
	b.Authorize(h)
	return h
}

// setUserTag returns the user tag of a request to its client: as it is if it is printable ASCII and has no blank at an end,
// where a header's value would lose it; otherwise as percent-encoded UTF-8 in a header of another name.
func setUserTag(h http.Header, r *validate.Request) {
	if tag, ok := r.UserTag(); ok && strings.TrimSpace(tag) == tag {
		h.Set("X-Acs-User", tag)
	} else if r.User != "" {
		h.Set("X-Acs-User-Encoded", strings.ReplaceAll(url.QueryEscape(r.User), "+", "%20"))
	}
}
