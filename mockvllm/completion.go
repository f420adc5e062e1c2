package mockvllm

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"
)

// errEngineDied ends the requests that run when another one kills the engine.
var errEngineDied = errors.New("engine died")

// complete is POST /v1/completions.
func (s *Server) complete(x *exchange) {
	r, failure := s.readRequest(x)
	if failure != nil {
		x.refuse(failure)
		return
	}
	j, failure := s.prepare(x.r.Header, r)
	if failure != nil {
		x.refuse(failure)
		return
	}
	if s.shape.uniqueIDs {
		j.duplicate = !s.claim(j.id)
		defer s.release(j)
	}
	s.meter.begin(j)
	defer s.meter.end(j)
	switch {
	case r.stream && j.drawn == r.n:
		s.stream(x, j)
	case r.stream:
		s.streamWhole(x, j)
	default:
		s.plain(x, j)
	}
}

// claim takes a request's id; it fails while another request has it.
func (s *Server) claim(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return false
	}
	s.ids[id] = true
	return true
}

func (s *Server) release(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !j.duplicate {
		delete(s.ids, j.id)
	}
}

// readRequest does FastAPI's part: media type, JSON, schema.
func (s *Server) readRequest(x *exchange) (*completionRequest, *failure) {
	body, failure := s.readJSON(x)
	if failure != nil {
		return nil, failure
	}
	return s.shape.readCompletion(body)
}

func (s *Server) readJSON(x *exchange) (value, *failure) {
	const unsupported = "Unsupported Media Type: Only 'application/json' is allowed"
	mediaType, _, _ := strings.Cut(x.r.Header.Get("Content-Type"), ";")
	if strings.ToLower(mediaType) != "application/json" {
		switch s.shape.contentType {
		case unsupportedType:
			return value{}, detail(http.StatusUnsupportedMediaType, unsupported)
		case badRequestType:
			return value{}, &failure{status: http.StatusBadRequest, kind: s.shape.validationType, message: unsupported}
		case anyContentType:
		}
	}
	if len(x.body) == 0 {
		return value{}, s.shape.schemaFailure([]problem{{kind: "missing", message: "Field required", input: "None"}})
	}
	body := bytes.TrimPrefix(x.body, []byte("\ufeff"))
	if !utf8.Valid(body) {
		return value{}, detail(http.StatusBadRequest, "There was an error parsing the body")
	}
	parsed, err := parsePython(string(body))
	if syntax := (*syntaxError)(nil); errors.As(err, &syntax) {
		return value{}, s.shape.schemaFailure([]problem{{
			kind: "json_invalid", place: []string{decimal(syntax.place)}, message: "JSON decode error", input: "{}",
			context: "{'error': " + reprString(syntax.message) + "}",
		}})
	}
	if err != nil {
		return value{}, detail(http.StatusBadRequest, "There was an error parsing the body")
	}
	return parsed, nil
}

// plain answers once everything is generated.
func (s *Server) plain(x *exchange, j *job) {
	if failure := s.checkEngine(j); failure != nil {
		x.refuse(failure)
		return
	}
	if s.strikesPlain(x) {
		return
	}
	g := newGeneration(s.model, j)
	if !s.generateWhole(x, g) {
		return
	}
	if failure := s.nullMaxTokens(j); failure != nil {
		x.refuse(failure)
		return
	}
	s.meter.finish(g)
	for _, q := range g.sequences {
		q.mute = x.striking(faultNoFinish)
	}
	x.json(s.writer(j).completion(g))
}

// generateWhole runs the generation to its end. Where it does not get there the exchange has been answered, and it
// tells so.
func (s *Server) generateWhole(x *exchange, g *generation) bool {
	err := s.run(x, g, func() error { return nil })
	switch {
	case errors.Is(err, errEngineDied):
		x.refuse(s.shape.deathBefore())
	case err != nil:
		x.hangUp()
	}
	return err == nil
}

// strikesPlain are the faults that a plain answer meets once the request is found good.
func (s *Server) strikesPlain(x *exchange) bool {
	switch {
	case x.striking(faultEngineDead) || x.striking(faultOOM):
		early := *x.fault
		early.InStream, early.AfterEvents, early.AfterTokens = false, 0, 0
		x.refuse(s.fatalFailure(&early))
	case x.striking(faultErrorEvent):
		x.refuse(s.eventFailure(x.fault))
	default:
		return false
	}
	return true
}

// run drives a generation, one step of all outputs at a time, and calls each after every step. It ends early with the
// cause when the client leaves, the server closes or the engine dies.
func (s *Server) run(x *exchange, g *generation, each func() error) error {
	ctx := x.r.Context()
	if err := s.engine.awake(ctx); err != nil {
		return err
	}
	aborts := s.engine.aborted()
	if err := pause(ctx, s.options.FirstDelay); err != nil {
		return err
	}
	if err := g.score(ctx); err != nil {
		return err
	}
	for steps := 0; ; steps++ {
		abort := s.engine.aborted() != aborts || x.striking(faultAbort) && steps >= x.fault.AfterTokens
		left := false
		if abort {
			g.abort()
		} else {
			left = g.step()
			s.meter.step(g, x.arrived)
		}
		if s.engine.dead() {
			return errEngineDied
		}
		if err := each(); err != nil || !left {
			return err
		}
		if err := pause(ctx, s.options.TokenDelay); err != nil {
			return err
		}
	}
}

// nullMaxTokens is what versions that accept max_tokens null make of it after all the work: a failed assertion.
func (s *Server) nullMaxTokens(j *job) *failure {
	if !j.request.maxTokensNull {
		return nil
	}
	failure := &failure{status: http.StatusInternalServerError, kind: internalServerError}
	switch s.shape.nullMaxTokens {
	case nullFillsContext:
		return plainText(http.StatusInternalServerError, internalSpaced)
	case nullUnderOK:
		failure.underOK = true
	case nullInternal, nullIsDefault:
	}
	return failure
}

func (s *Server) writer(j *job) *writer {
	return &writer{shape: s.shape, model: s.model, job: j, fingerprint: fingerprintOf(s.version, j.model)}
}
