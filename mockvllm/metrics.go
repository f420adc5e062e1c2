package mockvllm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// A meter counts what vLLM's /metrics tells.
type meter struct {
	mu         sync.Mutex
	running    int // outputs in the engine
	held       int // tokens that they and their prompts hold in the cache
	prompt     int
	generation int
	finished   map[string]int
	firstToken histogram
	perToken   histogram
	whole      histogram
	jobs       map[*job]*passage
}

// A passage is a job's way through the engine.
type passage struct {
	begun     time.Time
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

func newMeter() *meter {
	return &meter{
		finished:   map[string]int{finishStop: 0, finishLength: 0, finishAbort: 0},
		firstToken: newHistogram(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10),
		perToken:   newHistogram(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
		whole:      newHistogram(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
		jobs:       make(map[*job]*passage),
	}
}

func (m *meter) begin(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs[j] = &passage{begun: time.Now()}
	m.running += j.drawn * len(j.tokens)
	m.held += j.promptTokens()
}

// end takes a job out, however it ended.
func (m *meter) end(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running -= j.drawn * len(j.tokens)
	m.held -= j.promptTokens() + m.jobs[j].generated
	delete(m.jobs, j)
}

// step counts what the engine's last step generated.
func (m *meter) step(g *generation, arrived time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, now := m.jobs[g.job], time.Now()
	if p.generated == 0 {
		m.prompt += g.job.promptTokens()
		m.firstToken.observe(now.Sub(arrived).Seconds())
	} else {
		m.perToken.observe(now.Sub(p.last).Seconds())
	}
	gained := g.generated - p.generated
	m.generation += gained
	m.held += gained
	p.generated, p.last = g.generated, now
}

// finish counts the outputs by why they ended.
func (m *meter) finish(g *generation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range g.sequences {
		if q.finished() {
			m.finished[q.finish]++
		}
	}
	m.whole.observe(time.Since(m.jobs[g.job].begun).Seconds())
}

// metrics is GET /metrics, under vLLM's names.
func (s *Server) metrics(x *exchange) {
	m := s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	label := fmt.Sprintf("model_name=%q", s.models[0])
	if !s.shape.v0 {
		label = `engine="0",` + label
	}
	p := &page{label: label}
	waiting := 0
	level, sleeping := s.engine.asleep()
	if sleeping {
		waiting = m.running
	}
	p.number("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(m.running-waiting))
	p.number("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(waiting))
	cache := float64(m.held) / float64(16*s.limit) // room for 16 requests that fill the context
	p.number(s.shape.cacheGauge, "gauge", "KV-cache usage. 1 means 100 percent usage.", min(1, cache))
	p.number("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", 0)
	p.number("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(m.prompt))
	p.number("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(m.generation))
	p.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range slices.Sorted(maps.Keys(m.finished)) {
		p.sample("vllm:request_success_total", fmt.Sprintf(`finished_reason=%q`, reason), float64(m.finished[reason]))
	}
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.firstToken)
	p.histogram(s.shape.tokenLatency, "Histogram of inter-token latency in seconds.", &m.perToken)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &m.whole)
	p.head("vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping.")
	states := []string{"awake", "weights_offloaded", "discard_all"}
	for i, state := range states {
		p.sample("vllm:engine_sleep_state", fmt.Sprintf("sleep_state=%q", state), truth(i == min(level, 2)))
	}
	x.respond(200, "text/plain; version=0.0.4; charset=utf-8", []byte(p.text.String()))
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// A page is Prometheus text in the making.
type page struct {
	label string // those of every sample
	text  strings.Builder
}

func (p *page) head(name, kind, explanation string) {
	fmt.Fprintf(&p.text, "# HELP %s %s\n# TYPE %s %s\n", name, explanation, name, kind)
}

func (p *page) sample(name, label string, number float64) {
	if label != "" {
		label = "," + label
	}
	fmt.Fprintf(&p.text, "%s{%s%s} %s\n", name, p.label, label, pythonFloat(number))
}

func (p *page) number(name, kind, explanation string, number float64) {
	p.head(name, kind, explanation)
	p.sample(name, "", number)
}

func (p *page) histogram(name, explanation string, h *histogram) {
	p.head(name, "histogram", explanation)
	for i, bound := range h.bounds {
		p.sample(name+"_bucket", fmt.Sprintf("le=%q", pythonFloat(bound)), float64(h.counts[i]))
	}
	p.sample(name+"_bucket", `le="+Inf"`, float64(h.total))
	p.sample(name+"_count", "", float64(h.total))
	p.sample(name+"_sum", "", h.sum)
}
