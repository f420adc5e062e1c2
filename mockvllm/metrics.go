package mockvllm

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	labels := prometheus.Labels{"model_name": s.options.Models[0]}
	if !s.spec.V0 {
		labels["engine"] = "0"
	}
	register := promauto.With(prometheus.WrapRegistererWith(labels, registry))
	m := &engineMetrics{
		handler:   promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true}),
		cached:    register.NewGauge(prometheus.GaugeOpts{Name: s.spec.CacheGauge, Help: "KV-cache usage. 1 means 100 percent usage."}),
		generated: register.NewCounter(prometheus.CounterOpts{Name: "vllm:generation_tokens_total", Help: "Number of generation tokens processed."}),
		perToken: register.NewHistogram(prometheus.HistogramOpts{
			Name: s.spec.TokenLatency, Help: "Histogram of inter-token latency in seconds.", Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5},
		}),
	}
	if !s.spec.Rust { // it shows its engines' metrics without that
		blocks, caching := s.cache.capacity, "True"
		if blocks == 0 {
			blocks, caching = cacheContexts*s.options.MaxModelLen/blockTokens, "False"
		}
		register.NewGauge(prometheus.GaugeOpts{
			Name: "vllm:cache_config_info", Help: "Information of the LLMEngine CacheConfig", ConstLabels: prometheus.Labels{
				"block_size": strconv.Itoa(blockTokens), "num_gpu_blocks": strconv.Itoa(blocks), "enable_prefix_caching": caching,
			},
		}).Set(1)
	}
	register.NewCounter(prometheus.CounterOpts{Name: "vllm:num_preemptions_total", Help: "Cumulative number of preemption from the engine."})
	gauge := func(name, help string, value func() int) {
		register.NewGaugeFunc(prometheus.GaugeOpts{Name: "vllm:" + name, Help: help}, func() float64 { return float64(value()) })
	}
	counter := func(name, help string, value func() int) {
		register.NewCounterFunc(prometheus.CounterOpts{Name: "vllm:" + name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("num_requests_running", "Number of requests in model execution batches.", func() int { n, _ := s.queue.load(); return n })
	gauge("num_requests_waiting", "Number of requests waiting to be processed.", func() int { _, n := s.queue.load(); return n })
	if !s.spec.V0 {
		counter("prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", func() int { n, _ := s.cache.counts(); return n })
		counter("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", func() int { _, n := s.cache.counts(); return n })
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
