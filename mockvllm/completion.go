package mockvllm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"basegate/internal/wait"
)

// errEngineDied ends running requests when a fault kills the engine under them.
var errEngineDied = errors.New("engine died")

// complete returns the handler of completions or chat completions, which parse decodes.
func (s *Server) complete(parse func(gjson.Result) (*completionRequest, *failure)) failing {
	return func(x *exchange) *failure {
		body, failure := s.readJSON(x)
		if failure != nil {
			return failure
		}
		r, failure := parse(body)
		if failure != nil {
			return failure
		}
		g, failure := s.prepare(x.r.Header, r)
		switch {
		case failure != nil:
			return failure
		case r.Stream:
			return s.completeStream(x, g)
		}
		return s.completePlain(x, g)
	}
}

// decodeBody stores the body of a request that is JSON into a struct.
func (s *Server) decodeBody(x *exchange, into any) *failure {
	body, failure := s.readJSON(x)
	if failure == nil {
		failure = s.spec.decode(body, body, into)
	}
	return failure
}

// readJSON does FastAPI's part: media type and JSON.
func (s *Server) readJSON(x *exchange) (gjson.Result, *failure) {
	const unsupported = "Unsupported Media Type: Only 'application/json' is allowed"
	mediaType, _, _ := strings.Cut(x.r.Header.Get("Content-Type"), ";")
	body := bytes.TrimPrefix(x.body, []byte("\ufeff"))
	var syntax *json.SyntaxError
	switch {
	case strings.ToLower(mediaType) == "application/json":
	case s.spec.V0:
		return gjson.Result{}, memberFailure(http.StatusUnsupportedMediaType, "detail", unsupported)
	case s.spec.Rust:
		return gjson.Result{}, s.spec.invalidBody("Expected request with `Content-Type: application/json`", "")
	default:
		return gjson.Result{}, s.spec.invalidBody(validationHeadline+unsupported, "")
	}
	switch err := json.Unmarshal(body, new(json.RawMessage)); {
	case len(body) == 0:
		return gjson.Result{}, s.spec.schemaFailure("missing", "", "Field required", gjson.Result{}, "")
	case !utf8.Valid(body):
		return gjson.Result{}, memberFailure(http.StatusBadRequest, "detail", "There was an error parsing the body")
	case errors.As(err, &syntax):
		expected := "Expecting value"
		if strings.Contains(syntax.Error(), "object key") {
			expected = "Expecting property name enclosed in double quotes"
		}
		return gjson.Result{}, s.spec.schemaFailure("json_invalid", strconv.FormatInt(syntax.Offset-1, 10), "JSON decode error", gjson.Parse("{}"),
			", 'ctx': {'error': '"+expected+"'}")
	}
	return gjson.ParseBytes(body), nil
}

// completePlain responds once all outputs are generated.
func (s *Server) completePlain(x *exchange, g *generation) *failure {
	failure := s.checkInEngine(g)
	if failure == nil && x.fault != nil {
		failure = s.failureFor(x.fault)
	}
	if failure != nil {
		return failure
	}
	err := s.run(x, g, func() error { return nil })
	switch {
	case errors.Is(err, errEngineDied):
		return s.spec.deadEngine()
	case err != nil:
		x.closeConn()
	default:
		for _, seq := range g.sequences {
			seq.hideFinish = x.hasFault(faultNoFinish)
		}
		x.writeJSON(g.completion())
	}
	return nil
}

// run drives a generation, one step of all outputs at a time, and calls each after every step. It returns early with
// the cause when the client disconnects, the server closes or the engine dies.
func (s *Server) run(x *exchange, g *generation, each func() error) error {
	ctx := x.r.Context()
	g.report.arrived = time.Now()
	release, err := s.queue.acquire(ctx, len(g.tokens)*g.request.N, g.request.Priority)
	if err != nil {
		return err
	}
	defer release()
	if woken := s.engine.asleep(); woken != nil {
		select {
		case <-woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if len(g.request.LogprobIDs) > 0 {
		s.naming.Add(1)
		defer s.naming.Add(-1)
	}
	g.report.scheduled = time.Now()
	g.begin()
	aborts := s.engine.aborts.Load()
	s.metrics.hold(g.promptTokens(), s.options.MaxModelLen)
	defer func() { s.metrics.hold(-g.promptTokens()-g.generated, s.options.MaxModelLen) }()
	if err := s.prefill(ctx, g); err != nil {
		return err
	}
	defer func() {
		for _, seq := range g.sequences { // prompts may continue them
			s.cache.lookup(seq.history, g.cacheSalt(), false)
		}
	}()
	delay, last := s.options.TokenDelay, time.Time{}
	if x.hasFault(faultSlow) {
		delay, _ = x.fault.tokenDelay() // it is valid
	}
	for steps := 0; ; steps++ {
		if (x.hasFault(faultSigterm) || x.hasFault(faultKilled)) && !g.request.Stream && steps == x.fault.AfterTokens {
			s.endProcess(x.fault)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		unfinished := false
		if s.engine.aborts.Load() != aborts || x.hasFault(faultAbort) && steps >= x.fault.AfterTokens {
			for _, seq := range g.sequences {
				seq.finish = cmp.Or(seq.finish, finishAbort)
			}
		} else {
			before := g.generated
			unfinished = g.step()
			s.metrics.hold(g.generated-before, s.options.MaxModelLen)
			s.metrics.step(g.generated-before, last)
			last = time.Now()
			if g.report.last = last; steps == 0 {
				g.report.first = last
			}
		}
		if s.engine.dead.Load() {
			return errEngineDied
		}
		if err := each(); err != nil || !unfinished {
			return err
		}
		if !wait.For(ctx, delay) {
			return context.Cause(ctx)
		}
	}
}

// prefill takes the time that the prompts need before their first token: less if the prefix cache has a part of them.
func (s *Server) prefill(ctx context.Context, g *generation) error {
	uncached, whole := 0, 0
	for _, seq := range g.sequences {
		prompt := seq.history
		cached := s.cache.lookup(prompt, g.cacheSalt(), g.topPromptLogprobs == noLogprobs)
		uncached += len(prompt) - cached
		if seq.index%g.request.N == 0 { // usage counts a prompt once
			g.report.cached += cached
			whole += len(prompt) / blockTokens * blockTokens
		}
	}
	if s.cache.capacity > 0 {
		g.report.created = whole - g.report.cached
	}
	if !wait.For(ctx, s.options.FirstDelay+time.Duration(uncached)*s.options.PrefillDelay) {
		return context.Cause(ctx)
	}
	return g.scorePrompts(ctx)
}
