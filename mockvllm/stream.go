package mockvllm

import (
	"cmp"
	"context"
	"errors"
	"net/http"
)

// errEndedByFault is returned when a fault has ended the stream.
var errEndedByFault = errors.New("stream ended by a fault")

// doneEvent ends every stream, also after an error.
const doneEvent = "data: [DONE]\n\n"

// startStream sends the headers. vLLM sends them before the engine has a first token or has accepted the request.
func (x *exchange) startStream() {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if x.server.spec.Rust {
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.Header().Set("Cache-Control", "no-cache")
	}
	x.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(x.w).Flush() // a disconnect is noticed at the first event
}

// sendEvent writes one event, which holds this number of tokens, in an HTTP chunk of its own. The fault may apply before it.
func (x *exchange) sendEvent(event []byte, tokens int) error {
	if f := x.fault; f != nil && !x.faultApplied && x.events >= f.AfterEvents && x.tokens >= f.AfterTokens &&
		(f.Kind != faultNoFinish || f.isMidStream()) {
		x.faultApplied = true
		if err := x.applyStreamFault(); err != nil {
			return err
		}
	}
	x.events++
	x.tokens += tokens
	return x.write(event)
}

// applyStreamFault applies the fault within the stream. It returns an error if the stream has ended.
func (x *exchange) applyStreamFault() error {
	f, s := x.fault, x.server
	switch f.Kind {
	case faultResetMid:
		x.resetConn()
	case faultCut:
		x.truncate()
	case faultSigterm, faultKilled:
		s.endProcess(f)
		return context.Cause(x.r.Context())
	case faultErrorEvent:
		event := s.spec.errorEvent(s.failureFor(f))
		if f.Body != "" {
			event = []byte("data: " + f.Body + "\n\n")
		}
		x.finish(event)
	case faultEngineDead:
		s.engine.dead.Store(true)
		x.sendFailure(s.spec.streamFailure(s.spec.DeadInStream))
	case faultOOM:
		x.sendFailure(s.spec.streamFailure(cudaOutOfMemory))
	case faultNoFinish:
		x.finish(nil)
	case faultGarbage:
		_ = x.write([]byte(cmp.Or(f.Body, "\x00\xff<html>neither JSON nor an event</html>\n\n"))) // the stream ends here anyway
	case faultHang:
		return s.hang(x)
	default:
		return nil
	}
	return errEndedByFault
}

func (x *exchange) write(data []byte) error {
	if _, err := x.w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(x.w).Flush()
}

// truncate ends the connection with an orderly close. A clean fault also ends the chunked body properly.
func (x *exchange) truncate() {
	if !x.fault.Clean { // if clean, the handler's return ends the body
		x.closeConn()
	}
}

// sendFailure ends the stream with an error event and [DONE].
func (x *exchange) sendFailure(f *failure) { x.finish(x.server.spec.errorEvent(f)) }

// finish ends the stream with a last event, if any, and [DONE]. The stream is over even if the client disconnected.
func (x *exchange) finish(last []byte) {
	_ = x.write(last)
	if x.hasFault(faultNoDone) {
		x.truncate()
		return
	}
	_ = x.write([]byte(doneEvent))
}

// completeStream responds with one event per token of each output.
func (s *Server) completeStream(x *exchange, g *generation) *failure {
	failure := s.checkInEngine(g)
	if failure != nil && s.spec.Rust {
		return failure
	}
	x.startStream()
	if failure != nil {
		x.sendFailure(failure)
		return nil
	}
	err := s.run(x, g, func() error { return x.sendStep(g) })
	switch {
	case errors.Is(err, errEndedByFault):
	case errors.Is(err, errEngineDied):
		x.sendFailure(s.spec.streamFailure(s.spec.DeadInStream))
	case err != nil:
		x.closeConn()
	case g.request.StreamOptions.IncludeUsage:
		x.finish(g.usageEvent())
	default:
		x.finish(nil)
	}
	return nil
}

// sendStep sends what each output gained in the engine's last step.
func (x *exchange) sendStep(g *generation) error {
	size := max(1, g.request.StreamInterval)
	if x.hasFault(faultMerge) {
		size = cmp.Or(x.fault.Tokens, defaultMergeTokens)
	}
	for _, seq := range g.sequences {
		gained := len(seq.output()) - seq.sentTokens
		first := seq.sentEvents == 0 && !x.hasFault(faultMerge)
		if seq.sentFinish || !seq.finished() && gained < size && !first {
			continue
		}
		if opening := g.opening(seq); opening != nil {
			if err := x.sendEvent(opening, 0); err != nil {
				return err
			}
		}
		seq.sentFinish = seq.finished()
		if g.spec.Rust && seq.finished() && seq.sentBytes < len(seq.text) { // the finish has an event of its own
			seq.hideFinish = true
			if err := x.sendEvent(g.event(seq), gained); err != nil {
				return err
			}
			gained = 0
		}
		seq.hideFinish = x.hasFault(faultNoFinish)
		if err := x.sendEvent(g.event(seq), gained); err != nil {
			return err
		}
	}
	return nil
}
