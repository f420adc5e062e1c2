package budget

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/usage"
)

// Metrics are the metrics of a ledger, under the same names whichever engine it has. They are updated by events, except for
// Load, which Collect is given.
type Metrics struct {
	Lost atomic.Int64 // rows whose end could not be written

	settled, interrupted                            atomic.Int64
	commits                                         prometheus.Histogram
	reserved, open, waiting, backlog, lost, outcome *prometheus.Desc
}

// Load is what a ledger holds at the moment.
type Load struct {
	Reserved int64 // tokens
	Open     int   // requests with a reservation
	Waiting  int   // requests that wait for one
	Backlog  int   // rows that wait for the database
}

// NewMetrics returns the metrics of a new ledger.
func NewMetrics() *Metrics {
	return &Metrics{
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metricPrefix + "commit_seconds",
			Help:    "How long the end of a request waited until it was on disk.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
		reserved: NewDesc("reserved_tokens", "Tokens reserved by requests in flight."),
		open:     NewDesc("open_reservations", "Requests that hold a reservation."),
		waiting:  NewDesc("waiting_reservations", "Requests that wait until reservations of others end."),
		backlog:  NewDesc("backlog_rows", "Rows that wait for the database."),
		lost:     NewDesc("lost_rows_total", "Rows whose end could not be written."),
		outcome:  NewDesc("settlements_total", "Requests that have ended.", "state"),
	}
}

const metricPrefix = "basegate_ledger_"

// NewDesc describes a metric of a ledger, whose names have a common prefix.
func NewDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
}

// CountEnded counts a request that has ended.
func (m *Metrics) CountEnded(state usage.State) {
	if state == usage.Settled {
		m.settled.Add(1)
	} else {
		m.interrupted.Add(1)
	}
}

// ObserveCommit records how long the end of a request waited until it was on disk.
func (m *Metrics) ObserveCommit(took time.Duration) { m.commits.Observe(took.Seconds()) }

// Describe is that of a prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.reserved, m.open, m.waiting, m.backlog, m.lost, m.outcome} {
		to <- d
	}
	m.commits.Describe(to)
}

// Collect is that of a prometheus.Collector, with the ledger's load.
func (m *Metrics) Collect(to chan<- prometheus.Metric, l Load) {
	gauge := func(d *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(m.reserved, float64(l.Reserved))
	gauge(m.open, float64(l.Open))
	gauge(m.waiting, float64(l.Waiting))
	gauge(m.backlog, float64(l.Backlog))
	counter(m.lost, m.Lost.Load())
	counter(m.outcome, m.settled.Load(), string(usage.Settled))
	counter(m.outcome, m.interrupted.Load(), string(usage.Interrupted))
	m.commits.Collect(to)
}

// Collector exports the metrics of a Ledger to Prometheus.
type Collector struct{ ledger *Ledger }

// NewCollector returns a Collector for l.
func NewCollector(l *Ledger) *Collector { return &Collector{l} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) { c.ledger.metrics.Describe(to) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	l := c.ledger
	l.mu.Lock()
	now := Load{Reserved: l.reserved, Open: len(l.open), Waiting: l.waiting, Backlog: len(l.backlog)}
	l.mu.Unlock()
	l.metrics.Collect(to, now)
}
