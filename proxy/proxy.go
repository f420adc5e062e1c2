// Package proxy is the /v1 API: it takes a request through the contract's order of judgement, sends the spliced body
// to a backend, and brings the answer back as it came. completion.go reads as the way of a request; attempt.go is
// what may fail and be tried again; plain.go and stream.go are the two forms of an answer; charge.go is what each way out
// costs.
//
// Who may ask is the business of identity, what a body may say of validate, whose turn it is of admission, what it may
// cost of budget, where it goes of fleet, and what an answer of vLLM means of breaker.
package proxy

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/admission"
	"basegate/budget"
	"basegate/fleet"
	"basegate/identity"
)

// Settings are the limits of the API. Sizes are bytes.
type Settings struct {
	MaxBodyBytes      int64
	FirstByteTimeout  time.Duration              // plain: the whole answer; stream: up to the first event
	IdleTimeout       time.Duration              // between two events
	ConcurrencyPerKey int                        // requests at a time of a key that has no limit of its own
	Attempts          int                        // at a request, before the first byte has gone to the client
	ClientAddress     func(*http.Request) string // where a request came from
}

// Server serves the /v1 API. It is safe for concurrent use.
type Server struct {
	settings  atomic.Pointer[Settings]
	keys      *identity.Keys
	fleet     *fleet.Fleet
	queue     *admission.Queue
	ledger    *budget.Ledger
	transport http.RoundTripper
	log       *zap.Logger
	metrics   *metrics
	started   time.Time
	draining  atomic.Bool
	inFlight  atomic.Int64
	idle      chan struct{} // told when the last request in flight ends
}

// Deps are what a Server decides nothing of. All are needed.
type Deps struct {
	Keys      *identity.Keys        // who asks
	Fleet     *fleet.Fleet          // where it runs
	Queue     *admission.Queue      // whose turn it is
	Ledger    *budget.Ledger        // what it may cost
	Transport http.RoundTripper     // to the backends; its errors go to the log, and must quote nothing of what comes
	Registry  prometheus.Registerer // of the API's own metrics
	Log       *zap.Logger
}

// New makes a Server.
func New(s Settings, p Deps) *Server {
	server := &Server{
		keys: p.Keys, fleet: p.Fleet, queue: p.Queue, ledger: p.Ledger, transport: p.Transport, log: p.Log,
		metrics: newMetrics(p.Registry), started: time.Now(), idle: make(chan struct{}, 1),
	}
	server.settings.Store(&s)
	return server
}

// Reload takes over other limits; requests under way keep theirs.
func (s *Server) Reload(settings Settings) { s.settings.Store(&settings) }
