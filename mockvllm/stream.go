package mockvllm

import (
	"cmp"
	"context"
	"errors"
	"net/http"
)

// errEndedByFault is returned when a fault has ended the stream.
var errEndedByFault = errors.New("stream ended by a fault")

// eventStreamType is the Content-Type of every stream.
const eventStreamType = "text/event-stream; charset=utf-8"

// doneEvent ends every stream, also after an error.
const doneEvent = "data: [DONE]\n\n"

// eventWriter writes the events of one stream, each in an HTTP chunk of its own, and applies faults between them.
type eventWriter struct {
	exchange     *exchange
	events       int
	tokens       int
	faultApplied bool
}

// startStream sends the headers. vLLM sends them before the engine has a first token or has accepted the request.
func (x *exchange) startStream() *eventWriter {
	x.w.Header().Set("Content-Type", eventStreamType)
	if x.server.spec.Rust {
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.Header().Set("Cache-Control", "no-cache")
	}
	x.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(x.w).Flush() // a disconnect is noticed at the first event
	return &eventWriter{exchange: x}
}

// send writes one event that holds the given number of tokens.
func (w *eventWriter) send(event []byte, tokens int) error {
	if w.faultDue() {
		w.faultApplied = true
		replaced, err := w.applyFault(event)
		if err != nil {
			return err
		}
		event = replaced
	}
	w.events++
	w.tokens += tokens
	return w.write(event)
}

// faultDue reports whether the fault applies before the next event.
func (w *eventWriter) faultDue() bool {
	f := w.exchange.fault
	if f == nil || w.faultApplied || f.Kind == faultNoFinish && !f.isMidStream() {
		return false
	}
	return w.events >= f.AfterEvents && w.tokens >= f.AfterTokens
}

// applyFault applies the fault to the stream. It returns the event to write, perhaps changed, or an error if the
// stream has ended.
func (w *eventWriter) applyFault(event []byte) ([]byte, error) {
	x := w.exchange
	f, s := x.fault, x.server
	switch f.Kind {
	case faultResetMid:
		x.resetConn()
	case faultCut:
		w.truncate()
	case faultSigterm, faultKilled:
		s.endProcess(f)
		return event, context.Cause(x.r.Context())
	case faultErrorEvent:
		w.sendFailure(errorEventFailure(f))
	case faultEngineDead:
		s.engine.kill()
		w.sendFailure(s.spec.streamFailure(s.spec.DeadInStream))
	case faultOOM:
		w.sendFailure(s.spec.streamFailure(cudaOutOfMemory))
	case faultNoFinish:
		w.finish()
	case faultGarbage:
		_ = w.write([]byte(cmp.Or(f.Body, "\x00\xff<html>neither JSON nor an event</html>\n\n"))) // the stream ends here anyway
	case faultHang:
		return event, s.hang(x)
	default:
		return event, nil
	}
	return nil, errEndedByFault
}

func (w *eventWriter) write(data []byte) error {
	if _, err := w.exchange.w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(w.exchange.w).Flush()
}

// truncate ends the connection with an orderly close. A clean fault also ends the chunked body properly.
func (w *eventWriter) truncate() {
	if !w.exchange.fault.Clean { // if clean, the handler's return ends the body
		w.exchange.closeConn()
	}
}

// sendFailure ends the stream with an error event and [DONE].
func (w *eventWriter) sendFailure(f *failure) {
	event := w.exchange.server.spec.errorEvent(f)
	if w.exchange.hasFault(faultErrorEvent) && w.exchange.fault.Body != "" {
		event = []byte("data: " + w.exchange.fault.Body + "\n\n")
	}
	_ = w.write(event) // the stream is over even if the client disconnected
	w.finish()
}

// finish ends the stream with [DONE].
func (w *eventWriter) finish() {
	if w.exchange.hasFault(faultNoDone) {
		w.truncate()
		return
	}
	_ = w.write([]byte(doneEvent)) // the stream is over even if the client disconnected
}

// completeStream responds with one event per token of each output.
func (s *Server) completeStream(x *exchange, j *job) {
	failure := s.checkInEngine(j)
	if failure != nil && s.spec.Rust {
		x.writeFailure(failure)
		return
	}
	w := x.startStream()
	if failure != nil {
		w.sendFailure(failure)
		return
	}
	g, e := newGeneration(s.model, j), s.encoder(j)
	err := s.run(x, g, func() error { return s.sendStep(w, g, e) })
	if err == nil && j.request.StreamOptions.IncludeUsage {
		err = w.write(e.usageEvent(g))
	}
	switch {
	case errors.Is(err, errEndedByFault):
	case errors.Is(err, errEngineDied):
		w.sendFailure(s.spec.streamFailure(s.spec.DeadInStream))
	case err != nil:
		x.closeConn()
	default:
		w.finish()
	}
}

// sendStep sends what each output gained in the engine's last step.
func (s *Server) sendStep(w *eventWriter, g *generation, e *responseEncoder) error {
	size := max(1, g.job.request.StreamInterval)
	if w.exchange.hasFault(faultMerge) {
		size = cmp.Or(w.exchange.fault.Tokens, defaultMergeTokens)
	}
	for _, seq := range g.sequences {
		gained := len(seq.output()) - seq.sentTokens
		first := seq.sentEvents == 0 && !w.exchange.hasFault(faultMerge)
		if seq.sentFinish || !seq.finished() && gained < size && !first {
			continue
		}
		if opening := e.opening(g, seq); opening != nil {
			if err := w.send(opening, 0); err != nil {
				return err
			}
		}
		seq.sentFinish = seq.finished()
		if s.spec.Rust && seq.finished() && seq.sentBytes < len(seq.text) { // the finish has an event of its own
			seq.hideFinish = true
			if err := w.send(e.event(g, seq), gained); err != nil {
				return err
			}
			gained = 0
		}
		seq.hideFinish = w.exchange.hasFault(faultNoFinish)
		if err := w.send(e.event(g, seq), gained); err != nil {
			return err
		}
	}
	return nil
}

// errorEventFailure is the error of an error_event fault.
func errorEventFailure(f *Fault) *failure {
	failure := internalError(cmp.Or(f.Message, "Internal server error"))
	failure.status = cmp.Or(f.Status, failure.status)
	return failure
}
