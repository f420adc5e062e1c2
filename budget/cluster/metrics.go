package cluster

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/usage"
)

// metrics are updated by events. The Collector reads the other metrics from the Ledger.
type metrics struct {
	settled, interrupted, lost          atomic.Int64
	calls, operations, resent, bisected atomic.Int64
	reaped, fenced, uncharged, replayed atomic.Int64
	commits                             prometheus.Histogram
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

// Stats are totals since New.
type Stats struct {
	Calls      int64 // of ledger_v1 that were executed
	Operations int64 // in them
	Resent     int64 // calls that were sent again
	Bisected   int64 // calls that were split because the database refused a value
	Reaped     int64 // gateways whose epochs this one has ended
	Fenced     int64 // own epochs that have ended
	Replayed   int64 // settlements that were written again after the database had lost them
	Uncharged  int64 // tokens sent to clients after the last checkpoint, and not charged since the epoch has ended
}

// Stats returns the totals.
func (l *Ledger) Stats() Stats {
	m := l.metrics
	return Stats{
		Calls: m.calls.Load(), Operations: m.operations.Load(), Resent: m.resent.Load(), Bisected: m.bisected.Load(),
		Reaped: m.reaped.Load(), Fenced: m.fenced.Load(), Replayed: m.replayed.Load(), Uncharged: m.uncharged.Load(),
	}
}

// Collector exports the metrics of a Ledger to Prometheus: those of budget.Collector, under the same names, for this gateway,
// and those of the calls.
type Collector struct {
	ledger                                        *Ledger
	reserved, open, waiting, backlog, lost, ended *prometheus.Desc
	totals                                        []total
}

// total is a counter of Stats.
type total struct {
	desc  *prometheus.Desc
	value func(Stats) int64
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
		totals: []total{
			{name("calls_total", "Calls of the ledger in the database."), func(s Stats) int64 { return s.Calls }},
			{name("operations_total", "Operations in the calls of the ledger."), func(s Stats) int64 { return s.Operations }},
			{
				name("resent_calls_total", "Calls of the ledger that were sent again because their outcome was unknown."),
				func(s Stats) int64 { return s.Resent },
			},
			{
				name("split_calls_total", "Calls of the ledger that were split because the database refused a value."),
				func(s Stats) int64 { return s.Bisected },
			},
			{
				name("fenced_total", "Epochs of this gateway that another gateway, or a failover, has ended."),
				func(s Stats) int64 { return s.Fenced },
			},
			{
				name("reaped_gateways_total", "Gateways without heartbeats whose epochs this gateway has ended."),
				func(s Stats) int64 { return s.Reaped },
			},
			{
				name("replayed_settlements_total", "Settlements that were written again after a failover had lost them."),
				func(s Stats) int64 { return s.Replayed },
			},
			{
				name("uncharged_tokens_total", "Tokens that clients received and that are not charged, since the epoch had ended."),
				func(s Stats) int64 { return s.Uncharged },
			},
		},
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.reserved, c.open, c.waiting, c.backlog, c.lost, c.ended} {
		to <- d
	}
	for _, t := range c.totals {
		to <- t.desc
	}
	c.ledger.metrics.commits.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	l := c.ledger
	var sum laneCounts
	if e := l.epoch.Load(); e != nil {
		for _, lane := range e.lanes {
			n := lane.count()
			sum.waiting, sum.open, sum.unsettled = sum.waiting+n.waiting, sum.open+n.open, sum.unsettled+n.unsettled
			sum.reserved += n.reserved
		}
	}
	gauge := func(d *prometheus.Desc, value int64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value))
	}
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(c.reserved, sum.reserved)
	gauge(c.open, int64(sum.open))
	gauge(c.waiting, int64(sum.waiting))
	gauge(c.backlog, int64(sum.unsettled))
	counter(c.lost, l.metrics.lost.Load())
	counter(c.ended, l.metrics.settled.Load(), string(usage.Settled))
	counter(c.ended, l.metrics.interrupted.Load(), string(usage.Interrupted))
	stats := l.Stats()
	for _, t := range c.totals {
		counter(t.desc, t.value(stats))
	}
	l.metrics.commits.Collect(to)
}
