package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"basegate/breaker"
)

var (
	readyDesc = prometheus.NewDesc("basegate_backend_ready",
		"1 where the last probe found the backend ready.", []string{"model", "backend"}, nil)
	inFlightDesc = prometheus.NewDesc("basegate_backend_in_flight",
		"Attempts under way at the backend.", []string{"model", "backend"}, nil)
	breakerDesc = prometheus.NewDesc("basegate_backend_breaker_open",
		"1 where the backend's breaker is open, 0.5 where it is half-open.", []string{"model", "backend"}, nil)
)

// Collector reports the fleet's state to Prometheus when it is asked, so that a reload leaves no series behind.
type Collector struct{ fleet *Fleet }

// NewCollector makes the collector of a fleet.
func NewCollector(f *Fleet) *Collector { return &Collector{fleet: f} }

// Describe implements prometheus.Collector.
func (*Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- readyDesc
	ch <- inFlightDesc
	ch <- breakerDesc
}

var openness = map[breaker.State]float64{breaker.Closed: 0, breaker.HalfOpen: 0.5, breaker.Open: 1}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.fleet.Models() {
		for _, b := range m.backends {
			ready := 0.0
			if state, _ := b.State(); state == Ready {
				ready = 1
			}
			gauge := func(d *prometheus.Desc, v float64) {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, m.ID(), b.Name)
			}
			gauge(readyDesc, ready)
			gauge(inFlightDesc, float64(b.InFlight()))
			gauge(breakerDesc, openness[b.Breaker()])
		}
	}
}
