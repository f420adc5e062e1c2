package proxy

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"basegate/breaker"
	"basegate/fleet"
)

// trace is the request's part in a trace: a span of the server with children for what it waits for. It holds nothing of prompts and
// completions, and of the client only the beginning of its key.
type trace struct {
	tracer  oteltrace.Tracer
	ctx     context.Context // with the server's span
	attempt context.Context // with that of the last attempt, or the server's
	span    oteltrace.Span
}

var traceContext propagation.TraceContext

// beginTrace makes the request a part of the client's trace, whose sampling it follows, or of one of its own.
func (s *Server) beginTrace(x *exchange) {
	if s.deps.Tracer == nil {
		return
	}
	parent := traceContext.Extract(x.r.Context(), propagation.HeaderCarrier(x.r.Header))
	t := &trace{tracer: s.deps.Tracer}
	t.ctx, t.span = t.tracer.Start(parent, "", oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithTimestamp(x.timings.arrived))
	t.attempt, x.trace = t.ctx, t
}

func (t *trace) sampled() bool { return t != nil && t.span.IsRecording() }

func (t *trace) id() string {
	if t == nil {
		return ""
	}
	return t.span.SpanContext().TraceID().String()
}

func nothing() {}

func (t *trace) child(name string) (end func()) {
	if !t.sampled() {
		return nothing
	}
	_, span := t.tracer.Start(t.ctx, name)
	return func() { span.End() }
}

// beginAttempt begins the span of an attempt, which the backend continues.
func (t *trace) beginAttempt(b *fleet.Backend) (end func(breaker.Outcome)) {
	if !t.sampled() {
		return func(breaker.Outcome) {}
	}
	ctx, span := t.tracer.Start(t.ctx, "attempt", oteltrace.WithSpanKind(oteltrace.SpanKindClient), oteltrace.WithAttributes(
		attribute.String("basegate.backend", b.Name), attribute.String("basegate.vllm.version", b.Version())))
	t.attempt = ctx
	return func(o breaker.Outcome) {
		span.SetAttributes(attribute.String("basegate.class", o.Class.String()))
		if o.Status > 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", o.Status))
		}
		if o.Class != breaker.Success {
			span.SetStatus(codes.Error, o.Class.String())
		}
		span.End()
	}
}

// beginStream begins the span of a stream at its attempt.
func (x *exchange) beginStreamSpan() (end func()) {
	if !x.trace.sampled() {
		return nothing
	}
	_, span := x.trace.tracer.Start(x.trace.ctx, "stream", oteltrace.WithTimestamp(x.timings.sent))
	span.AddEvent("first token", oteltrace.WithTimestamp(x.timings.arrived.Add(x.timings.firstToken)))
	return func() { span.End() }
}

// inject replaces the client's trace context in the header for a backend by the gateway's.
func (t *trace) inject(h propagation.HeaderCarrier) {
	if t != nil {
		delete(h, "Traceparent")
		delete(h, "Tracestate")
		traceContext.Inject(t.attempt, h)
	}
}

// endTrace ends the server's span with what the log line says.
func (x *exchange) endTrace(model, backend string, total time.Duration) {
	t := x.trace
	if !t.sampled() {
		return
	}
	route, operation := x.route(), "text_completion"
	if x.endpoint == chatEndpoint {
		operation = "chat"
	}
	t.span.SetName(x.r.Method + " " + route)
	all := []attribute.KeyValue{
		attribute.String("http.request.method", x.r.Method), attribute.String("http.route", route),
		attribute.Int("http.response.status_code", x.delivery.status),
		attribute.String("basegate.request_id", x.id), attribute.String("basegate.key.prefix", x.caller.identity.KeyPrefix),
		attribute.String("basegate.code", string(x.delivery.code)), attribute.Int("basegate.attempts", x.attempts.count),
	}
	if model != "" {
		all = append(all, attribute.String("gen_ai.operation.name", operation), attribute.String("gen_ai.request.model", model),
			attribute.String("gen_ai.provider.name", "vllm"), attribute.String("basegate.backend", backend))
	}
	if x.charge.settled {
		all = append(all, attribute.Int64("gen_ai.usage.input_tokens", x.charge.usage.Prompt),
			attribute.Int64("gen_ai.usage.output_tokens", x.charge.usage.Completion))
		for name, n := range map[string]*int64{
			"gen_ai.usage.cache_read.input_tokens": x.charge.reports.CachedTokens, "gen_ai.usage.cache_creation.input_tokens": x.charge.reports.CreatedTokens,
		} {
			if n != nil {
				all = append(all, attribute.Int64(name, *n))
			}
		}
	}
	if len(x.charge.reasons) > 0 {
		all = append(all, attribute.StringSlice("gen_ai.response.finish_reasons", x.charge.reasons))
	}
	t.span.SetAttributes(all...)
	if x.delivery.status >= 500 || x.delivery.streaming && !x.delivery.complete && x.delivery.code != codeClientGone {
		t.span.SetStatus(codes.Error, string(x.delivery.code))
	}
	t.span.End(oteltrace.WithTimestamp(x.timings.arrived.Add(total)))
}
