package mockvllm

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
)

// errStruck ends a stream that a fault has ended.
var errStruck = errors.New("fault struck")

// eventStream is the Content-Type of every stream.
const eventStream = "text/event-stream; charset=utf-8"

// doneEvent ends every stream, after an error too.
const doneEvent = "data: [DONE]\n\n"

// An outlet writes the events of one stream, each in a chunk of its own, and lets the fault strike between them.
type outlet struct {
	exchange *exchange
	events   int
	tokens   int
	bytes    int
	struck   bool
	held     []byte // burst: what goes out at the end
}

// begin sends the headers: vLLM does before it has a first token, or knows whether there will be one.
func (x *exchange) begin() *outlet {
	x.w.Header().Set("Content-Type", eventStream)
	x.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(x.w).Flush() // a client that has left is noticed at the first event
	return &outlet{exchange: x}
}

// send writes one event that holds so many tokens.
func (o *outlet) send(event []byte, tokens int) error {
	if o.due() {
		o.struck = true
		replaced, err := o.strike(event)
		if err != nil {
			return err
		}
		event = replaced
	}
	o.events++
	o.tokens += tokens
	return o.write(event)
}

// due tells whether the fault strikes before the next event.
func (o *outlet) due() bool {
	f := o.exchange.fault
	if f == nil || o.struck || f.AfterBytes > 0 || f.Kind == faultNoFinish && !f.midway() {
		return false
	}
	return o.events >= f.AfterEvents && o.tokens >= f.AfterTokens
}

// strike does what the fault does to a stream. The event goes on, perhaps changed, unless there is an error.
func (o *outlet) strike(event []byte) ([]byte, error) {
	x := o.exchange
	f, s := x.fault, x.server
	switch f.Kind {
	case faultResetMid:
		x.reset()
	case faultCut:
		o.cut()
	case faultErrorEvent:
		o.fail(s.eventFailure(f))
	case faultEngineDead:
		s.engine.die(f)
		o.fail(s.shape.deathWithin())
	case faultOOM:
		o.fail(s.shape.outOfMemoryWithin())
	case faultNoFinish:
		o.done()
	case faultGarbage:
		_ = o.write([]byte(cmp.Or(f.Body, "\x00\xff<html>neither JSON nor an event</html>\n\n"))) // it ends here anyway
	case faultBigEvent:
		return f.inflate(event), nil
	case faultHang:
		return event, s.hang(x)
	default:
		return event, nil
	}
	return nil, errStruck
}

// write sends bytes at once, or as the fault wants them.
func (o *outlet) write(data []byte) error {
	x := o.exchange
	switch {
	case x.striking(faultBurst):
		o.held = append(o.held, data...)
		return nil
	case x.striking(faultSlow):
		return x.drip(data)
	case x.fault != nil && x.fault.AfterBytes > 0 && o.bytes+len(data) >= x.fault.AfterBytes:
		return o.breakOff(data[:x.fault.AfterBytes-o.bytes])
	}
	o.bytes += len(data)
	if _, err := x.w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(x.w).Flush()
}

// breakOff ends the stream within an event.
func (o *outlet) breakOff(data []byte) error {
	x := o.exchange
	_, _ = x.w.Write(data)                      // it breaks here anyway
	_ = http.NewResponseController(x.w).Flush() // idem
	if x.fault.Kind == faultResetMid {
		x.reset()
	} else {
		o.cut()
	}
	return errStruck
}

// cut ends the connection in good order, the chunked body properly ended or not.
func (o *outlet) cut() {
	if !o.exchange.fault.Clean { // otherwise the handler's return ends the body
		o.exchange.hangUp()
	}
}

// fail ends the stream with an error event and [DONE]; versions that do neither just end it.
func (o *outlet) fail(f *failure) {
	if f.cut {
		o.exchange.hangUp()
		return
	}
	event := o.exchange.server.shape.errorEvent(f)
	if o.exchange.striking(faultErrorEvent) && o.exchange.fault.Body != "" {
		event = []byte("data: " + o.exchange.fault.Body + "\n\n")
	}
	_ = o.write(event) // the stream is over, whether or not the client hears it
	o.done()
}

// done ends the stream as complete.
func (o *outlet) done() {
	if o.exchange.striking(faultNoDone) {
		o.cut()
		return
	}
	_ = o.write([]byte(doneEvent)) // the stream is over, whether or not the client hears it
	if len(o.held) > 0 {
		_, _ = o.exchange.w.Write(o.held) // idem
	}
}

// stream answers with one event for each token of each output.
func (s *Server) stream(x *exchange, j *job) {
	o := x.begin()
	if failure := s.checkEngine(j); failure != nil {
		o.fail(failure)
		return
	}
	g, w := newGeneration(s.model, j), s.writer(j)
	err := s.run(x, g, func() error { return s.sendStep(o, g, w) })
	switch {
	case errors.Is(err, errStruck):
		return
	case errors.Is(err, errEngineDied):
		o.fail(s.shape.deathWithin())
		return
	case err != nil:
		x.hangUp()
		return
	}
	s.meter.finish(g)
	if j.request.includeUsage && o.write(w.usageChunk(g)) != nil {
		x.hangUp()
		return
	}
	o.done()
}

// sendStep sends what the outputs gained in the engine's last step.
func (s *Server) sendStep(o *outlet, g *generation, w *writer) error {
	r := g.job.request
	if r.maxTokensNull {
		o.fail(s.shape.within("")) // an assertion without a message
		return errStruck
	}
	size := 1
	if o.exchange.striking(faultMerge) {
		size = cmp.Or(o.exchange.fault.Tokens, defaultMerge)
	}
	for _, q := range g.sequences {
		gained := len(q.output()) - q.sentTokens
		if q.sentLast || !q.finished() && gained < size {
			continue
		}
		q.sentLast, q.mute = q.finished(), o.exchange.striking(faultNoFinish)
		if err := o.send(w.chunk(g, q, s.shape.fingerprint && !r.includeUsage), gained); err != nil {
			return err
		}
	}
	return nil
}

// streamWhole is V0's answer to best_of in a stream: the whole answer in one event.
func (s *Server) streamWhole(x *exchange, j *job) {
	o := x.begin()
	if failure := s.checkEngine(j); failure != nil {
		o.fail(failure)
		return
	}
	g := newGeneration(s.model, j)
	switch err := s.run(x, g, func() error { return nil }); {
	case errors.Is(err, errEngineDied):
		o.fail(s.shape.deathWithin())
		return
	case err != nil:
		x.hangUp()
		return
	}
	s.meter.finish(g)
	event := slices.Concat([]byte("data: "), s.writer(j).completion(g), []byte("\n\n"))
	if o.send(event, g.generated) == nil {
		o.done()
	}
}

// eventFailure is the error of an error_event.
func (*Server) eventFailure(f *Fault) *failure {
	return &failure{
		status:  cmp.Or(f.Status, http.StatusInternalServerError),
		kind:    internalServerError,
		message: cmp.Or(f.Message, "Internal server error"),
	}
}

// outOfMemoryWithin is a stream under which the GPU ran out of memory. Only the V0 engine's loop quotes the cause;
// from V1 on this stands for a server in front of vLLM, or in its place, that does.
func (s *shape) outOfMemoryWithin() *failure {
	if s.v0 {
		return s.within("Engine loop is not running. Inspect the stacktrace to find the original error: " +
			"OutOfMemoryError('" + cudaOutOfMemory + "')")
	}
	return s.within(cudaOutOfMemory)
}
