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
	t.Parallel()
	const dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
	nested := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	flat := `{"object":"error","message":%q,"type":"x","param":null,"code":%d}`
	for _, c := range []struct {
		name    string
		backend http.HandlerFunc // nil: it refuses connections
		status  int
		code    string
		extra   string // another part of the response
	}{
		{"a refused connection", nil, 502, "upstream_unreachable", `"attempts":3`},
		{"nested", respond(500, "application/json", fmt.Sprintf(nested, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500,"attempts":1`},
		{"flat", respond(500, "application/json", fmt.Sprintf(flat, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500`},
		{"a JSON string", respond(401, "application/json", `{"error":"Unauthorized"}`), 502, "upstream_server_error", `"upstream_status":401,"attempts":1`},
		{"scaling", respond(503, "application/json", `{"error":"The model is currently scaling. Please try again later."}`), 503, "overloaded", `"retry_after_seconds":5`},
		{"too many requests", respond(429, "text/plain", "slow down"), 503, "overloaded", `"retry_after_seconds":5`},
		{"detail", respond(400, "application/json", `{"detail":"There was an error parsing the body"}`), 400, "invalid_request", `There was an error parsing the body`},
		{"an empty body", respond(500, "application/json", ""), 502, "upstream_server_error", `"attempts":1`},
		{"plain text", respond(500, "text/plain", "Internal Server Error"), 502, "upstream_server_error", `"attempts":1`},
		{"a text of something in between", respond(502, "text/plain", "Bad Gateway"), 502, "upstream_server_error", `"attempts":3`},
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
				t.Parallel()
				var address string
				if c.backend == nil {
					address = refusingBackend(t)
				} else {
					address = startBackend(t, c.backend)
				}
				h := newHarness(t, nil, address)
				got := h.complete(body)
				if got.status != c.status || !strings.Contains(got.body, `"code":"`+c.code+`"`) || !strings.Contains(got.body, c.extra) {
					t.Errorf("got %d %s, want %d %s", got.status, got.body, c.status, c.code)
				}
				kind := ""
				if c.status >= 500 {
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
	t.Parallel()
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name     string
		backend  http.HandlerFunc
		attempts int64
	}{
		{"a failure of something in between: retried anywhere", respond(502, "text/plain", "boom"), 3},
		{"a failure of an engine that is healthy: retried at other backends only", respond(500, "text/plain", "boom"), 1},
		{"a truncated response: retried anywhere", respond(200, "application/json", "{"), 3},
		{"out of memory: never retried", respond(500, "application/json", `{"error":{"message":"CUDA out of memory"}}`), 1},
		{"a dead engine: retried at other backends only", respond(500, "application/json", `{"error":{"message":"EngineCore encountered an issue."}}`), 1},
		{"silence: retried at other backends only", silent, 1},
		{"a client error: never retried", respond(400, "application/json", `{"error":{"message":"no"}}`), 1},
		{"a stream that has begun: never retried", respondStream(event(0, "a", "null")), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var attempts atomic.Int64
			backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				attempts.Add(1)
				c.backend(w, r)
			})
			h := newHarness(t, func(o *harnessOptions) {
				if strings.HasPrefix(c.name, "silence") {
					o.settings.FirstByteTimeout = 5 * time.Second
				}
			}, backend)
			h.complete(streamRequest)
			if attempts.Load() != c.attempts {
				t.Errorf("got %d attempts, want %d", attempts.Load(), c.attempts)
			}
		})
	}
}

func TestOpenBreakerRefusesAtOnceAndCloses(t *testing.T) {
	t.Parallel()
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
		o.breaker.ConsecutiveFailures, o.breaker.OpenFor, o.settings.Attempts = 3, 4*time.Second, 1
	}, backend)
	for range 3 {
		h.complete(plainRequest)
	}
	got := h.complete(plainRequest)
	if retry := got.header.Get("Retry-After"); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "circuit_open") || retry < "1" || retry > "4" {
		t.Fatalf("got %d %s %v", got.status, got.body, got.header)
	}
	failing.Store(false)
	poll.Until(t, "the breaker has closed", func() bool { return h.complete(plainRequest).status == http.StatusOK })
}

// vLLM quotes the prompt in some errors, so a client can put any words there. The breaker must not read them as vLLM's
// own.
func TestErrorThatQuotesThePromptDoesNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	quoting := respond(400, "application/json", `{"error":{"message":"1 validation error:\n {'input': 'EngineCore encountered an issue. CUDA out of memory'}","code":400}}`)
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 }, startBackend(t, quoting))
	for range 20 {
		if got := h.complete(plainRequest); got.status != http.StatusBadRequest {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
}

// A status that says that the operator has configured the backend wrongly counts against it, and the response names
// nothing of what the operator runs.
func TestBackendThatRefusesTheGatewayCountsAndIsNotDescribed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 405} {
		h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 2 },
			startBackend(t, respond(status, "application/json", `{"error":{"message":"The model org/Secret at http://10.0.0.5 is not served to key-123"}}`)))
		for range 2 {
			got := h.complete(plainRequest)
			if got.status != 502 || !strings.Contains(got.body, `"code":"upstream_server_error"`) || !strings.Contains(got.body, fmt.Sprintf(`"upstream_status":%d`, status)) {
				t.Errorf("%d: got %d %s, want 502 upstream_server_error", status, got.status, got.body)
			}
			for _, secret := range []string{"Secret", "10.0.0.5", "key-123"} {
				if strings.Contains(got.body, secret) {
					t.Errorf("%d: the response names %s: %s", status, secret, got.body)
				}
			}
		}
		if got := h.complete(plainRequest); got.status != 503 || !strings.Contains(got.body, `"code":"circuit_open"`) {
			t.Errorf("%d: got %d %s, want an open breaker", status, got.status, got.body)
		}
	}
}

func TestBusyBackendsDoNotCountAndEndAsOverloaded(t *testing.T) {
	t.Parallel()
	busy := respond(503, "application/json", `{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}`)
	limited := respond(429, "application/json", `{"error":{"message":"Too many requests","code":429}}`)
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 }, startBackend(t, busy), startBackend(t, limited))
	for _, body := range []string{plainRequest, streamRequest, plainRequest} {
		got := h.complete(body)
		if got.status != 503 || !strings.Contains(got.body, `"code":"overloaded"`) || got.header.Get("Retry-After") != "5" {
			t.Errorf("got %d %s, Retry-After %s, want 503 overloaded after 5 seconds", got.status, got.body, got.header.Get("Retry-After"))
		}
	}
}

// Overloaded is for backends that are all busy: a busy one does not hide the failure of another, whatever their order.
func TestBusyBackendDoesNotHideTheFailureOfAnother(t *testing.T) {
	t.Parallel()
	busy := startBackend(t, respond(429, "application/json", `{"error":{"message":"Too many requests","code":429}}`))
	failing := startBackend(t, respond(404, "application/json", `{"error":{"message":"no such model","code":404}}`))
	for range 4 { // the first attempt is at either
		h := newHarness(t, nil, busy, failing)
		if got := h.complete(plainRequest); got.status != 502 || !strings.Contains(got.body, `"code":"upstream_server_error"`) {
			t.Errorf("got %d %s, want 502 upstream_server_error", got.status, got.body)
		}
	}
}

// vLLM's param is kept if it names a field that the client sent.
func TestParamOfVLLMIsKeptIfItNamesAFieldOfTheClient(t *testing.T) {
	t.Parallel()
	for param, want := range map[string]string{
		`"top_p"`: `"top_p"`, `"body.top_p"`: `"top_p"`, `"prompt"`: `"prompt"`, `"seed"`: "null", `"input_tokens"`: "null", `null`: "null", `"stop"`: "null",
	} {
		h := newHarness(t, nil, startBackend(t, respond(400, "application/json", `{"error":{"message":"no","type":"BadRequestError","param":`+param+`,"code":400}}`)))
		got := h.complete(`{"model":"m","prompt":"x","top_p":0.5,"stop":null}`)
		if got.status != 400 || !strings.Contains(got.body, `"param":`+want+`,`) || !strings.Contains(got.body, `"upstream_status":400`) {
			t.Errorf("%s: got %d %s, want param %s", param, got.status, got.body, want)
		}
	}
}

// The official SDKs retry every 5xx. Two failures of vLLM would repeat with the same request, so the response says no.
func TestFailuresThatWouldRepeatAreNotRetriedByClients(t *testing.T) {
	t.Parallel()
	for message, want := range map[string][2]string{
		"CUDA out of memory. Tried to allocate 2.00 GiB.":                                    {"vllm_oom", "false"},
		"This model's maximum context length is 10 tokens. However, you requested 30 tokens": {"vllm_context_length", "false"},
		"EngineCore encountered an issue.":                                                   {"vllm_engine_dead", ""},
		"boom":                                                                               {"upstream_server_error", ""},
	} {
		backend := startBackend(t, respond(500, "application/json", fmt.Sprintf(`{"error":{"message":%q,"code":500}}`, message)))
		for _, body := range []string{plainRequest, streamRequest} {
			got := newHarness(t, nil, backend).complete(body) // of its own: a dead engine opens the breaker
			if got.status != 502 || !strings.Contains(got.body, `"code":"`+want[0]+`"`) || got.header.Get("X-Should-Retry") != want[1] || got.header.Get("X-Acs-Upstream-Error-Kind") != want[0] {
				t.Errorf("%s: got %d %s, headers %v, want %s with x-should-retry %q", message, got.status, got.body, got.header, want[0], want[1])
			}
		}
	}
}
