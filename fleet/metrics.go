package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"basegate/breaker"
)

var (
	readyDesc = prometheus.NewDesc("basegate_backend_ready",
		"1 if the last probe found the backend ready.", []string{"model", "backend"}, nil)
	stateDesc = prometheus.NewDesc("basegate_backend_state",
		"1 for the state that the backend is in.", []string{"model", "backend", "state"}, nil)
	transitionsDesc = prometheus.NewDesc("basegate_backend_transitions_total",
		"Changes of state of all backends.", []string{"from", "to"}, nil)
	estimateDesc = prometheus.NewDesc("basegate_backend_boot_estimate_seconds",
		"Expected duration of a boot of the backend: the median of the last ones, or the configured estimate.", []string{"model", "backend"}, nil)
	inFlightDesc = prometheus.NewDesc("basegate_backend_in_flight",
		"Attempts in flight at the backend.", []string{"model", "backend"}, nil)
	heldDesc = prometheus.NewDesc("basegate_backend_held_requests",
		"Requests that wait here for the turn of their account because the backend's engine is full.", []string{"model", "backend"}, nil)
	mismatchDesc = prometheus.NewDesc("basegate_backend_wrong_checkpoint",
		"1 if the backend serves another checkpoint than the configured one.", []string{"model", "backend"}, nil)
	bootFailuresDesc = prometheus.NewDesc("basegate_backend_boot_failures_total",
		"Launches and wakes of the backend that have failed.", []string{"model", "backend"}, nil)
	breakerDesc = prometheus.NewDesc("basegate_backend_breaker_open",
		"1 if the backend's breaker is open, 0.5 if it is half-open.", []string{"model", "backend"}, nil)
)

// Collector exports the fleet's state to Prometheus. It reads the state at each scrape, so removed backends leave no
// series.
type Collector struct{ fleet *Fleet }

// NewCollector returns the collector of a fleet.
func NewCollector(f *Fleet) *Collector { return &Collector{fleet: f} }

// Describe implements prometheus.Collector.
func (*Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- readyDesc
	ch <- stateDesc
	ch <- transitionsDesc
	ch <- estimateDesc
	ch <- inFlightDesc
	ch <- heldDesc
	ch <- mismatchDesc
	ch <- bootFailuresDesc
	ch <- breakerDesc
}

var breakerValue = map[breaker.State]float64{breaker.Closed: 0, breaker.HalfOpen: 0.5, breaker.Open: 1}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for t, n := range c.fleet.transitions.totals() {
		ch <- prometheus.MustNewConstMetric(transitionsDesc, prometheus.CounterValue, float64(n), string(t.from), string(t.to))
	}
	for _, m := range c.fleet.Models() {
		for _, b := range m.backends {
			ready, mismatch := 0.0, 0.0
			if b.Mismatch() != "" {
				mismatch = 1
			}
			state, _ := b.State()
			if state == Ready {
				ready = 1
			}
			ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, m.ID(), b.Name, string(state))
			if b.managed() {
				ch <- prometheus.MustNewConstMetric(estimateDesc, prometheus.GaugeValue, b.bootEstimate().Seconds(), m.ID(), b.Name)
				ch <- prometheus.MustNewConstMetric(bootFailuresDesc, prometheus.CounterValue, float64(b.bootFailures.Load()), m.ID(), b.Name)
			}
			gauge := func(d *prometheus.Desc, v float64) {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, m.ID(), b.Name)
			}
			gauge(readyDesc, ready)
			gauge(mismatchDesc, mismatch)
			gauge(inFlightDesc, float64(b.InFlight()))
			gauge(heldDesc, float64(b.Held()))
			gauge(breakerDesc, breakerValue[b.Breaker()])
		}
	}
}
