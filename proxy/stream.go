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

// stream brings a stream of events to the client, each as soon as it is whole. Until the first has come nothing is
// out, and another attempt may follow; from then on the stream ends with [DONE] or with one error event.
func (s *Server) stream(x *exchange, a *answer) (breaker.Verdict, error) {
	if kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return s.failedAttempt(x, a.lease, a.notStream(x)), nil
	}
	a.events = newEvents(a.Body)
	defer a.events.release()
	a.transcript = newTranscript(x.request.Choices(), x.request.IncludeUsage)
	end, err := s.follow(x, a)
	switch {
	case err != nil:
		return breaker.Verdict{}, err
	case !x.streaming:
		return s.failedAttempt(x, a.lease, a.transcript.early(end)), nil
	case end == endDone:
		return breaker.Verdict{}, s.endStream(x, a)
	default:
		return breaker.Verdict{}, s.breakStream(x, a, a.transcript.verdict)
	}
}

// follow passes events on until the backend's stream has come to an end.
func (s *Server) follow(x *exchange, a *answer) (ending, error) {
	for {
		out, end := a.next(x)
		if len(out) > 0 {
			if err := s.pass(x, a, out); err != nil {
				return end, err
			}
		}
		if end != endNone {
			return end, nil
		}
		a.watchdog.Reset(x.settings.IdleTimeout)
	}
}

// pass sends events on, behind the status where they are the first.
func (s *Server) pass(x *exchange, a *answer, out []byte) error {
	if !x.streaming {
		if err := s.beginStream(x, a); err != nil {
			return err
		}
	}
	x.reservation.Progress(a.transcript.tokens)
	return x.send(out)
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
func (t *transcript) early(end ending) breaker.Verdict {
	if end == endDone { // a usage event alone
		t.fail(breaker.Verdict{Class: breaker.Garbled, Status: http.StatusOK, Cause: errNoFinish})
	}
	return t.verdict
}

// notStream judges a plain answer where a stream was asked for: an error, as some versions send it under 200.
func (a *answer) notStream(x *exchange) breaker.Verdict {
	v := a.refusal(x)
	if v.Class == breaker.ServerError && v.Message == "" {
		return breaker.Verdict{Class: breaker.Garbled, Status: http.StatusOK, Cause: errNotEvent}
	}
	return v
}

// beginStream sends the status, once the request is on disk. The breaker learns of the success here, at the first event,
// and not at the end: what is reported after its state has changed is dropped.
func (s *Server) beginStream(x *exchange, a *answer) error {
	x.upstream = time.Since(x.sent)
	x.firstToken = time.Since(x.arrived)
	s.succeededAttempt(x, a.lease)
	if err := x.reservation.Wait(x.r.Context()); err != nil {
		if x.over() {
			return x.ending()
		}
		return ledgerFailed(err)
	}
	x.delivered = a.transcript.choices
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
func (s *Server) breakStream(x *exchange, a *answer, v breaker.Verdict) error {
	if v.Class == breaker.ClientGone {
		return x.ending()
	}
	s.failedAttempt(x, a.lease, v)
	return v.Err(x.model.ID(), x.attempts)
}
