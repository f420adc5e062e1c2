// Package tracing sends spans to an OpenTelemetry collector, by OTLP over HTTP or gRPC.
//
// A slow or dead collector costs spans, never requests: at most maxQueue spans wait, further ones are lost, and so are those of a
// batch that cannot be sent. Which spans there are, and what they hold, is left to package proxy.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

const (
	maxQueue      = 8192             // spans, of about 1 KB each
	exportTimeout = 10 * time.Second // of a batch, and of what is left at the end
)

// Settings configure a Provider.
type Settings struct {
	Collector *url.URL // http, https, grpc or grpcs
	Sample    float64  // the part of the requests, from 0 to 1, that are traced, of those that are not part of a trace already
	Version   string   // of the program
}

// Provider makes spans and sends them.
type Provider struct {
	sdk            *sdk.TracerProvider
	exported, lost prometheus.Counter
	log            *zap.Logger
	waiting        atomic.Int64 // spans that have ended and are not sent yet
	failing        atomic.Bool
}

// New returns a Provider. The collector need not be there. The SDK's variables, such as OTEL_EXPORTER_OTLP_HEADERS, are obeyed.
func New(ctx context.Context, s Settings, registry prometheus.Registerer, log *zap.Logger) (*Provider, error) {
	exporter, err := newExporter(ctx, s.Collector)
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp: %w", err)
	}
	spans := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "basegate_trace_spans_total", Help: "Spans that were sent to the collector (exported), or could not be (lost).",
	}, []string{"outcome"})
	p := &Provider{exported: spans.WithLabelValues("exported"), lost: spans.WithLabelValues("lost"), log: log}
	batches := sdk.NewBatchSpanProcessor(&countingExporter{exporter, p},
		sdk.WithMaxQueueSize(maxQueue), sdk.WithBatchTimeout(time.Second), sdk.WithExportTimeout(exportTimeout))
	p.sdk = sdk.NewTracerProvider(
		sdk.WithSpanProcessor(&gate{batches, p}),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(s.Sample))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "basegate"), attribute.String("service.version", s.Version))),
	)
	return p, nil
}

func newExporter(ctx context.Context, to *url.URL) (sdk.SpanExporter, error) {
	if secure, found := strings.CutPrefix(to.Scheme, "grpc"); found {
		at := *to
		at.Scheme = "http" + secure
		return otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(at.String()),
			otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}), otlptracegrpc.WithTimeout(exportTimeout))
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to.JoinPath("v1/traces").String()),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}), otlptracehttp.WithTimeout(exportTimeout))
}

// Tracer returns what makes the spans.
func (p *Provider) Tracer() trace.Tracer { return p.sdk.Tracer("basegate") }

// Close sends what waits, for as long as exportTimeout.
func (p *Provider) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	if err := p.sdk.Shutdown(ctx); err != nil {
		p.log.Warn("the last spans are lost", zap.Error(err))
	}
}

// gate loses the spans that end while too many wait. The SDK's queue would lose them uncounted.
type gate struct {
	sdk.SpanProcessor
	provider *Provider
}

func (g *gate) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if g.provider.waiting.Add(1) > maxQueue {
		g.provider.waiting.Add(-1)
		g.provider.lost.Inc()
		return
	}
	g.SpanProcessor.OnEnd(s)
}

// countingExporter counts what is sent, and logs the first failure of an outage.
type countingExporter struct {
	sdk.SpanExporter
	provider *Provider
}

func (e *countingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	p, n := e.provider, len(spans)
	err := e.SpanExporter.ExportSpans(ctx, spans)
	p.waiting.Add(int64(-n))
	if err == nil {
		p.exported.Add(float64(n))
		p.failing.Store(false)
		return nil
	}
	p.lost.Add(float64(n))
	if !p.failing.Swap(true) {
		p.log.Warn("spans are lost", zap.Error(err))
	}
	return nil // the SDK would write the error to stderr
}
