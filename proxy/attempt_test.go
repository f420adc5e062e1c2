package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/internal/poll"
)

// The errors have every shape that vLLM gives them, for plain and for streamed requests, before any of the response has
// been sent.
func TestBackendErrorIsClassifiedInEveryShape(t *testing.T) {
	const dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
	nested := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	flat := `{"object":"error","message":%q,"type":"x","param":null,"code":%d}`
	for _, c := range []struct {
		name    string
		backend http.HandlerFunc
		status  int
		code    string
		extra   string // another part of the response
	}{
		{"nested", respond(500, "application/json", fmt.Sprintf(nested, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500,"attempts":3`},
		{"flat", respond(500, "application/json", fmt.Sprintf(flat, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500`},
		{"a JSON string", respond(401, "application/json", `{"error":"Unauthorized"}`), 400, "invalid_request", `"upstream_status":401`},
		{"scaling", respond(503, "application/json", `{"error":"The model is currently scaling. Please try again later."}`), 502, "upstream_server_error", `"upstream_status":503,"attempts":1`},
		{"detail", respond(400, "application/json", `{"detail":"There was an error parsing the body"}`), 400, "invalid_request", `There was an error parsing the body`},
		{"an empty body", respond(500, "application/json", ""), 502, "vllm_engine_dead", `"attempts":1`},
		{"plain text", respond(500, "text/plain", "Internal Server Error"), 502, "upstream_server_error", `"attempts":3`},
		{"with status 200", respond(200, "application/json", fmt.Sprintf(nested, dead, 500)), 502, "vllm_engine_dead", `"upstream_status":500`},
		{"flat with status 200", respond(200, "application/json", fmt.Sprintf(flat, "The model does not support Completions API", 400)), 400, "invalid_request", `does not support`},
		{"a dead engine", respond(500, "application/json", fmt.Sprintf(nested, dead, 500)), 502, "vllm_engine_dead", `"attempts":1`},
		{"out of memory", respond(500, "application/json", fmt.Sprintf(nested, oom, 500)), 502, "vllm_oom", `"attempts":1`},
		{"too long", respond(400, "application/json", fmt.Sprintf(nested, "This model's maximum context length is 10 tokens. However, you requested 11", 400)), 502, "vllm_context_length", `"upstream_status":400`},
		{"a redirect", respond(307, "text/plain", ""), 502, "upstream_server_error", `"upstream_status":307`},
		{"a client error", respond(400, "application/json", fmt.Sprintf(nested, "1 validation error: {'input': 'CUDA out of memory'}", 400)), 400, "invalid_request", `validation error`},
	} {
		for _, body := range []string{plainRequest, streamRequest} {
			t.Run(fmt.Sprintf("%s, stream %t", c.name, body == streamRequest), func(t *testing.T) {
				h := newHarness(t, nil, startBackend(t, c.backend))
				got := h.complete(body)
				if got.status != c.status || !strings.Contains(got.body, `"code":"`+c.code+`"`) || !strings.Contains(got.body, c.extra) {
					t.Errorf("got %d %s, want %d %s", got.status, got.body, c.status, c.code)
				}
				kind := ""
				if c.status == 502 {
					kind = c.code
				}
				if got.header.Get("X-Acs-Upstream-Error-Kind") != kind || got.header.Get("X-Acs-Upstream-Model") != "org/Model-8B" {
					t.Errorf("X-Acs-Upstream-Error-Kind is %q, want %q; headers: %v", got.header.Get("X-Acs-Upstream-Error-Kind"), kind, got.header)
				}
			})
		}
	}
}

func TestRetriesAtTheOnlyBackend(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name     string
		backend  http.HandlerFunc
		attempts int64
	}{
		{"a failure: retried anywhere", respond(500, "text/plain", "boom"), 3},
		{"a truncated response: retried anywhere", respond(200, "application/json", "{"), 3},
		{"out of memory: never retried", respond(500, "application/json", `{"error":{"message":"CUDA out of memory"}}`), 1},
		{"a dead engine: retried at other backends only", respond(500, "application/json", `{"error":{"message":"EngineCore encountered an issue."}}`), 1},
		{"silence: retried at other backends only", silent, 1},
		{"a client error: never retried", respond(400, "application/json", `{"error":{"message":"no"}}`), 1},
		{"a stream that has begun: never retried", respondStream(event(0, "a", "null")), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var attempts atomic.Int64
			backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				attempts.Add(1)
				c.backend(w, r)
			})
			h := newHarness(t, func(o *harnessOptions) { o.settings.FirstByteTimeout = 300 * time.Millisecond }, backend)
			h.complete(streamRequest)
			if attempts.Load() != c.attempts {
				t.Errorf("got %d attempts, want %d", attempts.Load(), c.attempts)
			}
		})
	}
}

func TestOpenBreakerRefusesAtOnceAndCloses(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if failing.Load() {
			respond(500, "text/plain", "boom")(w, r)
			return
		}
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
	})
	h := newHarness(t, func(o *harnessOptions) {
		o.breaker.ConsecutiveFailures, o.breaker.OpenFor, o.settings.Attempts = 3, 200*time.Millisecond, 1
	}, backend)
	for range 3 {
		h.complete(plainRequest)
	}
	got := h.complete(plainRequest)
	if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "circuit_open") || got.header.Get("Retry-After") != "1" {
		t.Fatalf("got %d %s %v", got.status, got.body, got.header)
	}
	failing.Store(false)
	poll.Until(t, "the breaker has closed", func() bool { return h.complete(plainRequest).status == http.StatusOK })
}

// vLLM quotes the prompt in some errors, so a client can put any words there. The breaker must not read them as vLLM's
// own.
func TestErrorThatQuotesThePromptDoesNotOpenTheBreaker(t *testing.T) {
	quoting := respond(400, "application/json", `{"error":{"message":"1 validation error:\n {'input': 'EngineCore encountered an issue. CUDA out of memory'}","code":400}}`)
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 }, startBackend(t, quoting))
	for range 20 {
		if got := h.complete(plainRequest); got.status != http.StatusBadRequest {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
}
