package proxy

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"basegate/breaker"
)

// lastEvent closes a stream that is whole.
const lastEvent = "data: [DONE]\n\n"

// begin waits for the first events of a stream. Until they have come another attempt may follow.
func (a *answer) begin(x *exchange) breaker.Outcome {
	if kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return a.notStream(x)
	}
	a.events = newEvents(a.Body)
	a.transcript = newTranscript(x.request.Choices(), x.request.IncludeUsage)
	a.transcript.echoed = x.echoed
	for {
		a.first, a.firstEnd = a.next(x)
		if len(a.first) > 0 {
			x.upstream, x.firstToken = time.Since(x.sent), time.Since(x.arrived)
			return breaker.Outcome{}
		}
		if a.firstEnd != endNone {
			return a.transcript.early(a.firstEnd)
		}
		a.watchdog.Reset(x.settings.IdleTimeout)
	}
}

// stream brings a stream of events to the client, each as soon as it is whole. It ends with [DONE] or with one error
// event. Ten thousand may wait here for their next event: the less stack is in use, the less each holds.
func (s *Server) stream(x *exchange, a *answer) error {
	if err := s.beginStream(x, a); err != nil {
		return err
	}
	out, end := a.first, a.firstEnd
	a.first = nil // its buffer is not to be held while the stream waits
	for ; ; out, end = a.next(x) {
		if len(out) > 0 {
			x.reservation.SetProgress(a.transcript.tokens)
			if err := x.send(out); err != nil {
				return err
			}
		}
		switch end {
		case endNone:
			a.watchdog.Reset(x.settings.IdleTimeout)
		case endDone:
			return s.endStream(x, a)
		case endFailed:
			return s.breakStream(x, a)
		}
	}
}

// next waits for events and judges them.
func (a *answer) next(x *exchange) ([]byte, ending) {
	batch, err := a.events.batch()
	a.watchdog.Stop() // what the gateway does with it, and a client that is slow to read, is not the backend's silence
	t := a.transcript
	switch {
	case err == nil:
		return t.take(batch)
	case errors.Is(err, io.EOF), errors.Is(err, errMidEvent):
		return nil, t.atEnd()
	default:
		v := a.broken(x, err)
		if v.Class == breaker.Truncated && t.atEnd() == endDone {
			return nil, endDone // all that was asked for had come
		}
		return nil, t.fail(v)
	}
}

// early is the verdict on a stream that ended before its first event.
func (t *transcript) early(end ending) breaker.Outcome {
	if end == endDone { // a usage event alone
		t.fail(breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNoFinish})
	}
	return t.verdict
}

// notStream judges a plain answer where a stream was asked for: an error, as some versions send it under 200.
func (a *answer) notStream(x *exchange) breaker.Outcome {
	v := a.refusal(x)
	if v.Class == breaker.ServerError && v.Message == "" {
		return breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNotEvent}
	}
	return v
}

// beginStream sends the status, once the request is on disk.
func (s *Server) beginStream(x *exchange, a *answer) error {
	if err := x.reservation.Wait(x.r.Context()); err != nil {
		if x.over() {
			return x.ending()
		}
		return ledgerFailed(err)
	}
	x.transcript = a.transcript
	h := x.w.Header()
	h.Set("Content-Type", a.Header.Get("Content-Type"))
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx in front would collect events
	s.setHeaders(x, "")
	x.status = http.StatusOK
	x.streaming = true
	x.w.WriteHeader(x.status)
	return nil
}

// endStream closes a stream that is whole, once its charge is on disk, and reads the backend's answer to its end so that
// the connection can serve again.
func (s *Server) endStream(x *exchange, a *answer) error {
	cost := a.transcript.usage
	if !cost.known {
		cost = s.measure(x)
	}
	if err := x.settle(cost, x.status, ""); err != nil {
		return err
	}
	if err := x.send([]byte(lastEvent)); err != nil {
		return err
	}
	x.finished = true
	a.watchdog.Reset(drainGrace)
	io.Copy(io.Discard, io.LimitReader(a.Body, errorBody)) //nolint:errcheck // the answer is out; this is for the connection
	return nil
}

// drainGrace is how long a backend has to close a stream behind its [DONE].
const drainGrace = 100 * time.Millisecond

// breakStream ends a stream that failed under way: the breaker learns of it as a new outcome, the client by the
// error event that the error becomes.
func (s *Server) breakStream(x *exchange, a *answer) error {
	v := a.transcript.verdict
	if v.Class == breaker.ClientGone {
		return x.ending()
	}
	s.failedAttempt(x, a.lease, v)
	return v.Err(x.model.ID(), x.attempts)
}
