package batch

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/admission"
)

// metrics are the figures of a Service.
type metrics struct {
	running atomic.Int64
	lines   *prometheus.CounterVec

	unfinished atomic.Int64 // lines without a result, as the sweeper has counted them
	oldest     atomic.Int64 // when the oldest batch with such lines was created, in seconds since 1970; 0 if there is none
}

func newMetrics() *metrics {
	return &metrics{lines: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "basegate_batch_lines_total",
		Help: "Lines of batches that have ended, by model and result (completed, failed).",
	}, []string{"model", "result"})}
}

// Turns returns the places for which accounts wait, by the work that needs them.
func (s *Service) Turns() map[string]*admission.Turns {
	return map[string]*admission.Turns{"uploads": s.uploads, "validations": s.validations, "large_validations": s.largeFiles}
}

// know exports the series of models before their first lines.
func (m *metrics) know(models []string) {
	for _, model := range models {
		m.lines.WithLabelValues(model, "completed")
		m.lines.WithLabelValues(model, "failed")
	}
}

func (m *metrics) setBacklog(lines, oldest int64) {
	m.unfinished.Store(lines)
	m.oldest.Store(oldest)
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

// Describe implements prometheus.Collector.
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	s.metrics.lines.Describe(ch)
	ch <- linesDesc
	ch <- oldestDesc
}

// Collect implements prometheus.Collector.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	s.metrics.lines.Collect(ch)
	running, oldest := s.metrics.running.Load(), 0.0
	if created := s.metrics.oldest.Load(); created > 0 {
		oldest = float64(s.now() - created)
	}
	ch <- prometheus.MustNewConstMetric(linesDesc, prometheus.GaugeValue, float64(running), "running")
	ch <- prometheus.MustNewConstMetric(linesDesc, prometheus.GaugeValue, float64(max(s.metrics.unfinished.Load()-running, 0)), "waiting")
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest)
}

// countBacklog counts the lines without a result.
func (s *Service) countBacklog(ctx context.Context) error {
	lines, oldest, err := unfinishedLines(ctx, s.db.Read())
	if err != nil {
		return fmt.Errorf("count the lines of batches: %w", err)
	}
	s.metrics.setBacklog(lines, oldest)
	return nil
}
