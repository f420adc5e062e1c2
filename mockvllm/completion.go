package mockvllm

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// errEngineDied ends running requests when a fault kills the engine under them.
var errEngineDied = errors.New("engine died")

// complete returns the handler of completions or chat completions, whose schema parse checks.
func (s *Server) complete(parse func(value) (*completionRequest, *failure)) func(*exchange) {
	return func(x *exchange) {
		body, failure := s.readJSON(x)
		if failure != nil {
			x.writeFailure(failure)
			return
		}
		r, failure := parse(body)
		if failure != nil {
			x.writeFailure(failure)
			return
		}
		s.generate(x, r)
	}
}

// generate responds to a completion or chat completion whose schema is valid.
func (s *Server) generate(x *exchange, r *completionRequest) {
	j, failure := s.prepare(x.r.Header, r)
	if failure != nil {
		x.writeFailure(failure)
		return
	}
	if s.spec.rejectsDuplicateIDs {
		j.hasID = s.claimID(j.id)
		j.duplicate = !j.hasID
		defer s.releaseID(j)
	}
	s.metrics.begin(j)
	defer s.metrics.end(j)
	if r.stream {
		s.completeStream(x, j)
	} else {
		s.completePlain(x, j)
	}
}

// claimID registers a request id. It returns false if another running request has it.
func (s *Server) claimID(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return false
	}
	s.ids[id] = true
	return true
}

// releaseID ends the claim on a request's id, if it has one.
func (s *Server) releaseID(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.hasID {
		delete(s.ids, j.id)
		j.hasID = false
	}
}

// readJSON does FastAPI's part: media type and JSON.
func (s *Server) readJSON(x *exchange) (value, *failure) {
	const unsupported = "Unsupported Media Type: Only 'application/json' is allowed"
	mediaType, _, _ := strings.Cut(x.r.Header.Get("Content-Type"), ";")
	if strings.ToLower(mediaType) != "application/json" {
		switch s.spec.contentType {
		case unsupportedType:
			return value{}, detailFailure(http.StatusUnsupportedMediaType, unsupported)
		case badRequestType:
			return value{}, s.spec.mediaTypeFailure(unsupported)
		case anyContentType:
		}
	}
	if len(x.body) == 0 {
		return value{}, s.spec.schemaFailure([]schemaError{{kind: "missing", message: "Field required"}})
	}
	body := bytes.TrimPrefix(x.body, []byte("\ufeff"))
	if !utf8.Valid(body) {
		return value{}, detailFailure(http.StatusBadRequest, "There was an error parsing the body")
	}
	parsed, err := parsePythonJSON(string(body))
	if syntax := (*syntaxError)(nil); errors.As(err, &syntax) {
		return value{}, s.spec.schemaFailure([]schemaError{{
			kind: "json_invalid", loc: []string{decimal(syntax.position)}, message: "JSON decode error", input: value{kind: objectKind},
			context: "{'error': " + reprString(syntax.message) + "}",
		}})
	}
	if err != nil {
		return value{}, detailFailure(http.StatusBadRequest, "There was an error parsing the body")
	}
	return parsed, nil
}

func (s *versionSpec) mediaTypeFailure(message string) *failure {
	if s.rust {
		message = "Expected request with `Content-Type: application/json`"
	} else if s.scrubsSchemaErrors {
		message = "1 validation error:\n  " + message
	}
	return &failure{status: http.StatusBadRequest, errorType: s.validationType, message: message}
}

// completePlain responds once all outputs are generated.
func (s *Server) completePlain(x *exchange, j *job) {
	if failure := s.checkInEngine(j); failure != nil {
		x.writeFailure(failure)
		return
	}
	if s.applyPlainFault(x) {
		return
	}
	g := newGeneration(s.model, j)
	if !s.generateAll(x, g) {
		return
	}
	if failure := s.nullMaxTokensFailure(j); failure != nil {
		x.writeFailure(failure)
		return
	}
	s.metrics.finish(g)
	for _, seq := range g.sequences {
		seq.hideFinish = x.hasFault(faultNoFinish)
	}
	x.writeJSON(s.encoder(j).completion(g))
}

// generateAll runs the generation to its end. If it fails, generateAll ends the exchange and returns false.
func (s *Server) generateAll(x *exchange, g *generation) bool {
	err := s.run(x, g, func() error { return nil })
	switch {
	case errors.Is(err, errEngineDied):
		x.writeFailure(s.spec.deadEngineFailure())
	case err != nil:
		x.closeConn()
	}
	return err == nil
}

// applyPlainFault writes the fault's response in place of a plain one once the request has passed every check. It
// returns false if the fault is of another kind.
func (s *Server) applyPlainFault(x *exchange) bool {
	switch {
	case x.hasFault(faultEngineDead) || x.hasFault(faultOOM):
		early := *x.fault
		early.InStream, early.AfterEvents, early.AfterTokens = false, 0, 0
		x.writeFailure(s.engineFailure(&early))
	case x.hasFault(faultErrorEvent) || x.hasFault(faultKeyError):
		x.writeFailure(s.errorEventFailure(x.fault))
	default:
		return false
	}
	return true
}

// run drives a generation, one step of all outputs at a time, and calls each after every step. It returns early with
// the cause when the client disconnects, the server closes or the engine dies.
func (s *Server) run(x *exchange, g *generation, each func() error) error {
	defer s.releaseID(g.job) // before the response's end, so that the client can use the id again at once
	ctx := x.r.Context()
	release, err := s.queue.acquire(ctx, len(g.sequences), g.job.request.priority)
	if err != nil {
		return err
	}
	defer release()
	if err := s.engine.awaitWake(ctx); err != nil {
		return err
	}
	aborts := s.engine.abortCount()
	if err := s.prefill(ctx, g); err != nil {
		return err
	}
	defer s.cacheOutputs(g)
	for steps := 0; ; steps++ {
		if x.endsProcess() && !g.job.request.stream && steps == x.fault.AfterTokens {
			s.endProcess(x.fault)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		abort := s.engine.abortCount() != aborts || x.hasFault(faultAbort) && steps >= x.fault.AfterTokens
		unfinished := false
		if abort {
			g.abort()
		} else {
			unfinished = g.step()
			s.metrics.step(g, x.arrived)
		}
		if s.engine.hanging() {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if s.engine.dead() {
			return errEngineDied
		}
		if err := each(); err != nil || !unfinished {
			return err
		}
		if err := pause(ctx, s.options.TokenDelay); err != nil {
			return err
		}
	}
}

// prefill takes the time that the prompts need before their first token: less if the prefix cache has a part of them.
func (s *Server) prefill(ctx context.Context, g *generation) error {
	uncached := 0
	for _, seq := range g.sequences {
		prompt := seq.history
		uncached += len(prompt) - s.cache.lookup(prompt, g.job.request.cacheSalt, g.job.topPromptLogprobs == noLogprobs)
	}
	if err := pause(ctx, s.options.FirstDelay+time.Duration(uncached)*s.options.PrefillDelay); err != nil {
		return err
	}
	return g.scorePrompts(ctx)
}

// cacheOutputs adds the outputs to the prefix cache, for prompts that continue them.
func (s *Server) cacheOutputs(g *generation) {
	for _, seq := range g.sequences {
		s.cache.add(seq.history, g.job.request.cacheSalt)
	}
}

// nullMaxTokensFailure returns the error of versions that accept max_tokens null: they generate everything and then
// fail an assertion.
func (s *Server) nullMaxTokensFailure(j *job) *failure {
	if !j.request.maxTokensNull {
		return nil
	}
	failure := &failure{status: http.StatusInternalServerError, errorType: internalServerError}
	switch s.spec.nullMaxTokens {
	case nullFillsContext:
		return textFailure(http.StatusInternalServerError, internalSpaced)
	case nullAsOK:
		failure.asOK = true
	case nullInternal, nullIsDefault:
	}
	return failure
}

func (s *Server) encoder(j *job) *responseEncoder {
	return &responseEncoder{spec: s.spec, model: s.model, job: j, fingerprint: fingerprintOf(s.version, j.model)}
}
