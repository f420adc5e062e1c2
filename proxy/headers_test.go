package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequestHeadersOfABackend(t *testing.T) {
	t.Parallel()
	var received []http.Header
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		received = append(received, r.Header.Clone())
		if len(received) == 1 {
			respond(http.StatusBadGateway, "text/plain", "Bad Gateway")(w, r)
			return
		}
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
	}))
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", plainRequest)
	for name, value := range map[string]string{
		"Cookie": "a=b", "X-Forwarded-For": "1.2.3.4", "X-Request-Id": "mine", "X-Vllm-Priority": "9", "User-Agent": "me",
		"Traceparent": "00-1-2-01", "Tracestate": "a=b", "Accept": "application/json", "Content-Type": "text/plain",
	} {
		req.Header.Set(name, value)
	}
	got := h.do(req)
	if got.status != http.StatusOK || len(received) != 2 {
		t.Fatalf("got %d after %d attempts, want 200 after 2", got.status, len(received))
	}
	id := got.header.Get("X-Request-Id")
	want := http.Header{
		"Accept": {"application/json"}, "Content-Type": {"application/json"}, "Traceparent": {"00-1-2-01"}, "Tracestate": {"a=b"},
		"Authorization": {"Bearer backend-key"}, "X-Request-Id": {id + "-2"}, "Content-Length": received[1]["Content-Length"],
	}
	if diff := cmp.Diff(want, received[1]); diff != "" {
		t.Errorf("the second attempt (-want +got):\n%s", diff)
	}
	if first := received[0].Get("X-Request-Id"); first != id+"-1" {
		t.Errorf("X-Request-Id of the first attempt is %q, want %s-1", first, id)
	}
}

func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	got := h.complete(plainRequest).header
	for name, want := range map[string]string{
		"X-Acs-Upstream-Model": "org/Model-8B", "X-Acs-Upstream-Gpu": "H100", "Content-Type": "application/json", "Server": "",
	} {
		if got.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Get(name), want)
		}
	}
	if !strings.HasPrefix(got.Get("X-Request-Id"), "req_") || !strings.HasPrefix(got.Get("Server-Timing"), "queue;dur=") {
		t.Errorf("X-Request-Id is %q, Server-Timing %q", got.Get("X-Request-Id"), got.Get("Server-Timing"))
	}
}
