package proxy_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"basegate/internal/loratest"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "00-" + clientTrace + "-b7ad6b7169203331-"
)

// headers remembers the trace context that a backend has received.
type headers struct {
	sync.Mutex
	parents []string
}

func (h *headers) backend(complete http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.Lock()
		h.parents = append(h.parents, r.Header.Get("Traceparent"))
		h.Unlock()
		complete(w, r)
	}
}

func (h *headers) last() string {
	h.Lock()
	defer h.Unlock()
	return h.parents[len(h.parents)-1]
}

// traced returns a harness that keeps the spans of requests, of which a part is sampled by itself.
func traced(t *testing.T, sample float64, backends ...string) (*harness, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(sample))))
	return newHarness(t, func(o *harnessOptions) { o.tracer = provider.Tracer("test") }, backends...), spans
}

// await returns the spans when the server's has ended, by name.
func await(t *testing.T, spans *tracetest.InMemoryExporter) map[string]tracetest.SpanStub {
	t.Helper()
	all := map[string]tracetest.SpanStub{}
	poll.Until(t, "the request's span has ended", func() bool {
		for _, s := range spans.GetSpans() {
			all[s.Name] = s
		}
		_, ended := all["POST /v1/completions"]
		return ended
	})
	return all
}

func attributesOf(s tracetest.SpanStub) map[attribute.Key]string {
	all := map[attribute.Key]string{}
	for _, a := range s.Attributes {
		all[a.Key] = a.Value.String()
	}
	return all
}

func TestRequestIsTraced(t *testing.T) {
	t.Parallel()
	const secret, completion = "a prompt that nobody may store", "a completion that nobody may store"
	events := []string{
		`data: {"choices":[{"index":0,"text":"` + completion + `","finish_reason":"length"}]}` + "\n\n",
		`data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}` + "\n\n", doneEvent,
	}
	var seen headers
	failing := startBackend(t, seen.backend(respond(http.StatusInternalServerError, "application/json", `{"error":{"message":"`+secret+`"}}`)))
	h, spans := traced(t, 0, failing, startBackend(t, seen.backend(respondStream(events...))))
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+secret+`","max_tokens":3,"stream":true,"user":"`+secret+`"}`)
	req.Header.Set("Traceparent", traceparent+"01")
	got := h.do(req)
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	all := await(t, spans)
	server := all["POST /v1/completions"]
	names := slices.Sorted(func(yield func(string) bool) {
		for name, s := range all {
			if s.SpanContext.TraceID().String() != clientTrace {
				t.Errorf("%s is in another trace", name)
			}
			if name != server.Name && s.Parent.SpanID() != server.SpanContext.SpanID() {
				t.Errorf("%s is no child of the server's span", name)
			}
			if !yield(name) {
				return
			}
		}
	})
	if fmt.Sprint(names) != "[POST /v1/completions attempt commit queue stream]" {
		t.Errorf("got the spans %v", names)
	}
	if server.SpanKind != oteltrace.SpanKindServer || server.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got a %v span with the parent %s", server.SpanKind, server.Parent.SpanID())
	}
	row, attributes := h.awaitRows(1)[0], attributesOf(server)
	for key, want := range map[attribute.Key]string{
		"gen_ai.request.model": "m", "gen_ai.operation.name": "text_completion", "basegate.request_id": got.header.Get("X-Request-Id"),
		"gen_ai.usage.input_tokens": fmt.Sprint(row.PromptTokens), "gen_ai.usage.output_tokens": fmt.Sprint(row.CompletionTokens),
		"gen_ai.response.finish_reasons": `["length"]`, "basegate.code": "", "http.response.status_code": "200", "http.route": "/v1/completions", "basegate.backend": row.Backend,
	} {
		if attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, attributes[key], want)
		}
	}
	if events := all["stream"].Events; len(events) != 1 || events[0].Name != "first token" {
		t.Errorf("the stream has the events %v", events)
	}
	var last tracetest.SpanStub
	for _, s := range spans.GetSpans() {
		if s.Name == "attempt" {
			last = s
		}
	}
	if want := "00-" + clientTrace + "-" + last.SpanContext.SpanID().String() + "-01"; seen.last() != want {
		t.Errorf("the backend has got traceparent %s, want %s", seen.last(), want)
	}
	if class := attributesOf(last)["basegate.class"]; class != "success" {
		t.Errorf("the last attempt has the class %q", class)
	}
	dump := fmt.Sprintf("%+v", spans.GetSpans())
	for what, text := range map[string]string{"prompt": secret, "completion": completion, "key": h.secret, "address": "127.0.0.1"} {
		if strings.Contains(dump, text) {
			t.Errorf("a span has the %s", what)
		}
	}
	poll.Until(t, "the log line names the trace", func() bool { return strings.Contains(h.log.String(), `"trace_id":"`+clientTrace+`"`) })
}

// The load of an adapter is a span of its own, and the server's says what the backend reports of its cache.
func TestTraceOfAnAdapterHasItsLoad(t *testing.T) {
	t.Parallel()
	mock := startMockOf(t, mockvllm.Options{EnableLoRA: true, PromptTokensDetails: true})
	spans := tracetest.NewInMemoryExporter()
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(map[string]string{"sql-v3": loratest.Write(t, t.TempDir(), 8, 1)})(o)
		o.tracer = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test")
	}, mock.URL())
	h.ask("sql-v3")
	all := await(t, spans)
	server, load := all["POST /v1/completions"], all["adapter"]
	if load.Parent.SpanID() != server.SpanContext.SpanID() || !load.EndTime.Before(all["attempt"].EndTime) {
		t.Errorf("got the spans %v, want the load of the adapter before the attempt", slices.Collect(maps.Keys(all)))
	}
	row, attributes := h.awaitRows(1)[0], attributesOf(server)
	for key, n := range map[attribute.Key]*int64{
		"gen_ai.usage.cache_read.input_tokens": row.Reported.CachedTokens, "gen_ai.usage.cache_creation.input_tokens": row.Reported.CreatedTokens,
	} {
		if n == nil || attributes[key] != fmt.Sprint(*n) {
			t.Errorf("%s is %q, and the ledger has %v", key, attributes[key], n)
		}
	}
}

func TestUnsampledRequestHasNoSpansButATrace(t *testing.T) {
	t.Parallel()
	var seen headers
	h, spans := traced(t, 1, startBackend(t, seen.backend(respond(http.StatusOK, "application/json", plainResponse))))
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":[1,2]}`)
	req.Header.Set("Traceparent", traceparent+"00")
	h.do(req)
	h.awaitRows(1)
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("got %d spans, want none", len(got))
	}
	if got := seen.last(); !strings.HasPrefix(got, "00-"+clientTrace+"-") || !strings.HasSuffix(got, "-00") {
		t.Errorf("the backend has got traceparent %s, want the trace, not sampled", got)
	}
	req = h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":[1,2]}`)
	req.Header.Set("Traceparent", "nonsense")
	h.do(req)
	await(t, spans)
	if got := seen.last(); len(got) != len(traceparent)+2 || !strings.HasSuffix(got, "-01") {
		t.Errorf("the backend has got traceparent %s, want one of the gateway's", got)
	}
}
