package mockvllm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// engineMetrics holds what GET /metrics reports.
type engineMetrics struct {
	mu              sync.Mutex
	cachedTokens    int // tokens of the running outputs and their prompts in the KV cache
	promptTokens    int
	generatedTokens int
	finished        map[string]int
	firstToken      histogram
	perToken        histogram
	endToEnd        histogram
	jobs            map[*job]*jobProgress
}

// jobProgress is a running job's progress as of its last step.
type jobProgress struct {
	started   time.Time
	last      time.Time
	generated int
}

type histogram struct {
	bounds []float64
	counts []int
	sum    float64
	total  int
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, counts: make([]int, len(bounds))}
}

func (h *histogram) observe(seconds float64) {
	for i, bound := range h.bounds {
		if seconds <= bound {
			h.counts[i]++
		}
	}
	h.sum += seconds
	h.total++
}

func newEngineMetrics() *engineMetrics {
	return &engineMetrics{
		finished:   map[string]int{finishStop: 0, finishLength: 0, finishAbort: 0},
		firstToken: newHistogram(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10),
		perToken:   newHistogram(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
		endToEnd:   newHistogram(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
		jobs:       make(map[*job]*jobProgress),
	}
}

func (m *engineMetrics) begin(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs[j] = &jobProgress{started: time.Now()}
	m.cachedTokens += j.promptTokens()
}

// end removes a job, whatever its outcome.
func (m *engineMetrics) end(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cachedTokens -= j.promptTokens() + m.jobs[j].generated
	delete(m.jobs, j)
}

// step records what the engine's last step generated.
func (m *engineMetrics) step(g *generation, arrived time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, now := m.jobs[g.job], time.Now()
	if p.generated == 0 {
		m.promptTokens += g.job.promptTokens()
		m.firstToken.observe(now.Sub(arrived).Seconds())
	} else {
		m.perToken.observe(now.Sub(p.last).Seconds())
	}
	gained := g.generated - p.generated
	m.generatedTokens += gained
	m.cachedTokens += gained
	p.generated, p.last = g.generated, now
}

// finish counts a job's outputs by finish_reason and observes its latency.
func (m *engineMetrics) finish(g *generation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, seq := range g.sequences {
		if seq.finished() {
			m.finished[seq.finish]++
		}
	}
	m.endToEnd.observe(time.Since(m.jobs[g.job].started).Seconds())
}

// serveMetrics handles GET /metrics, with vLLM's metric names.
func (s *Server) serveMetrics(x *exchange) {
	m := s.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	label := fmt.Sprintf("model_name=%q", s.models[0])
	if !s.spec.v0 {
		label = `engine="0",` + label
	}
	p := &metricsPage{label: label}
	running, waiting := s.queue.load()
	level, sleeping := s.engine.sleepState()
	if sleeping {
		running, waiting = 0, running+waiting
	}
	p.number("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(running))
	p.number("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(waiting))
	cache := float64(m.cachedTokens) / float64(16*s.maxModelLen) // as if the cache held 16 full contexts
	p.number(s.spec.cacheGauge, "gauge", "KV-cache usage. 1 means 100 percent usage.", min(1, cache))
	p.number("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", 0)
	p.number("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(m.promptTokens))
	p.number("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(m.generatedTokens))
	p.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range slices.Sorted(maps.Keys(m.finished)) {
		p.sample("vllm:request_success_total", fmt.Sprintf(`finished_reason=%q`, reason), float64(m.finished[reason]))
	}
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.firstToken)
	p.histogram(s.spec.tokenLatency, "Histogram of inter-token latency in seconds.", &m.perToken)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &m.endToEnd)
	if !s.spec.v0 {
		if !s.spec.rust {
			p.sleepState(level)
		}
		queries, hits := s.cache.counts()
		p.number(s.spec.prefixCache+"_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", float64(queries))
		p.number(s.spec.prefixCache+"_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(hits))
	}
	x.writeResponse(200, "text/plain; version=0.0.4; charset=utf-8", []byte(p.text.String()))
}

func (p *metricsPage) sleepState(level int) {
	p.head("vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping.")
	states := []string{"awake", "weights_offloaded", "discard_all"}
	for i, state := range states {
		p.sample("vllm:engine_sleep_state", fmt.Sprintf("sleep_state=%q", state), gaugeValue(i == min(level, 2)))
	}
}

func gaugeValue(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// metricsPage builds a page in Prometheus's text format.
type metricsPage struct {
	label string // labels of every sample
	text  strings.Builder
}

func (p *metricsPage) head(name, kind, explanation string) {
	fmt.Fprintf(&p.text, "# HELP %s %s\n# TYPE %s %s\n", name, explanation, name, kind)
}

func (p *metricsPage) sample(name, label string, number float64) {
	if label != "" {
		label = "," + label
	}
	fmt.Fprintf(&p.text, "%s{%s%s} %s\n", name, p.label, label, pythonFloat(number))
}

func (p *metricsPage) number(name, kind, explanation string, number float64) {
	p.head(name, kind, explanation)
	p.sample(name, "", number)
}

func (p *metricsPage) histogram(name, explanation string, h *histogram) {
	p.head(name, "histogram", explanation)
	for i, bound := range h.bounds {
		p.sample(name+"_bucket", fmt.Sprintf("le=%q", pythonFloat(bound)), float64(h.counts[i]))
	}
	p.sample(name+"_bucket", `le="+Inf"`, float64(h.total))
	p.sample(name+"_count", "", float64(h.total))
	p.sample(name+"_sum", "", h.sum)
}
