package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"basegate/breaker"
)

var breakerValue = map[breaker.State]float64{breaker.Closed: 0, breaker.HalfOpen: 0.5, breaker.Open: 1}

// backendMetrics are the metrics of each backend, all with the labels model and backend.
var backendMetrics = []struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	managed bool // only of backends that the gateway can start
	value   func(*Backend) float64
}{
	{
		desc("ready", "1 if the last probe found the backend ready."), prometheus.GaugeValue, false,
		func(b *Backend) float64 { return oneIf(b.is(Ready)) },
	},
	{
		desc("boot_estimate_seconds", "Expected duration of a boot of the backend: the median of the last ones, or the configured estimate."),
		prometheus.GaugeValue, true, func(b *Backend) float64 { return b.bootEstimate().Seconds() },
	},
	{
		desc("in_flight", "Attempts in flight at the backend."), prometheus.GaugeValue, false,
		func(b *Backend) float64 { return float64(b.InFlight()) },
	},
	{
		desc("held_requests", "Requests that wait here for the turn of their account because the backend's engine is full."),
		prometheus.GaugeValue, false, func(b *Backend) float64 { return float64(b.Held()) },
	},
	{
		desc("wrong_checkpoint", "1 if the backend serves another checkpoint than the configured one."), prometheus.GaugeValue, false,
		func(b *Backend) float64 { return oneIf(b.Mismatch() != "") },
	},
	{
		desc("boot_failures_total", "Launches and wakes of the backend that have failed."), prometheus.CounterValue, true,
		func(b *Backend) float64 { return float64(b.bootFailures.Load()) },
	},
	{
		desc("breaker_open", "1 if the backend's breaker is open, 0.5 if it is half-open."), prometheus.GaugeValue, false,
		func(b *Backend) float64 { return breakerValue[b.Breaker()] },
	},
}

var stateDesc = desc("state", "1 for the state that the backend is in.", "state")

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("basegate_backend_"+name, help, append([]string{"model", "backend"}, labels...), nil)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector. The state is read at each scrape, so removed backends leave no series.
func (f *Fleet) Describe(ch chan<- *prometheus.Desc) {
	ch <- stateDesc
	f.transitions.counts.Describe(ch)
	for _, m := range backendMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (f *Fleet) Collect(ch chan<- prometheus.Metric) {
	f.transitions.counts.Collect(ch)
	for _, b := range f.catalogue.Load().backends() {
		state, _ := b.State()
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, b.modelID, b.Name, string(state))
		for _, m := range backendMetrics {
			if !m.managed || b.managed() {
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(b), b.modelID, b.Name)
			}
		}
	}
}
