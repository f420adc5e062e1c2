package proxy

import (
	"errors"
	"time"

	"go.uber.org/zap"

	apierr "basegate/errors"
)

// workloads are the values of X-Acs-Workload that are recorded.
var workloads = map[string]bool{"interactive": true, "batch": true}

// finish writes the one log line of the request and counts it. The line holds nothing of prompts and completions.
func (s *Server) finish(x *exchange) {
	total := time.Since(x.arrived)
	model, backend := "", ""
	if x.model != nil {
		model = x.model.ID()
	}
	if x.backend != nil {
		backend = x.backend.Name
	}
	s.metrics.request(model, x, total)
	fields := []zap.Field{
		zap.String("request_id", x.id),
		zap.String("key", x.identity.KeyPrefix),
		zap.String("email", x.identity.Email),
		zap.String("address", x.address),
		zap.String("endpoint", x.r.Method+" "+apierr.Clip(x.r.URL.Path)),
		zap.String("model", model),
		zap.String("backend", backend),
		zap.Bool("stream", x.request != nil && x.request.Stream),
		zap.Int64("prompt_tokens", x.usage.prompt),
		zap.Int64("completion_tokens", x.usage.completion),
		zap.Int("status", x.status),
		zap.String("code", string(x.code)),
		zap.String("workload", x.workload()),
		zap.Int("attempts", x.attempts),
		zap.Float64("queue_ms", inMilliseconds(x.queued)),
		zap.Float64("first_token_ms", inMilliseconds(x.firstToken)),
		zap.Float64("total_ms", inMilliseconds(total)),
	}
	if cause := errors.Unwrap(x.failure); cause != nil {
		fields = append(fields, zap.NamedError("cause", cause))
	}
	s.log.Info("request", fields...)
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (x *exchange) workload() string {
	if w := x.r.Header.Get("X-Acs-Workload"); workloads[w] {
		return w
	}
	return ""
}
