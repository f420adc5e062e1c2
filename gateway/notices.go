package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// reloadState is the outcome of the last attempt to replace something that was read from files, such as the
// configuration. If an attempt fails, the previous version stays in force.
type reloadState struct {
	mu       sync.Mutex
	inForce  time.Time // when what is in force was read
	failedAt time.Time
	failure  error // of the last attempt; nil if it succeeded
}

func (s *reloadState) succeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce, s.failure = time.Now(), nil
}

func (s *reloadState) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedAt, s.failure = time.Now(), err
}

// successful returns 1 if the last attempt succeeded, and otherwise 0, for a metric.
func (s *reloadState) successful() float64 {
	if s.status().Refused != nil {
		return 0
	}
	return 1
}

func (s *reloadState) status() ReloadStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := ReloadStatus{ReadAt: s.inForce.UTC()}
	if s.failure != nil {
		status.Refused = &Refusal{At: s.failedAt.UTC(), Error: s.failure.Error()}
	}
	return status
}

// notices returns what an operator should know if the last attempt failed.
func (s *reloadState) notices(what string) []string {
	status := s.status()
	if status.Refused == nil {
		return nil
	}
	const layout = "2006-01-02 15:04:05"
	return []string{fmt.Sprintf("The new %s was refused at %s UTC; the one that was read at %s is in force. %s",
		what, status.Refused.At.Format(layout), status.ReadAt.Format(layout), status.Refused.Error)}
}

// configMetrics returns the metrics of the last reload of the configuration.
func configMetrics(s *reloadState) []prometheus.Collector {
	return []prometheus.Collector{
		gauge("basegate_config_last_reload_successful",
			"1 if the last reload of the configuration succeeded, 0 if it was refused and an older configuration is in force.", s.successful),
		gauge("basegate_config_last_reload_success_timestamp_seconds", "When the configuration that is in force was read.",
			func() float64 { return float64(s.status().ReadAt.UnixMilli()) / 1000 }),
	}
}

// ReloadRefused records that a new configuration has mistakes, which err describes, so that the old one stays in force.
func (g *Gateway) ReloadRefused(err error) {
	g.configState.fail(err)
	g.log.Error("reload refused, the old configuration stays", zap.Error(err))
}

// notices returns what administrators see on the console's page of the models.
func (g *Gateway) notices() []string {
	all := g.configState.notices("configuration")
	if g.certificate != nil {
		all = append(all, g.certificate.state.notices("certificate")...)
	}
	return all
}
