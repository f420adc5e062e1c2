package mockvllm

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
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
	bytes        int
	faultApplied bool
	buffered     []byte // burst: written at the end

	mu    sync.Mutex  // between events and comments
	quiet *time.Timer // nil without an interval of comments
}

// startStream sends the headers. vLLM sends them before the engine has a first token or has accepted the request.
func (x *exchange) startStream() *eventWriter {
	x.w.Header().Set("Content-Type", eventStreamType)
	if x.server.spec.rust {
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.Header().Set("Cache-Control", "no-cache")
	}
	x.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(x.w).Flush() // a disconnect is noticed at the first event
	w := &eventWriter{exchange: x}
	if interval := x.server.options.KeepAliveInterval; interval > 0 {
		w.mu.Lock() // the first comment may be due before quiet is set
		w.quiet = time.AfterFunc(interval, w.writeComment)
		w.mu.Unlock()
		x.silence = w.silence
	}
	return w
}

// writeComment keeps a silent stream alive, and does so again until it is silenced.
func (w *eventWriter) writeComment() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet == nil {
		return
	}
	_, _ = w.exchange.w.Write([]byte(": keep-alive\n\n")) // a disconnect is noticed at the next event
	_ = http.NewResponseController(w.exchange.w).Flush()  // as above
	w.quiet.Reset(w.exchange.server.options.KeepAliveInterval)
}

// silence ends the comments. None is being written when it returns.
func (w *eventWriter) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet != nil {
		w.quiet.Stop()
		w.quiet = nil
	}
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
	if f == nil || w.faultApplied || f.AfterBytes > 0 || f.Kind == faultNoFinish && !f.isMidStream() {
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
	case faultSigterm, faultSigtermHang:
		s.endProcess(f)
		return event, nil
	case faultKilled:
		s.endProcess(f)
		x.closeConn()
	case faultErrorEvent, faultKeyError:
		w.sendFailure(s.errorEventFailure(f))
	case faultEngineDead:
		s.engine.kill(f)
		w.sendFailure(s.spec.engineDeathInStream())
	case faultOOM:
		w.sendFailure(s.spec.outOfMemoryInStream())
	case faultNoFinish:
		w.finish()
	case faultGarbage:
		_ = w.write([]byte(cmp.Or(f.Body, "\x00\xff<html>neither JSON nor an event</html>\n\n"))) // the stream ends here anyway
	case faultBigEvent:
		return f.padText(event), nil
	case faultHang:
		return event, s.hang(x)
	default:
		return event, nil
	}
	return nil, errEndedByFault
}

// write writes at once, or as the fault says.
func (w *eventWriter) write(data []byte) error {
	x := w.exchange
	switch {
	case x.hasFault(faultBurst):
		w.buffered = append(w.buffered, data...)
		return nil
	case x.fault != nil && x.fault.AfterBytes > 0 && w.bytes+len(data) >= x.fault.AfterBytes:
		return w.writePartial(data[:x.fault.AfterBytes-w.bytes])
	}
	w.bytes += len(data)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet != nil {
		w.quiet.Reset(x.server.options.KeepAliveInterval)
	}
	if x.hasFault(faultSlow) {
		return x.writeSlowly(data)
	}
	if _, err := x.w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(x.w).Flush()
}

// writePartial ends the stream within an event.
func (w *eventWriter) writePartial(data []byte) error {
	x := w.exchange
	x.silence()
	_, _ = x.w.Write(data)                      // the stream breaks here anyway
	_ = http.NewResponseController(x.w).Flush() // as above
	if x.fault.Kind == faultResetMid {
		x.resetConn()
	} else {
		w.truncate()
	}
	return errEndedByFault
}

// truncate ends the connection with an orderly close. A clean fault also ends the chunked body properly.
func (w *eventWriter) truncate() {
	if !w.exchange.fault.Clean { // if clean, the handler's return ends the body
		w.exchange.closeConn()
	}
}

// sendFailure ends the stream with an error event and [DONE], or by closing the connection in versions that do so.
func (w *eventWriter) sendFailure(f *failure) {
	if f.closesConn {
		w.exchange.closeConn()
		return
	}
	event := w.exchange.server.spec.errorEvent(f)
	if w.exchange.hasFault(faultErrorEvent) && w.exchange.fault.Body != "" {
		event = []byte("data: " + w.exchange.fault.Body + "\n\n")
	}
	_ = w.write(event) // the stream is over even if the client disconnected
	w.finish()
}

// finish ends the stream with [DONE].
func (w *eventWriter) finish() {
	w.exchange.silence()
	if w.exchange.hasFault(faultNoDone) {
		w.truncate()
		return
	}
	_ = w.write([]byte(doneEvent)) // the stream is over even if the client disconnected
	if len(w.buffered) > 0 {
		_, _ = w.exchange.w.Write(w.buffered) // as above
	}
}

// completeStream responds with one event per token of each output. V0 responds to best_of with the whole in one event.
func (s *Server) completeStream(x *exchange, j *job) {
	failure := s.checkInEngine(j)
	if failure != nil && s.spec.rust {
		x.writeFailure(failure)
		return
	}
	w := x.startStream()
	if failure != nil {
		w.sendFailure(failure)
		return
	}
	g, e := newGeneration(s.model, j), s.encoder(j)
	whole := j.outputsPerPrompt != j.request.n
	err := s.run(x, g, func() error {
		if whole {
			return nil
		}
		return s.sendStep(w, g, e)
	})
	switch {
	case errors.Is(err, errEndedByFault):
		return
	case errors.Is(err, errEngineDied):
		w.sendFailure(s.spec.engineDeathInStream())
		return
	case err != nil:
		x.closeConn()
		return
	}
	s.metrics.finish(g)
	switch {
	case whole:
		err = w.send(slices.Concat([]byte("data: "), e.completion(g), []byte("\n\n")), g.generated)
	case j.request.includeUsage:
		if err = w.write(e.usageEvent(g)); err != nil {
			x.closeConn()
		}
	}
	if err == nil {
		w.finish()
	}
}

// sendStep sends what each output gained in the engine's last step.
func (s *Server) sendStep(w *eventWriter, g *generation, e *responseEncoder) error {
	r := g.job.request
	if r.maxTokensNull {
		w.sendFailure(s.spec.streamFailure("")) // a failed assertion without a message
		return errEndedByFault
	}
	size := max(1, r.streamInterval)
	if w.exchange.hasFault(faultMerge) {
		size = cmp.Or(w.exchange.fault.Tokens, defaultMergeTokens)
	}
	for _, seq := range g.sequences {
		gained := len(seq.output()) - seq.sentTokens
		first := seq.sentEvents == 0 && !w.exchange.hasFault(faultMerge)
		if seq.sentFinish || !seq.finished() && gained < size && !first || len(seq.output()) == 0 && !s.spec.finishesEmpty {
			continue
		}
		if opening := e.opening(g, seq); opening != nil {
			if err := w.send(opening, 0); err != nil {
				return err
			}
		}
		seq.sentFinish = seq.finished()
		if s.spec.rust && seq.finished() && seq.sentBytes < len(seq.text) { // the finish has an event of its own
			seq.hideFinish = true
			if err := w.send(e.event(g, seq, false), gained); err != nil {
				return err
			}
			gained = 0
		}
		seq.hideFinish = w.exchange.hasFault(faultNoFinish)
		if err := w.send(e.event(g, seq, s.spec.fingerprint && !r.includeUsage), gained); err != nil {
			return err
		}
	}
	return nil
}

// errorEventFailure is the error of an error_event or key_error fault. The latter is a KeyError of vLLM, whose text is
// the missing key.
func (*Server) errorEventFailure(f *Fault) *failure {
	if f.Kind == faultKeyError {
		return &failure{
			status: http.StatusInternalServerError, errorType: internalServerError, message: cmp.Or(f.Message, "0"),
		}
	}
	return &failure{
		status:    cmp.Or(f.Status, http.StatusInternalServerError),
		errorType: internalServerError,
		message:   cmp.Or(f.Message, "Internal server error"),
	}
}

// outOfMemoryInStream is the error of a stream when the GPU's memory is exhausted. Of the engines only V0 quotes the
// cause; for V1 this stands for a server in front of vLLM, or in its place, that does.
func (s *versionSpec) outOfMemoryInStream() *failure {
	if s.v0 {
		return s.streamFailure("Engine loop is not running. Inspect the stacktrace to find the original error: " +
			"OutOfMemoryError('" + cudaOutOfMemory + "')")
	}
	return s.streamFailure(cudaOutOfMemory)
}
