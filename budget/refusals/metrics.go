package refusals

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the metrics of a Recorder.
func (r *Recorder) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "basegate_refusals_recorded_total",
			Help: "Refused requests of known accounts that have a row of their own.",
		}, func() float64 { return float64(r.recorded.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "basegate_refusals_dropped_total",
			Help: "Refused requests of known accounts that are only counted, because there were too many.",
		}, func() float64 { return float64(r.dropped.Load()) }),
	}
}
