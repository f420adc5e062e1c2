package cluster

import (
	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget"
)

// metrics are those of every ledger, under the same names, for this gateway, and counters of the calls.
type metrics struct {
	*budget.Metrics

	calls, operations, resent, bisected, conflicts prometheus.Counter
	fenced, reaped, replayed, uncharged            prometheus.Counter
}

func newMetrics(load func() budget.Load) *metrics {
	m := budget.NewMetrics(load)
	return &metrics{
		Metrics:    m,
		calls:      m.NewCounter("calls_total", "Calls of the ledger in the database."),
		operations: m.NewCounter("operations_total", "Operations in the calls of the ledger."),
		resent:     m.NewCounter("resent_calls_total", "Calls of the ledger that were sent again because their outcome was unknown."),
		conflicts:  m.NewCounter("conflicts_total", "Calls of the ledger that were made again because others had changed the rows."),
		bisected:   m.NewCounter("split_calls_total", "Calls of the ledger that were split because the database refused a value."),
		fenced:     m.NewCounter("fenced_total", "Epochs of this gateway that another gateway, or a failover, has ended."),
		reaped:     m.NewCounter("reaped_gateways_total", "Gateways without heartbeats whose epochs this gateway has ended."),
		replayed:   m.NewCounter("replayed_settlements_total", "Settlements that were written again after a failover had lost them."),
		uncharged:  m.NewCounter("uncharged_tokens_total", "Tokens that clients received and that are not charged, since the epoch had ended."),
	}
}

// Collectors returns the metrics of a Ledger.
func (l *Ledger) Collectors() []prometheus.Collector { return l.metrics.Collectors() }
