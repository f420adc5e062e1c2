package batch

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/admission"
)

// metrics are the figures of a Service.
type metrics struct {
	running atomic.Int64
	lines   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{lines: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "basegate_batch_lines_total",
		Help: "Lines of batches that have ended, by model and result (completed, failed).",
	}, []string{"model", "result"})}
}

// Turns returns the places for which accounts wait, by the work that needs them.
func (s *Service) Turns() map[string]*admission.Turns {
	return map[string]*admission.Turns{"uploads": s.uploads}
}

// know exports the series of models before their first lines.
func (m *metrics) know(models []string) {
	for _, model := range models {
		m.lines.WithLabelValues(model, "completed")
		m.lines.WithLabelValues(model, "failed")
	}
}

func (m *metrics) ended(model string, success bool) {
	result := "failed"
	if success {
		result = "completed"
	}
	m.lines.WithLabelValues(model, result).Inc()
}

var (
	linesDesc = prometheus.NewDesc("basegate_batch_lines", "Lines of batches that have not ended, by state (running, waiting).",
		[]string{"state"}, nil)
	oldestDesc = prometheus.NewDesc("basegate_batch_oldest_line_seconds",
		"Age of the oldest batch that has lines without a result; 0 if there is none.", nil, nil)
)

// Collector exports the figures of a Service.
type Collector struct{ service *Service }

// NewCollector returns the collector of a Service.
func NewCollector(s *Service) *Collector { return &Collector{s} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.service.metrics.lines.Describe(ch)
	ch <- linesDesc
	ch <- oldestDesc
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.service.metrics.lines.Collect(ch)
	remaining, oldest := c.service.backlog()
	running := c.service.metrics.running.Load()
	ch <- prometheus.MustNewConstMetric(linesDesc, prometheus.GaugeValue, float64(running), "running")
	ch <- prometheus.MustNewConstMetric(linesDesc, prometheus.GaugeValue, float64(max(remaining-running, 0)), "waiting")
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest)
}

// backlog returns how many lines have no result, and the age of the oldest batch with such lines, in seconds.
func (s *Service) backlog() (lines int64, oldest float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		lines += j.left.Load()
		oldest = max(oldest, float64(s.now()-j.batch.CreatedAt))
	}
	return lines, oldest
}
