package mockvllm

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// engineMetrics are those of GET /metrics, by vLLM's names.
type engineMetrics struct {
	handler   http.Handler
	cached    prometheus.Gauge // tokens of the running requests in the KV cache, of all that it has room for
	generated prometheus.Counter
	perToken  prometheus.Histogram
}

// cacheContexts is the room in the simulated KV cache, in full contexts.
const cacheContexts = 16

func newEngineMetrics(s *Server) *engineMetrics {
	registry := prometheus.NewRegistry()
	labels := prometheus.Labels{"model_name": s.models[0]}
	if !s.spec.V0 {
		labels["engine"] = "0"
	}
	register := prometheus.WrapRegistererWith(labels, registry)
	m := &engineMetrics{
		handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true}),
		cached:  prometheus.NewGauge(prometheus.GaugeOpts{Name: s.spec.CacheGauge, Help: "KV-cache usage. 1 means 100 percent usage."}),
		generated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vllm:generation_tokens_total", Help: "Number of generation tokens processed.",
		}),
		perToken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: s.spec.TokenLatency, Help: "Histogram of inter-token latency in seconds.", Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5},
		}),
	}
	register.MustRegister(m.cached, m.generated, m.perToken,
		prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:num_preemptions_total", Help: "Cumulative number of preemption from the engine."}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vllm:num_requests_running", Help: "Number of requests in model execution batches.",
		}, func() float64 { running, _ := s.queue.load(); return float64(running) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vllm:num_requests_waiting", Help: "Number of requests waiting to be processed.",
		}, func() float64 { _, waiting := s.queue.load(); return float64(waiting) }),
	)
	if !s.spec.V0 {
		register.MustRegister(
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "vllm:prefix_cache_queries_total", Help: "Prefix cache queries, in terms of number of queried tokens.",
			}, func() float64 { queries, _ := s.cache.counts(); return float64(queries) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "vllm:prefix_cache_hits_total", Help: "Prefix cache hits, in terms of number of cached tokens.",
			}, func() float64 { _, hits := s.cache.counts(); return float64(hits) }),
		)
	}
	return m
}

// hold counts tokens that a request has in the KV cache until it ends; a negative number leaves it.
func (m *engineMetrics) hold(tokens, maxModelLen int) {
	m.cached.Add(float64(tokens) / float64(cacheContexts*maxModelLen))
}

// step records what the engine generated since the last step, which is zero before the first.
func (m *engineMetrics) step(gained int, last time.Time) {
	m.generated.Add(float64(gained))
	if !last.IsZero() {
		m.perToken.Observe(time.Since(last).Seconds())
	}
}

func (s *Server) serveMetrics(x *exchange) { s.metrics.handler.ServeHTTP(x.w, x.r) }
