// Package history says what the gateways did in the last day, so that an operator sees it without Prometheus: requests,
// tokens, errors, queue depth and time to first token, by model and backend, and the events of the fleet and of budgets.
//
// The last hour is what this gateway has seen, a step every ten seconds in a ring in memory, which a restart empties. The
// last day is what the ledger's rollups know, an hour a step and of all gateways on the database. What only a gateway
// knows, which are its queue and its backends, it adds from a second ring. Events are rows of all gateways.
//
// Its memory is bounded by the configuration: a step has a point for each configured model and backend that was used in it.
//
// It holds counts, names of models and backends, error codes, and the ids of accounts and keys whose budgets raised an
// alarm; nothing of prompts or completions, and no addresses. Metrics for Prometheus are left to the packages that
// count them.
package history

import (
	"context"
	"sync"
	"time"

	"basegate/budget/usage"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/wait"
	"basegate/proxy"
)

const (
	// Step is the time that one point of the last hour covers.
	Step = 10 * time.Second
	// Keep is how far back sums and events are kept.
	Keep = 24 * time.Hour
)

// Key names a series: a backend, a model (Backend is empty) or all requests (both are empty).
type Key struct{ Model, Backend string }

// codeKey names the requests of a model that ended with an error code.
type codeKey struct{ model, code string }

// ClientGone is the code of a request whose client has disconnected, which is nobody's failure.
const ClientGone = "client_gone"

// Outcome says by whose fault a request has ended with an error code.
type Outcome string

// The outcomes. That of a request that has succeeded is empty.
const (
	Failed  Outcome = "error"       // of the service
	Refused Outcome = "refused"     // as the client's fault, with a status 4xx, or because the model is starting
	Left    Outcome = "client left" // nobody's failure
)

func outcomeOf(code string) Outcome {
	switch status := apierr.Code(code).Status(); {
	case code == "":
		return ""
	case code == ClientGone:
		return Left
	case code == string(apierr.ColdBoot), status >= 400 && status < 500 && !apierr.Code(code).FromUpstream():
		return Refused
	}
	return Failed
}

// Gauges are sampled with every step.
type Gauges struct {
	Waiting  int         // requests that wait for a slot or for the reservations of others
	Running  int         // requests that have a slot
	InFlight map[Key]int // attempts at each backend
}

// History records what this gateway does, and reads what all have done. It is safe for concurrent use.
type History struct {
	db     *database.DB
	ledger *usage.Store
	sample func() Gauges
	clock  func() time.Time

	gateway string // see ShareAs

	mu    sync.Mutex // guards the rings
	steps ring
	hours ring // without what the ledger knows

	day cached[Report]
	top cached[[][]usage.Row]

	loop wait.Loop
}

// New returns a History. It calls sample at every step, which must return at once.
func New(db *database.DB, ledger *usage.Store, sample func() Gauges) *History {
	return &History{
		db: db, ledger: ledger, sample: sample, clock: time.Now,
		steps: newRing(Step, time.Hour), hours: newRing(time.Hour, Keep),
	}
}

// ShareAs names the gateway among several that share a PostgreSQL database. Call it before Start.
func (h *History) ShareAs(gateway string) { h.gateway = gateway }

// Start samples the gauges until Close.
func (h *History) Start(ctx context.Context) {
	h.loop.Start(ctx, func(ctx context.Context) { wait.Every(ctx, Step, func(context.Context) { h.recordGauges() }) })
}

// Close ends what Start has started.
func (h *History) Close() { h.loop.Close() }

// Record counts a request that has ended.
func (h *History) Record(q proxy.Ended) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	step := h.steps.at(now)
	step.at(Key{}).add(&q)
	if q.Code != "" {
		step.codes[codeKey{q.Model, q.Code}]++
	}
	if q.Model != "" {
		step.at(Key{Model: q.Model}).add(&q)
	}
	if q.Backend != "" {
		step.at(Key{q.Model, q.Backend}).add(&q)
		h.hours.at(now).at(Key{q.Model, q.Backend}).add(&q)
	}
}

func (h *History) recordGauges() {
	now, g := h.clock(), h.sample()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps.at(now).sample(&g)
	h.hours.at(now).sample(&g)
}
