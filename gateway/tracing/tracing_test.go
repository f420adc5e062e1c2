package tracing_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"basegate/gateway/tracing"
)

// received collects the names of spans.
type received struct {
	collector.UnimplementedTraceServiceServer
	names chan string
}

// Export implements collector.TraceServiceServer.
func (r *received) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range q.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.names <- of.GetResource().GetAttributes()[0].GetValue().GetStringValue() + " " + span.GetName()
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP implements http.Handler.
func (r *received) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	message := new(collector.ExportTraceServiceRequest)
	if q.URL.Path != "/v1/traces" || proto.Unmarshal(body, message) != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = r.Export(q.Context(), message)
}

func newProvider(t *testing.T, address string, sample float64) (*tracing.Provider, *prometheus.Registry, *observer.ObservedLogs) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	core, logs := observer.New(zap.WarnLevel)
	p, err := tracing.New(t.Context(), tracing.Settings{Collector: u, Sample: sample}, registry, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	return p, registry, logs
}

// spans returns how many spans have had an outcome.
func spans(t *testing.T, registry *prometheus.Registry, outcome string) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == outcome {
			return int(m.GetCounter().GetValue())
		}
	}
	t.Fatalf("there is no outcome %s", outcome)
	return 0
}

func TestSpansReachACollector(t *testing.T) {
	to := &received{names: make(chan string, 10)}
	plain := httptest.NewServer(to)
	defer plain.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, to)
	go server.Serve(listener)
	defer server.Stop()
	for _, address := range []string{plain.URL, "grpc://" + listener.Addr().String()} {
		p, registry, _ := newProvider(t, address, 1)
		_, span := p.Tracer().Start(t.Context(), "request")
		span.End()
		p.Close()
		if got := <-to.names; got != "basegate request" {
			t.Errorf("%s: got the span %q", address, got)
		}
		if exported, lost := spans(t, registry, "exported"), spans(t, registry, "lost"); exported != 1 || lost != 0 {
			t.Errorf("%s: %d spans exported and %d lost, want one and none", address, exported, lost)
		}
	}
}

func TestSamplingFollowsTheClient(t *testing.T) {
	p, registry, _ := newProvider(t, "http://127.0.0.1:1", 0)
	defer p.Close()
	for flag, sampled := range map[string]bool{"01": true, "00": false} {
		carrier := propagation.MapCarrier{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flag}
		_, span := p.Tracer().Start(propagation.TraceContext{}.Extract(t.Context(), carrier), "request")
		if span.IsRecording() != sampled || span.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("flag %s: sampled %v in the trace %s", flag, span.IsRecording(), span.SpanContext().TraceID())
		}
	}
	if _, span := p.Tracer().Start(t.Context(), "request"); span.IsRecording() {
		t.Error("a request without a trace is sampled with telemetry.sample: 0")
	}
	if spans(t, registry, "lost") != 0 {
		t.Error("spans that have not ended are lost")
	}
}

// More spans than the queue takes end while the collector does not respond. None waits, and every one is counted.
func TestSilentCollectorCostsSpansOnly(t *testing.T) {
	const all = 20_000
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-silent
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	p, registry, logs := newProvider(t, server.URL, 1)
	for range all {
		_, span := p.Tracer().Start(t.Context(), "request")
		span.End()
	}
	if lost := spans(t, registry, "lost"); lost < all/2 {
		t.Errorf("%d spans are lost while the queue is full, want most of %d", lost, all)
	}
	close(silent)
	p.Close()
	if exported, lost := spans(t, registry, "exported"), spans(t, registry, "lost"); exported != 0 || lost != all {
		t.Errorf("%d spans exported and %d lost, want all of %d lost", exported, lost, all)
	}
	if got := logs.All(); len(got) != 1 || !strings.Contains(got[0].Message, "spans are lost") {
		t.Errorf("got the log %v, want one line for the outage", got)
	}
}
