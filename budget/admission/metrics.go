package admission

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the metrics of a Memory. No label names a key.
func (m *Memory) Collectors() []prometheus.Collector {
	const prefix = "basegate_admission_"
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "buffered_bytes", Help: "What requests keep in memory: bodies, what is counted in them, answers, and the cost of waiting.",
		}, func() float64 { return float64(m.Stats().BufferedBytes) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: prefix + "refused_total", Help: "Requests refused because requests held too much memory.",
		}, func() float64 { return float64(m.Stats().Refused) }),
	}
}

// Collectors returns the metrics of a Turns for that work. No label names an account.
func (t *Turns) Collectors(work string) []prometheus.Collector {
	const prefix = "basegate_turns_"
	labels := prometheus.Labels{"work": work}
	gauge := func(name, help string, value func(TurnsStats) float64) prometheus.Collector {
		o := prometheus.GaugeOpts{Name: prefix + name, Help: help, ConstLabels: labels}
		return prometheus.NewGaugeFunc(o, func() float64 { return value(t.Stats()) })
	}
	return []prometheus.Collector{
		gauge("places", "Places that accounts get in turn, by the work that needs one.", func(s TurnsStats) float64 { return float64(s.Places) }),
		gauge("running", "Places that are held.", func(s TurnsStats) float64 { return float64(s.Running) }),
		gauge("waiting", "Calls that wait for a place.", func(s TurnsStats) float64 { return float64(s.Waiting) }),
		gauge("longest_wait_seconds", "How long the call that waits longest has waited; 0 if none waits.",
			func(s TurnsStats) float64 { return s.Longest.Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: prefix + "refused_total", Help: "Calls that gave up waiting for a place.", ConstLabels: labels,
		}, func() float64 { return float64(t.Stats().Refused) }),
	}
}
