package proxy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/budget/refusals"
	"basegate/budget/usage"
	apierr "basegate/errors"
)

// finish counts the request in the metrics and writes its one log line, which holds nothing of prompts and completions.
func (s *Server) finish(x *exchange) {
	total := time.Since(x.timings.arrived)
	model, base, backend := "", "", ""
	if x.model != nil {
		model, base = x.model.ID(), x.model.Base().ID() // statistics are of the base: their number must not grow with adapters
	}
	if b := x.attempts.backend; b != nil {
		backend = b.Name
	}
	x.endTrace(model, backend, total)
	s.metrics.request(base, x, total)
	if x.charge.settled {
		s.metrics.reported.observe(base, backend, x.charge.usage.Prompt, &x.charge.reports)
	}
	preview := x.caller.onBehalfOf != nil && x.caller.onBehalfOf.preview
	if !preview {
		s.recordRefusal(x, total)
	}
	identity, usage := &x.caller.identity, x.charge.usage
	if s.deps.Ended != nil && !preview {
		s.deps.Ended(Ended{
			Model: base, Backend: backend, Code: string(x.delivery.code),
			Prompt: usage.Prompt, Completion: usage.Completion, Cached: x.charge.reports.CachedTokens, FirstToken: x.timings.firstToken, Total: x.timings.charged,
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
	if x.replay != nil {
		fields = append(fields, zap.String("replay", x.replay.result))
	}
	if id := x.trace.id(); id != "" {
		fields = append(fields, zap.String("trace_id", id))
	}
	if cause := errors.Unwrap(x.delivery.failure); cause != nil {
		fields = append(fields, zap.NamedError("cause", cause))
	}
	s.deps.Log.Info("request", fields...)
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// workload returns X-Acs-Workload, or "" if it has another value than those that are recorded.
func (x *exchange) workload() string {
	if w := x.r.Header.Get("X-Acs-Workload"); w == "interactive" || w == "batch" {
		return w
	}
	return ""
}

// RefusalRecorder records requests that were refused before a reservation. It must not block.
type RefusalRecorder interface {
	Record(r *refusals.Refusal)
}

func (x *exchange) recordAttempt(class breaker.Class, status int, took time.Duration) {
	if len(x.attempts.failed) < usage.MaxAttempts {
		x.attempts.failed = append(x.attempts.failed, usage.Attempt{
			Backend: x.attempts.backend.Name, Class: class.String(), Status: status,
			Start: x.timings.sent.Sub(x.timings.arrived), Took: took,
		})
	}
}

// attemptRecords returns the attempts of a request that ends with a code, or nil if all there was is one that succeeded.
// A last attempt that has not failed is the one that the client received.
func (x *exchange) attemptRecords(code apierr.Code) []usage.Attempt {
	failed := x.attempts.failed
	if len(failed) == 0 {
		return nil
	}
	if failed[len(failed)-1].Start != x.timings.sent.Sub(x.timings.arrived) {
		class := breaker.Success
		if code == codeClientGone {
			class = breaker.ClientGone
		}
		x.recordAttempt(class, 0, time.Since(x.timings.sent))
	}
	return x.attempts.failed
}

// recordRefusal records a request that has failed without a row on the ledger, if its key is known. It holds nothing
// that the client has written, except the user tag and the workload of a request that was valid.
func (s *Server) recordRefusal(x *exchange, total time.Duration) {
	i := &x.caller.identity
	if s.deps.Refusals == nil || x.delivery.code == "" || x.reservation != nil || i.AccountID == "" {
		return
	}
	r := refusals.Refusal{
		RequestID: x.id, Time: x.timings.arrived, AccountID: i.AccountID, KeyID: i.KeyID, Endpoint: x.route(),
		Workload: x.workload(), Run: x.run(), Status: x.delivery.status, Code: string(x.delivery.code),
		Queue: x.timings.queued, Boot: x.timings.booting, Total: total,
	}
	if e, ok := errors.AsType[*apierr.Error](x.delivery.failure); ok {
		r.Param, r.Expected = e.Expected()
	}
	if x.request != nil {
		r.User, r.Stream = x.request.User, x.request.Stream
	}
	if x.model != nil {
		r.Model = x.model.ID()
	}
	if b := x.attempts.backend; b != nil {
		r.Backend = b.Name
	}
	s.deps.Refusals.Record(&r)
}

// route returns the path of the request without what the client may have written into it: the pattern of its route. Requests
// of the console and of batches have none, but their paths are the gateway's own.
func (x *exchange) route() string {
	if x.caller.onBehalfOf != nil {
		return x.r.URL.Path
	}
	return x.r.Pattern
}

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
	replays    *prometheus.CounterVec
	reported   reportedMetrics
}

// secondsBuckets suit completions, which take from milliseconds to an hour.
var secondsBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

func newMetrics(registry prometheus.Registerer) *metrics {
	registered := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return registered.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return registered.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: secondsBuckets}, labels)
	}
	m := &metrics{
		requests: counter("basegate_requests_total",
			"Requests of the API that have ended, by model and error code (empty: success).", "model", "code"),
		durations: seconds("basegate_request_seconds", "Time from a request's arrival to the end of its answer.", "model"),
		queued: seconds("basegate_queue_seconds",
			"Time that a request waited for a slot of its key and for the reservations of others.", "model"),
		firstToken: seconds("basegate_first_token_seconds", "Time from a streamed request's arrival to its first event.", "model"),
		tokens:     counter("basegate_tokens_total", "Tokens charged, by model and kind (prompt, completion).", "model", "kind"),
		unreserved: counter("basegate_unreserved_tokens_total",
			"Tokens beyond what was reserved for a request, by what its backend reported or sent. Nobody is charged for them.",
			"model", "backend"),
		attempts: counter("basegate_attempts_total",
			"Attempts at backends, by model, backend and class of the outcome.", "model", "backend", "class"),
		overloaded: counter("basegate_overloaded_total",
			"Requests that got overloaded, by what was lacking (memory, database, connections, backends, draining).", "reason"),
		replays: counter("basegate_replays_total", "Requests that asked for a kept response, by result (hit, miss, stored).", "result"),
		reported: reportedMetrics{
			cached: counter("basegate_cached_prompt_tokens_total", "Prompt tokens that backends report as cached.", "model", "backend"),
			known: counter("basegate_cache_known_prompt_tokens_total",
				"Prompt tokens of the requests whose backends report how many were cached.", "model", "backend"),
			queue: seconds("basegate_engine_queue_seconds",
				"Time that a request waited in the engine, as the backend reports it.", "model", "backend"),
			prefill: seconds("basegate_engine_prefill_seconds",
				"Time from when the engine scheduled a request to its first token, as the backend reports it.", "model", "backend"),
			tokens: seconds("basegate_engine_between_tokens_seconds",
				"Mean time between two tokens of a request, as the backend reports it.", "model", "backend"),
		},
	}
	for _, result := range []string{replayHit, replayMiss, replayStored} {
		m.replays.WithLabelValues(result)
	}
	for _, s := range apierr.Shortages {
		m.overloaded.WithLabelValues(string(s)) // a counter that begins with its first event hides it from increase()
	}
	return m
}

func (m *metrics) request(model string, x *exchange, total time.Duration) {
	m.requests.WithLabelValues(model, string(x.delivery.code)).Inc()
	if x.delivery.code == apierr.Overloaded {
		m.overloaded.WithLabelValues(string(apierr.From(x.delivery.failure).Shortage)).Inc()
	}
	if x.replay != nil {
		m.replays.WithLabelValues(x.replay.result).Inc()
	}
	if model == "" {
		return
	}
	m.durations.WithLabelValues(model).Observe(total.Seconds())
	if x.timings.queued > 0 {
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
