package proxy

import (
	"errors"
	"time"

	"go.uber.org/zap"

	apierr "basegate/errors"
)

// workloads are the values of X-Acs-Workload that are recorded.
var workloads = map[string]bool{"interactive": true, "batch": true}

// finish counts the request in the metrics and writes its one log line, which holds nothing of prompts and completions.
func (s *Server) finish(x *exchange) {
	total := time.Since(x.timings.arrived)
	model, backend := "", ""
	if x.model != nil {
		model = x.model.ID()
	}
	if b := x.attempts.backend; b != nil {
		backend = b.Name
	}
	s.metrics.request(model, x, total)
	preview := x.caller.onBehalfOf != nil && x.caller.onBehalfOf.preview
	if !preview {
		s.recordRefusal(x, total)
	}
	identity, usage := &x.caller.identity, x.charge.usage
	if s.ended != nil && !preview {
		s.ended(Ended{
			Model: model, Backend: backend, Code: string(x.delivery.code),
			Prompt: usage.Prompt, Completion: usage.Completion, FirstToken: x.timings.firstToken,
		})
	}
	fields := []zap.Field{
		zap.String("request_id", x.id),
		zap.String("key", identity.KeyPrefix),
		zap.String("email", identity.Email),
		zap.String("address", x.caller.address),
		zap.String("endpoint", x.r.Method+" "+apierr.Clip(x.r.URL.Path)),
		zap.String("model", model),
		zap.String("backend", backend),
		zap.Bool("stream", x.request != nil && x.request.Stream),
		zap.Int64("prompt_tokens", usage.Prompt),
		zap.Int64("completion_tokens", usage.Completion),
		zap.Int("status", x.delivery.status),
		zap.String("code", string(x.delivery.code)),
		zap.String("workload", x.workload()),
		zap.Int("attempts", x.attempts.count),
		zap.Float64("queue_ms", inMilliseconds(x.timings.queued)),
		zap.Float64("first_token_ms", inMilliseconds(x.timings.firstToken)),
		zap.Float64("total_ms", inMilliseconds(total)),
	}
	if cause := errors.Unwrap(x.delivery.failure); cause != nil {
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
