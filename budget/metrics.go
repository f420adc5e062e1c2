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

// Load is what a ledger holds at the moment.
type Load struct {
	Reserved int64 // tokens
	Open     int   // requests with a reservation
	Waiting  int   // requests that wait for one
	Backlog  int   // rows that wait for the database
}

const metricPrefix = "basegate_ledger_"

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
	gauge := func(name, help string, value func(Load) float64) prometheus.Collector {
		o := prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}
		return prometheus.NewGaugeFunc(o, func() float64 { return value(load()) })
	}
	m.collectors = []prometheus.Collector{
		gauge("reserved_tokens", "Tokens reserved by requests in flight.", func(l Load) float64 { return float64(l.Reserved) }),
		gauge("open_reservations", "Requests that hold a reservation.", func(l Load) float64 { return float64(l.Open) }),
		gauge("waiting_reservations", "Requests that wait until reservations of others end.", func(l Load) float64 { return float64(l.Waiting) }),
		gauge("backlog_rows", "Rows that wait for the database.", func(l Load) float64 { return float64(l.Backlog) }),
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

func (l *Ledger) load() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := Load{Open: len(l.open), Backlog: len(l.backlog)}
	for _, r := range l.open {
		sum.Reserved += r.Input + r.Output
	}
	for _, a := range l.accounts {
		sum.Waiting += a.Waiting
	}
	return sum
}
