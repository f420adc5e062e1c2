package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/breaker"
	apierr "basegate/errors"
)

// metrics are the metrics of the API. Label values come only from the configuration and the code, so that no client can
// create series.
type metrics struct {
	requests   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	queued     *prometheus.HistogramVec
	firstToken *prometheus.HistogramVec
	tokens     *prometheus.CounterVec
	unreserved *prometheus.CounterVec
	attempts   *prometheus.CounterVec
	overloaded *prometheus.CounterVec
}

// secondsBuckets suit completions, which take from milliseconds to an hour.
var secondsBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "basegate_requests_total",
			Help: "Requests of the API that have ended, by model and error code (empty: success).",
		}, []string{"model", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "basegate_request_seconds", Buckets: secondsBuckets,
			Help: "Time from a request's arrival to the end of its answer.",
		}, []string{"model"}),
		queued: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "basegate_queue_seconds", Buckets: secondsBuckets,
			Help: "Time that a request waited for a slot of its key and for the reservations of others.",
		}, []string{"model"}),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "basegate_first_token_seconds", Buckets: secondsBuckets,
			Help: "Time from a streamed request's arrival to its first event.",
		}, []string{"model"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "basegate_tokens_total",
			Help: "Tokens charged, by model and kind (prompt, completion).",
		}, []string{"model", "kind"}),
		unreserved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "basegate_unreserved_tokens_total",
			Help: "Tokens beyond what was reserved for a request, by what its backend reported or sent. Nobody is charged for them.",
		}, []string{"model", "backend"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "basegate_attempts_total",
			Help: "Attempts at backends, by model, backend and class of the outcome.",
		}, []string{"model", "backend", "class"}),
	}
	m.overloaded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "basegate_overloaded_total",
		Help: "Requests that got overloaded, by what was lacking (memory, database, connections, backends, draining).",
	}, []string{"reason"})
	for _, s := range apierr.Shortages {
		m.overloaded.WithLabelValues(string(s)) // a counter that begins with its first event hides it from increase()
	}
	registry.MustRegister(m.requests, m.durations, m.queued, m.firstToken, m.tokens, m.unreserved, m.attempts, m.overloaded)
	return m
}

func (m *metrics) request(model string, x *exchange, total time.Duration) {
	m.requests.WithLabelValues(model, string(x.delivery.code)).Inc()
	if x.delivery.code == apierr.Overloaded {
		m.overloaded.WithLabelValues(string(apierr.From(x.delivery.failure).Shortage)).Inc()
	}
	if model == "" {
		return
	}
	m.durations.WithLabelValues(model).Observe(total.Seconds())
	if x.slot != nil {
		m.queued.WithLabelValues(model).Observe(x.timings.queued.Seconds())
	}
	if x.timings.firstToken > 0 {
		m.firstToken.WithLabelValues(model).Observe(x.timings.firstToken.Seconds())
	}
	if x.charge.settled {
		m.tokens.WithLabelValues(model, "prompt").Add(float64(x.charge.usage.Prompt))
		m.tokens.WithLabelValues(model, "completion").Add(float64(x.charge.usage.Completion))
	}
}

func (m *metrics) attempt(model, backend string, c breaker.Class) {
	m.attempts.WithLabelValues(model, backend, c.String()).Inc()
}
