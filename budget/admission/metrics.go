package admission

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the metrics of a Queue. No label names a key.
func (q *Queue) Collectors() []prometheus.Collector {
	const prefix = "basegate_admission_"
	gauge := func(name, help string, value func(Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, func() float64 { return value(q.Stats()) })
	}
	return []prometheus.Collector{
		gauge("keys", "Keys that have requests.", func(s Stats) float64 { return float64(s.Keys) }),
		gauge("running_requests", "Requests that have a slot.", func(s Stats) float64 { return float64(s.Running) }),
		gauge("waiting_requests", "Requests that wait for a slot of their key or account.", func(s Stats) float64 { return float64(s.Waiting) }),
		gauge("buffered_bytes", "What requests keep in memory: bodies, what is counted in them, answers, and the cost of waiting.",
			func(s Stats) float64 { return float64(s.BufferedBytes) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: prefix + "refused_total", Help: "Requests refused because requests held too much memory.",
		}, func() float64 { return float64(q.Stats().Refused) }),
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
