package cluster

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget"
)

// metrics are those of every ledger, and counters of the calls, which Stats returns.
type metrics struct {
	*budget.Metrics

	calls, operations, resent, bisected atomic.Int64
	reaped, fenced, uncharged, replayed atomic.Int64
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
	ledger *Ledger
	totals []total
}

// total is a counter of Stats.
type total struct {
	desc  *prometheus.Desc
	value func(Stats) int64
}

// NewCollector returns a Collector for l.
func NewCollector(l *Ledger) *Collector {
	return &Collector{
		ledger: l,
		totals: []total{
			{budget.NewDesc("calls_total", "Calls of the ledger in the database."), func(s Stats) int64 { return s.Calls }},
			{budget.NewDesc("operations_total", "Operations in the calls of the ledger."), func(s Stats) int64 { return s.Operations }},
			{
				budget.NewDesc("resent_calls_total", "Calls of the ledger that were sent again because their outcome was unknown."),
				func(s Stats) int64 { return s.Resent },
			},
			{
				budget.NewDesc("split_calls_total", "Calls of the ledger that were split because the database refused a value."),
				func(s Stats) int64 { return s.Bisected },
			},
			{
				budget.NewDesc("fenced_total", "Epochs of this gateway that another gateway, or a failover, has ended."),
				func(s Stats) int64 { return s.Fenced },
			},
			{
				budget.NewDesc("reaped_gateways_total", "Gateways without heartbeats whose epochs this gateway has ended."),
				func(s Stats) int64 { return s.Reaped },
			},
			{
				budget.NewDesc("replayed_settlements_total", "Settlements that were written again after a failover had lost them."),
				func(s Stats) int64 { return s.Replayed },
			},
			{
				budget.NewDesc("uncharged_tokens_total", "Tokens that clients received and that are not charged, since the epoch had ended."),
				func(s Stats) int64 { return s.Uncharged },
			},
		},
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	c.ledger.metrics.Describe(to)
	for _, t := range c.totals {
		to <- t.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	l := c.ledger
	l.metrics.Collect(to, l.load())
	stats := l.Stats()
	for _, t := range c.totals {
		to <- prometheus.MustNewConstMetric(t.desc, prometheus.CounterValue, float64(t.value(stats)))
	}
}
