// Package mockvllm is a look-alike of vLLM's OpenAI server for completions, to develop and test against without a GPU.
//
// It promises vLLM's wire format: status codes, headers, key orders, error texts and their timing, of the version that
// Options.Version names. Behind it stands a real, if tiny, language model, so that temperature, top_k, top_p, min_p,
// penalties, logit_bias, seed, stop, echo, logprobs and prompt_logprobs do what they say and can be asserted. What
// goes wrong with a real server goes wrong here on demand (Fault).
//
// It leaves out chat, embeddings, LoRA, structured output, beam search, prompt_embeds, bodies in UTF-16 and everything
// about GPUs; fields of those are ignored. Its judgement of a request is as lax as vLLM's, and it shares no code with
// the gateway, so that the two cannot agree on a mistake.
package mockvllm

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what the server pretends to be. The zero value is the newest vLLM with a model named "mock-model".
type Options struct {
	Models      []string      // served names; the first is what answers carry in "model"
	MaxModelLen int           // tokens; 0: 8192
	MaxLogprobs int           // 0: 20, -1: the whole vocabulary
	TokenDelay  time.Duration // between two tokens of an output
	FirstDelay  time.Duration // before the first
	APIKey      string        // guards the paths under /v1, as in vLLM
	Version     string        // the vLLM version whose wire format is spoken; empty: the newest known
	Instant     bool          // no model: a constant answer as fast as possible, to measure proxies; nothing is recorded
}

// errClosed ends the requests that are still running at Close.
var errClosed = errors.New("server closed")

// A Server is one pretended vLLM. It is an http.Handler: serve it by httptest, or by Start for uvicorn's timeouts and
// a port that faults can take down.
type Server struct {
	options      Options
	models       []string
	version      string
	maxModelLen  int
	maxLogprobs  int
	spec         *versionSpec
	model        *languageModel
	longestPiece int
	routes       map[string]route
	instant      *instantAnswer

	faults   *faultList
	engine   *engine
	recorder *recorder
	metrics  *engineMetrics
	running  atomic.Int64

	mu       sync.Mutex
	closed   bool
	inflight map[*exchange]context.CancelCauseFunc
	ids      map[string]bool // of running requests, where the version refuses a second of the same
	handlers sync.WaitGroup
}

// New makes a server. Nothing runs until requests come.
func New(o Options) *Server {
	if len(o.Models) == 0 {
		o.Models = []string{"mock-model"}
	}
	if o.MaxModelLen == 0 {
		o.MaxModelLen = 8192
	}
	if o.MaxLogprobs == 0 {
		o.MaxLogprobs = 20
	}
	if o.Version == "" {
		o.Version = newestVersion
	}
	version := specOf(parseRelease(o.Version))
	s := &Server{
		options: o, models: o.Models, version: strings.TrimPrefix(o.Version, "v"), maxModelLen: o.MaxModelLen,
		maxLogprobs: o.MaxLogprobs, spec: &version, model: sharedModel(),
		faults: newFaultList(), engine: newEngine(), recorder: newRecorder(), metrics: newEngineMetrics(),
		inflight: make(map[*exchange]context.CancelCauseFunc), ids: make(map[string]bool),
	}
	s.longestPiece = s.model.longestPiece()
	s.routes = s.buildRoutes()
	if o.Instant {
		s.instant = newInstantAnswer(s.models[0], s.maxModelLen)
	}
	return s
}

// Close ends the requests that are still running and waits for them. Connections are not the server's, so close what
// serves it afterwards, not before: an http.Server would wait for a request that hangs.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.inflight {
		cancel(errClosed)
	}
	s.mu.Unlock()
	s.handlers.Wait()
}

// InjectFault lets something go wrong. It panics where POST /mock/fault would refuse: that is a mistake in the test.
func (s *Server) InjectFault(f Fault) {
	if err := f.validate(); err != nil {
		panic("mockvllm: " + err.Error())
	}
	s.faults.add(f)
}

// ClearFaults drops all faults, frees the requests that hang and revives a dead engine.
func (s *Server) ClearFaults() {
	s.engine.revive()
	s.faults.clear()
}

// Requests are the last requests received, oldest first; those to /mock are not among them.
func (s *Server) Requests() []Recorded { return s.recorder.list() }

// Running is the number of requests inside the handlers of /v1/completions, /tokenize and /detokenize.
func (s *Server) Running() int { return int(s.running.Load()) }

// ServeHTTP answers one request as vLLM would.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "uvicorn")
	if strings.HasPrefix(r.URL.Path, "/mock/") {
		s.serveControl(w, r)
		return
	}
	x := &exchange{server: s, w: w, arrived: time.Now()}
	if s.engine.exited() || s.faults.consume(r.URL.Path, true) != nil {
		x.resetConn()
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	x.r = r.WithContext(ctx)
	if !s.begin(x, cancel) {
		x.resetConn()
		return
	}
	defer s.end(x)
	if s.instant != nil && r.URL.Path == completionsPath {
		s.instant.serve(x)
		return
	}
	s.serve(x)
}

// begin counts the request in, unless the server is closed.
func (s *Server) begin(x *exchange, cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.inflight[x] = cancel
	s.handlers.Add(1)
	return true
}

func (s *Server) end(x *exchange) {
	s.mu.Lock()
	delete(s.inflight, x)
	s.mu.Unlock()
	s.handlers.Done()
}

// serve reads, records and answers a request, fault or no fault.
func (s *Server) serve(x *exchange) {
	if err := x.readBody(); err != nil {
		x.closeConn()
		return
	}
	defer s.recorder.begin(x)()
	if !s.authorised(x.r) {
		x.writeFailure(stringFailure(http.StatusUnauthorized, "Unauthorized"))
		return
	}
	x.faultsCleared = s.faults.clearedSignal() // before the fault is taken, or a clear between the two would go unseen
	if x.fault = s.faults.consume(x.r.URL.Path, false); x.fault != nil && s.applyFault(x) {
		return
	}
	s.route(x)
}

// authorised checks the key, on the paths that vLLM guards.
func (s *Server) authorised(r *http.Request) bool {
	if s.options.APIKey == "" || !strings.HasPrefix(r.URL.Path, "/v1") {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if s.spec.anyCaseBearer {
		scheme = strings.ToLower(scheme)
	}
	return key == s.options.APIKey && (scheme == "Bearer" || scheme == "bearer" && s.spec.anyCaseBearer)
}
