package budget

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/usage"
)

// metrics are updated by events. The Collector reads the other metrics from the Ledger.
type metrics struct {
	settled     atomic.Int64
	interrupted atomic.Int64
	lost        atomic.Int64
	commits     prometheus.Histogram
}

func newMetrics() *metrics {
	return &metrics{commits: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "basegate_ledger_commit_seconds",
		Help:    "How long the end of a request waited until it was on disk.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
	})}
}

func (m *metrics) countEnded(state usage.State) {
	if state == usage.Settled {
		m.settled.Add(1)
	} else {
		m.interrupted.Add(1)
	}
}

func (m *metrics) observeCommit(took time.Duration) { m.commits.Observe(took.Seconds()) }

// Collector exports the metrics of a Ledger to Prometheus.
type Collector struct {
	ledger                                        *Ledger
	reserved, open, waiting, backlog, lost, ended *prometheus.Desc
}

// NewCollector returns a Collector for l.
func NewCollector(l *Ledger) *Collector {
	name := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("basegate_ledger_"+name, help, labels, nil)
	}
	return &Collector{
		ledger:   l,
		reserved: name("reserved_tokens", "Tokens reserved by requests in flight."),
		open:     name("open_reservations", "Requests that hold a reservation."),
		waiting:  name("waiting_reservations", "Requests that wait until reservations of others end."),
		backlog:  name("backlog_rows", "Rows that wait for the database."),
		lost:     name("lost_rows_total", "Rows whose end could not be written."),
		ended:    name("settlements_total", "Requests that have ended.", "state"),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.reserved, c.open, c.waiting, c.backlog, c.lost, c.ended} {
		to <- d
	}
	c.ledger.metrics.commits.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	l := c.ledger
	l.mu.Lock()
	reserved, open, waiting, backlog := l.reserved, len(l.open), l.waiting, len(l.backlog)
	l.mu.Unlock()
	gauge := func(d *prometheus.Desc, value int64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value))
	}
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(c.reserved, reserved)
	gauge(c.open, int64(open))
	gauge(c.waiting, int64(waiting))
	gauge(c.backlog, int64(backlog))
	counter(c.lost, l.metrics.lost.Load())
	counter(c.ended, l.metrics.settled.Load(), string(usage.Settled))
	counter(c.ended, l.metrics.interrupted.Load(), string(usage.Interrupted))
	l.metrics.commits.Collect(to)
}
