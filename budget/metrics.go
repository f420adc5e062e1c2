package budget

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/usage"
)

// Metrics are the metrics of a ledger, under the same names whichever engine it has.
type Metrics struct {
	Lost prometheus.Counter // rows whose end could not be written

	settlements *prometheus.CounterVec
	commits     prometheus.Histogram
	collectors  []prometheus.Collector
}

// Load is what a ledger holds at the moment, at this gateway.
type Load struct {
	Reserved int64 // tokens
	Open     int   // requests with a reservation
	Backlog  int   // rows that wait for the database
	Keys     int   // that have requests
	Running  int   // requests with a reservation and a slot: all but lines of batches
	Waiting  int   // requests that wait for a reservation, of which perhaps
	Queued   int   // these wait for a slot, and
	Blocked  int   // these for tokens that others have reserved
}

// Stats are the live requests of a key or an account, at all gateways.
type Stats struct{ Running, Waiting int }

const (
	metricPrefix    = "basegate_ledger_"
	admissionPrefix = "basegate_admission_" // of the metrics of slots
)

// NewMetrics returns the metrics of a new ledger with that load.
func NewMetrics(load func() Load) *Metrics {
	m := &Metrics{
		settlements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "settlements_total", Help: "Requests that have ended.",
		}, []string{"state"}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metricPrefix + "commit_seconds",
			Help:    "How long the end of a request waited until it was on disk.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	for _, state := range []usage.State{usage.Settled, usage.Interrupted} { // exported before the first request too
		m.settlements.WithLabelValues(string(state))
	}
	gauge := func(name, help string, value func(Load) int) prometheus.Collector {
		o := prometheus.GaugeOpts{Name: name, Help: help}
		return prometheus.NewGaugeFunc(o, func() float64 { return float64(value(load())) })
	}
	m.collectors = []prometheus.Collector{
		gauge(metricPrefix+"reserved_tokens", "Tokens reserved by requests in flight.", func(l Load) int { return int(l.Reserved) }),
		gauge(metricPrefix+"open_reservations", "Requests that hold a reservation.", func(l Load) int { return l.Open }),
		gauge(metricPrefix+"waiting_reservations", "Requests that wait until reservations of others end.", func(l Load) int { return l.Blocked }),
		gauge(metricPrefix+"backlog_rows", "Rows that wait for the database.", func(l Load) int { return l.Backlog }),
		gauge(admissionPrefix+"keys", "Keys that have requests.", func(l Load) int { return l.Keys }),
		gauge(admissionPrefix+"running_requests", "Requests that have a slot.", func(l Load) int { return l.Running }),
		gauge(admissionPrefix+"waiting_requests", "Requests that wait for a slot of their key or account.", func(l Load) int { return l.Queued }),
		m.settlements, m.commits,
	}
	m.Lost = m.NewCounter("lost_rows_total", "Rows whose end could not be written.")
	return m
}

// NewCounter adds a counter that only this ledger has.
func (m *Metrics) NewCounter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help})
	m.collectors = append(m.collectors, c)
	return c
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector { return m.collectors }

// CountEnded counts a request that has ended.
func (m *Metrics) CountEnded(state usage.State) { m.settlements.WithLabelValues(string(state)).Inc() }

// ObserveCommit records how long the end of a request waited until it was on disk.
func (m *Metrics) ObserveCommit(took time.Duration) { m.commits.Observe(took.Seconds()) }

// Collectors returns the metrics of a Ledger.
func (l *Ledger) Collectors() []prometheus.Collector { return l.metrics.Collectors() }

// Load returns what the ledger holds.
func (l *Ledger) Load() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := Load{Open: len(l.open), Backlog: len(l.backlog)}
	keys := map[string]struct{}{}
	for _, r := range l.open {
		sum.Reserved += r.Input + r.Output
		if !r.lease.Line {
			keys[r.lease.Key] = struct{}{}
		}
	}
	for a := range l.active {
		for _, k := range a.waiting {
			keys[k.ID] = struct{}{}
		}
		queued := a.Queued()
		sum.Running += a.Running
		sum.Waiting, sum.Queued, sum.Blocked = sum.Waiting+a.Waiting, sum.Queued+queued, sum.Blocked+a.Waiting-queued
	}
	sum.Keys = len(keys)
	return sum
}

// Stats returns the requests of a payer's key and of all keys of its account.
func (l *Ledger) Stats(p Payer) (key, account Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.keys[p.Key]; k != nil {
		key = Stats{k.Running, k.Waiting}
	}
	if a := l.accounts[p.Account]; a != nil {
		account = Stats{a.Running, a.Waiting}
	}
	return key, account
}
