// Package proxy serves the /v1 API. It checks a request in the order that the HTTP contract defines, forwards the
// spliced body to a backend, and relays the response unchanged.
//
// The path of a completion reads top to bottom in completion.go, within the frame of exchange.go. Of its steps, length.go
// checks the length, reserve.go reserves the budget, attempt.go makes attempts at backends and decides on retries, plain.go
// and stream.go receive and send the two forms of response, charge.go counts what the backend has not, settle.go writes the
// charge, replay.go sends the responses of earlier requests, and respond.go sends errors, as a body or as the event that ends
// a stream.
//
// It leaves the accounts and keys to package identity, the fields of a body to validate, memory to admission, caps and slots
// to budget, the choice of a backend to fleet, and the meaning of a failed attempt to breaker.
package proxy

import (
	"context"
	"math"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/receipt"
	"basegate/budget/usage"
	"basegate/fleet"
	"basegate/identity"
	"basegate/internal/ratelimit"
	"basegate/internal/wait"
	"basegate/proxy/replay"
)

// Settings are the limits of the API. Sizes are in bytes.
type Settings struct {
	MaxBodyBytes      int64
	MaxAnswerBytes    int64         // of a plain response, and of one event of a stream
	FirstByteTimeout  time.Duration // for a whole plain response, or the first event of a stream
	IdleTimeout       time.Duration // between two events of a stream
	ConcurrencyPerKey int           // running requests of a key without a limit of its own

	ConcurrencyPerAccount int        // running requests of all keys of an account; 0: no limit
	CORSOrigins           []string   // whose scripts may read responses
	Dialects              []*Dialect // served besides the API

	SequencesPerRequest int64                      // the most completions that one request may ask for; 0: no limit
	Replays             bool                       // requests may ask for the responses of earlier ones
	Attempts            int                        // per request, before the first byte is sent to the client
	ClientAddress       func(*http.Request) string // returns the client's IP address
}

// Server serves the /v1 API. It is safe for concurrent use.
type Server struct {
	deps     Deps
	settings atomic.Pointer[Settings]
	metrics  *metrics
	killers  *killers
	children children

	turns       *admission.Turns   // of keys and accounts, to call the tokenizer: each has as many places as slots
	freeText    *ratelimit.Limiter // by account
	largeBodies *admission.Turns   // one, of half as many as processors, is held while a large body is parsed

	draining atomic.Bool
	inFlight atomic.Int64
	idle     chan struct{} // receives a value when the last request in flight ends while draining
}

// Ended is a request that has ended, for statistics.
type Ended struct {
	Model      string        // id; empty if the request was refused before its model was known
	Backend    string        // of the last attempt; empty if there was none
	Code       string        // of the error; empty on success
	Prompt     int64         // tokens charged
	Completion int64         // tokens charged
	Cached     *int64        // prompt tokens that the backend had cached; nil if it did not report them
	FirstToken time.Duration // from arrival to the first event; 0 if there was none
	Total      time.Duration // from arrival until it was charged; 0 if it was not
}

// Deps are the parts that a Server calls. All are required, except Refusals, Ended, Receipts, Replays, Replayed and Tracer.
type Deps struct {
	Keys      *identity.Keys
	Fleet     *fleet.Fleet
	Memory    *admission.Memory
	Ledger    Ledger
	Transport http.RoundTripper // to the backends; its errors quote no response, and RoundTrip reads no body once it has returned
	Registry  prometheus.Registerer
	Usage     *usage.Store     // of GET /v1/usage
	Refusals  RefusalRecorder  // nil if refused requests are only logged
	Ended     func(Ended)      // is called with every request that has ended; may be nil
	Receipts  *receipt.Log     // nil if receipts are not enabled
	Replays   *replay.Store    // nil if Settings.Replays is never set
	Replayed  *budget.Replays  // nil if Replays is
	Tracer    oteltrace.Tracer // nil: requests are not traced
	Log       *zap.Logger
}

// New returns a Server.
func New(s Settings, d Deps) *Server {
	server := &Server{
		deps: d, metrics: newMetrics(d.Registry), killers: newKillers(),
		children: children{requests: map[*exchange]context.CancelCauseFunc{}}, freeText: ratelimit.New(freeTextRate),
		turns: admission.NewTurns(math.MaxInt, 0), largeBodies: admission.NewTurns(max(1, runtime.GOMAXPROCS(0)/2), 0), idle: make(chan struct{}, 1),
	}
	server.settings.Store(&s)
	return server
}

// Reload replaces the settings. Requests in flight keep those they started with.
func (s *Server) Reload(settings Settings) { s.settings.Store(&settings) }

// begin counts a request as in flight; it returns false while draining.
func (s *Server) begin() bool {
	s.inFlight.Add(1)
	if s.draining.Load() {
		s.end()
		return false
	}
	return true
}

func (s *Server) end() {
	if s.inFlight.Add(-1) == 0 && s.draining.Load() {
		wait.Wake(s.idle)
	}
}

// Draining reports whether Drain has been called.
func (s *Server) Draining() bool { return s.draining.Load() }

// InFlight returns the number of requests in flight.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Drain refuses new requests with 503 overloaded and waits until those in flight have ended or ctx is done.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	for s.inFlight.Load() > 0 {
		select {
		case <-s.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
