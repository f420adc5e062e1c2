// Package proxy is the /v1 API: it takes a request through the contract's order of judgement, sends the spliced body
// to a backend, and brings the answer back as it came. completion.go reads as the way of a request; attempt.go is
// what may fail and be tried again; plain.go and stream.go are the two forms of an answer.
//
// Who may ask is the business of keys, what a body may say of validate, where it goes of fleet, and what an answer of
// vLLM means of breaker.
package proxy

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/fleet"
	"basegate/keys"
)

// Settings are the limits of the API. Sizes are bytes.
type Settings struct {
	MaxBodyBytes     int64
	FirstByteTimeout time.Duration              // plain: the whole answer; stream: up to the first event
	IdleTimeout      time.Duration              // between two events
	Attempts         int                        // at a request, before the first byte has gone to the client
	ClientAddress    func(*http.Request) string // where a request came from
}

// Server serves the /v1 API. It is safe for concurrent use.
type Server struct {
	settings  atomic.Pointer[Settings]
	keys      *keys.Directory
	fleet     *fleet.Fleet
	transport http.RoundTripper
	log       *zap.Logger
	metrics   *metrics
	started   time.Time
	draining  atomic.Bool
	inFlight  atomic.Int64
	idle      chan struct{} // told when the last request in flight ends
}

// New makes a Server. Requests go to the backends through transport; the metrics are registered with registry.
func New(s Settings, directory *keys.Directory, models *fleet.Fleet, transport http.RoundTripper, registry prometheus.Registerer, log *zap.Logger) *Server {
	server := &Server{
		keys: directory, fleet: models, transport: transport, log: log,
		metrics: newMetrics(registry), started: time.Now(), idle: make(chan struct{}, 1),
	}
	server.settings.Store(&s)
	return server
}

// Reload takes over other limits; requests under way keep theirs.
func (s *Server) Reload(settings Settings) { s.settings.Store(&settings) }
