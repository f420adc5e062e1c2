package proxy

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"basegate/breaker"
	"basegate/proxy/stream"
)

// lastEvent ends a stream that is complete.
const lastEvent = "data: [DONE]\n\n"

var (
	errNotStream = errors.New("the backend sent a plain response in place of a stream")
	errNoContent = errors.New("the stream ended before its first event")
)

// eventStream is a backend's stream of events.
type eventStream struct {
	reader  *stream.Reader
	state   *stream.State
	first   []byte          // the events received before the stream is relayed
	status  stream.Status   // after them
	failure breaker.Outcome // why the status is Failed
	relayed bool            // the client receives it, so its state is kept for the charge
}

func (e *eventStream) release() {
	e.reader.Release()
	if !e.relayed {
		e.state.Release()
	}
}

// receiveFirstEvent waits for the first event of a stream. Until it has arrived, another attempt may follow.
func (p *response) receiveFirstEvent(x *exchange) breaker.Outcome {
	if kind, _, err := mime.ParseMediaType(p.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return p.notStream(x)
	}
	limits := stream.Limits{Choices: x.request.Choices(), EventBytes: int(x.settings.MaxAnswerBytes), Memory: &x.memory}
	p.stream = &eventStream{
		reader: stream.NewReader(p.Body, limits),
		state:  stream.NewState(limits, x.request.IncludeUsage, x.charge.echoed),
	}
	e := p.stream
	for {
		e.first, e.status = p.nextEvents(x)
		switch {
		case len(e.first) > 0:
			x.timings.upstream, x.timings.firstToken = time.Since(x.timings.sent), time.Since(x.timings.arrived)
			return breaker.Outcome{}
		case e.status == stream.Failed:
			return e.failure
		case e.status == stream.Complete: // a usage event alone
			return breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNoContent}
		}
		p.watchdog.noProgress() // it has first_byte_timeout for the first event, whatever it sends before
		p.watchdog.resume()
	}
}

// notStream classifies a plain response to a request that streams: an error that some versions send with status 200.
func (p *response) notStream(x *exchange) breaker.Outcome {
	outcome := p.classifyError(x)
	if outcome.Class == breaker.ServerError && outcome.Message == "" {
		return breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNotStream}
	}
	return outcome
}

// nextEvents waits for events and returns those to pass on.
func (p *response) nextEvents(x *exchange) ([]byte, stream.Status) {
	e := p.stream
	batch, err := e.reader.Next()
	p.watchdog.stop()
	p.arrived()
	var events []byte
	var status stream.Status
	switch {
	case err == nil:
		events, status = e.state.Add(batch)
	case errors.Is(err, io.EOF), errors.Is(err, stream.ErrMidEvent):
		status = e.state.End()
	default:
		outcome := p.failure(x, err)
		if outcome.Class == breaker.Truncated && e.state.End() == stream.Complete {
			return nil, stream.Complete // everything asked for has arrived
		}
		e.failure = outcome
		return nil, stream.Failed
	}
	if status == stream.Failed {
		e.failure = classifyStream(e.state.Failure())
	}
	return events, status
}

// streamClasses are the classes of the failures of a stream; an error event is classified by its content.
var streamClasses = map[stream.FailureKind]breaker.Class{
	stream.Aborted:   breaker.Aborted,
	stream.Malformed: breaker.Malformed,
	stream.Truncated: breaker.Truncated,
	stream.NoMemory:  breaker.LocalFault,
}

func classifyStream(f stream.Failure) breaker.Outcome {
	if f.Kind == stream.ErrorEvent {
		return breaker.Classify(http.StatusOK, f.Payload)
	}
	o := breaker.Outcome{Class: streamClasses[f.Kind], Status: http.StatusOK, Cause: f.Err}
	if o.Class == breaker.Truncated {
		o.Doubt = breaker.Broken
	}
	return o
}

// relayStream relays events to the client, each as soon as it is whole. The stream ends with [DONE] or with one error
// event. Thousands of streams wait in this function, so its stack is kept small.
func (s *Server) relayStream(x *exchange, p *response) error {
	if err := s.beginStream(x, p); err != nil {
		return err
	}
	defer x.beginStreamSpan()()
	events, status := p.stream.first, p.stream.status
	p.stream.first = nil // its buffer must not be held while the stream waits
	for received := int64(0); ; events, status = p.nextEvents(x) {
		if n := p.stream.state.DataEvents(); n > received {
			received = n
			p.watchdog.progress(x.settings.IdleTimeout)
		} else {
			p.watchdog.noProgress() // comments alone: the backend may do nothing but keep the connection open
		}
		if len(events) > 0 {
			x.reservation.SetProgress(p.stream.state.Tokens())
			if x.receipt != nil {
				x.receipt.addEvents(events)
			}
			if x.replay != nil {
				x.replay.collect(x, events)
			}
			if err := x.send(events); err != nil {
				return err
			}
		}
		switch status {
		case stream.Open:
			p.watchdog.resume()
		case stream.Complete:
			return s.completeStream(x, p)
		case stream.Failed:
			return s.breakStream(x, p)
		}
	}
}

// beginStream sends status and header, unless the ledger cannot be written at the moment.
func (s *Server) beginStream(x *exchange, p *response) error {
	if err := x.reservation.WriteError(); err != nil {
		return ledgerUnavailable(err)
	}
	late := s.lateHeaders(x, nil)
	x.charge.stream, p.stream.relayed = p.stream.state, true
	if x.delivery.streaming { // since beginKeepalive
		err := x.send(late)
		x.delivery.keepalive.resume(waitingForNextEvent)
		return err
	}
	s.setHeaders(x, "")
	x.sendStreamHead(p.Header.Get("Content-Type"))
	return nil
}

func (x *exchange) sendStreamHead(contentType string) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // or nginx would buffer the events
	x.delivery.status, x.delivery.streaming = http.StatusOK, true
	x.w.WriteHeader(http.StatusOK)
}

// completeStream reports success to the breaker, sends [DONE] after the charge is on disk, and reads the backend's response
// to its end so that the connection can be reused.
func (s *Server) completeStream(x *exchange, p *response) error {
	p.lease.Report(breaker.Success, false)
	x.charge.reports = parseReported(p.stream.state.Details())
	if x.trace.sampled() || x.receipt != nil || x.replay != nil {
		x.charge.reasons = p.stream.state.FinishReasons()
	}
	usage := s.chargeable(x, p.stream.state.Usage(int(x.request.N)))
	p.recordUsage(x, usage)
	if x.receipt != nil {
		if err := x.seal(usage, x.charge.reasons); err != nil {
			return err
		}
	}
	err := x.settleAndKeep(p, usage, p.Header.Get("Content-Type"), x.replay.collected(), x.charge.reasons, s.deps.Log)
	if err != nil {
		return err
	}
	if err := x.endStream(); err != nil {
		return err
	}
	p.watchdog.progress(reuseGrace)
	p.watchdog.resume()
	io.Copy(io.Discard, io.LimitReader(p.Body, maxErrorBody)) //nolint:errcheck // the client has its response
	return nil
}

// endStream sends the receipt, if there is one, and [DONE].
func (x *exchange) endStream() error {
	proof, err := x.streamReceipt()
	if err != nil {
		return err
	}
	x.delivery.keepalive.stop()
	if err := x.send(append(proof, lastEvent...)); err != nil {
		return err
	}
	x.delivery.complete = true
	return nil
}

// reuseGrace is how long a backend has to end its stream after [DONE] for the connection to be reused.
const reuseGrace = 100 * time.Millisecond

// breakStream reports the failure of a stream after its first event, and returns the error, which fail sends as the error event.
func (s *Server) breakStream(x *exchange, p *response) error {
	outcome := s.judge(x, p, p.stream.failure)
	if outcome.Class == breaker.ClientGone {
		return x.cancelErr()
	}
	s.report(x, p.lease, outcome)
	if x.cancelled() {
		return x.cancelErr()
	}
	return s.attemptErr(x, outcome)
}
