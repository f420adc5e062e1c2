// Package mockvllm is an HTTP server that imitates vLLM's OpenAI API, for development and tests without a GPU.
//
// It promises the wire format of the vLLM version in Options.Version: status codes, headers, key order, error texts
// and when they appear. A small language model generates the text, so that sampling parameters have their effect and tests can
// assert it. A Fault simulates a failure of a real server. README.md has the details.
//
// It shares no code with the gateway, so that the two cannot have the same bug. Real servers are the truth about vLLM: the mock
// checks of a request only what tests need.
package mockvllm

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// errClosed is the cancel cause of requests that still run at Close.
var errClosed = errors.New("server closed")

// errKilled is the cancel cause of requests that run when a killed fault ends the process.
var errKilled = errors.New("process killed")

// Server imitates one vLLM server. It is an http.Handler: serve it with httptest, or with Start for uvicorn's
// timeouts and a port that faults can close.
type Server struct {
	options      Options // with defaults
	spec         *versionSpec
	model        *languageModel
	longestPiece int
	routes       map[string]route

	faults   *faultList
	engine   *engine
	recorder recorder
	metrics  *engineMetrics
	queue    *scheduler
	cache    *prefixCache
	adapters adapterSet
	running  atomic.Int64
	naming   atomic.Int64 // running requests with logprob_token_ids

	mu       sync.Mutex
	closed   bool
	inflight map[*exchange]context.CancelCauseFunc
	handlers sync.WaitGroup
}

// New returns a server. It starts no goroutine.
func New(o Options) *Server {
	if len(o.Models) == 0 {
		o.Models = []string{"mock-model"}
	}
	o.MaxModelLen, o.MaxLogprobs = cmp.Or(o.MaxModelLen, 8192), cmp.Or(o.MaxLogprobs, 20)
	o.Version = strings.TrimPrefix(cmp.Or(o.Version, newestVersion), "v")
	s := &Server{
		options: o, spec: specOf(parseRelease(o.Version), o.RustFrontend), model: sharedModel(),
		faults: &faultList{cleared: make(chan struct{})}, engine: &engine{changed: make(chan struct{}, 1)},
		queue:    &scheduler{limit: o.MaxNumSeqs, byPriority: o.SchedulingPolicy == PolicyPriority},
		cache:    newPrefixCache(o.PrefixCacheBlocks),
		inflight: make(map[*exchange]context.CancelCauseFunc),
	}
	s.longestPiece = s.model.longestPiece()
	s.metrics = newEngineMetrics(s)
	s.routes = s.buildRoutes()
	return s
}

// Close ends the running requests and waits for their handlers. It does not close connections: close the http.Server
// afterwards, not before, since http.Server would wait for requests that hang.
func (s *Server) Close() {
	s.cancelRequests(errClosed)
	s.handlers.Wait()
}

func (s *Server) cancelRequests(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || errors.Is(cause, errClosed)
	for _, cancel := range s.inflight {
		cancel(cause)
	}
}

// endProcess applies a fault that ends the process: sigterm aborts the running requests, killed cuts them off.
func (s *Server) endProcess(f *Fault) {
	restart, _ := f.restartAfter() // it is valid
	s.engine.setExited(true, restart)
	s.cache.reset()
	s.adapters.clear()
	if f.Kind == faultKilled {
		s.cancelRequests(errKilled)
	} else {
		s.engine.aborts.Add(1)
	}
}

// InjectFault adds a fault. It panics if POST /mock/fault would reject it, since that is a mistake in the test.
func (s *Server) InjectFault(f Fault) {
	if err := f.validate(); err != nil {
		panic("mockvllm: " + err.Error())
	}
	s.faults.add(f)
}

// ClearFaults removes all faults, resumes hanging requests and revives a dead engine.
func (s *Server) ClearFaults() {
	s.engine.dead.Store(false)
	s.engine.setExited(false, 0)
	s.faults.clear()
}

// Requests returns the last requests received, oldest first, without those to /mock.
func (s *Server) Requests() []Recorded { return s.recorder.list() }

// Running returns the number of requests inside the handlers of completions, /tokenize and /detokenize.
func (s *Server) Running() int { return int(s.running.Load()) }

// ServeHTTP responds to one request as vLLM would.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.spec.Rust {
		w.Header().Set("Server", "uvicorn")
	}
	if s.spec.VaryOrigin {
		w.Header().Set("Vary", "Origin")
	}
	if strings.HasPrefix(r.URL.Path, "/mock/") {
		s.serveControl(w, r)
		return
	}
	x := &exchange{server: s, w: w, arrived: time.Now()}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	x.r = r.WithContext(ctx)
	if s.engine.hasExited() || !s.begin(x, cancel) {
		x.resetConn()
		return
	}
	defer s.end(x)
	if x.readBody() != nil {
		x.closeConn()
		return
	}
	if s.options.Instant && r.URL.Path == completionsPath {
		s.serveInstant(x)
		return
	}
	s.serve(x)
}

// begin registers a running request. It returns false if the server is closed.
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

// serve records a request, applies a fault if one matches, and calls the route's handler.
func (s *Server) serve(x *exchange) {
	defer s.recorder.begin(x)()
	if !s.authorised(x.r) {
		x.writeFailure(memberFailure(http.StatusUnauthorized, "error", "Unauthorized"))
		return
	}
	x.fault, x.faultsCleared = s.faults.consume(x.r.URL.Path)
	if s.spec.Rust && (x.hasFault(faultEngineDead) || x.hasFault(faultSigterm)) {
		x.fault.Kind = faultKilled // the server ends with its engine, and breaks its connections
	}
	if x.fault != nil && s.applyFault(x) {
		return
	}
	s.route(x)
}

// authorised checks the API key on the paths that vLLM protects.
func (s *Server) authorised(r *http.Request) bool {
	if s.options.APIKey == "" || !strings.HasPrefix(r.URL.Path, "/v1") {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return key == s.options.APIKey && strings.EqualFold(scheme, "bearer")
}
