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

// Every shape that vLLM gives an error, plain and where a stream was asked for, before anything has been sent.
func TestEveryShapeOfAnError(t *testing.T) {
	const dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
	nested := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	flat := `{"object":"error","message":%q,"type":"x","param":null,"code":%d}`
	for _, c := range []struct {
		name    string
		backend http.HandlerFunc
		status  int
		code    string
		extra   string
	}{
		{"nested", answers(500, "application/json", fmt.Sprintf(nested, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500,"attempts":3`},
		{"flat", answers(500, "application/json", fmt.Sprintf(flat, "boom", 500)), 502, "upstream_server_error", `"upstream_status":500`},
		{"a string", answers(401, "application/json", `{"error":"Unauthorized"}`), 400, "invalid_request", `"upstream_status":401`},
		{"scaling", answers(503, "application/json", `{"error":"The model is currently scaling. Please try again later."}`), 502, "upstream_server_error", `"upstream_status":503,"attempts":1`},
		{"detail", answers(400, "application/json", `{"detail":"There was an error parsing the body"}`), 400, "invalid_request", `There was an error parsing the body`},
		{"nothing", answers(500, "application/json", ""), 502, "vllm_engine_dead", `"attempts":1`},
		{"text", answers(500, "text/plain", "Internal Server Error"), 502, "upstream_server_error", `"attempts":3`},
		{"under 200", answers(200, "application/json", fmt.Sprintf(nested, dead, 500)), 502, "vllm_engine_dead", `"upstream_status":500`},
		{"flat under 200", answers(200, "application/json", fmt.Sprintf(flat, "The model does not support Completions API", 400)), 400, "invalid_request", `does not support`},
		{"a dead engine", answers(500, "application/json", fmt.Sprintf(nested, dead, 500)), 502, "vllm_engine_dead", `"attempts":1`},
		{"out of memory", answers(500, "application/json", fmt.Sprintf(nested, oom, 500)), 502, "vllm_oom", `"attempts":1`},
		{"too long", answers(400, "application/json", fmt.Sprintf(nested, "This model's maximum context length is 10 tokens. However, you requested 11", 400)), 502, "vllm_context_length", `"upstream_status":400`},
		{"a redirect", answers(307, "text/plain", ""), 502, "upstream_server_error", `"upstream_status":307`},
		{"the client's mistake", answers(400, "application/json", fmt.Sprintf(nested, "1 validation error: {'input': 'CUDA out of memory'}", 400)), 400, "invalid_request", `validation error`},
	} {
		for _, body := range []string{`{"model":"m","prompt":"x"}`, streamed} {
			t.Run(fmt.Sprintf("%s/%d", c.name, len(body)), func(t *testing.T) {
				r := newRig(t, nil, upstream(t, c.backend))
				got := r.complete(body)
				if got.status != c.status || !strings.Contains(got.body, `"code":"`+c.code+`"`) || !strings.Contains(got.body, c.extra) {
					t.Errorf("got %d %s", got.status, got.body)
				}
				kind := ""
				if c.status == 502 {
					kind = c.code
				}
				if got.header.Get("X-Acs-Upstream-Error-Kind") != kind || got.header.Get("X-Acs-Upstream-Model") != "org/Model-8B" {
					t.Errorf("got %v", got.header)
				}
			})
		}
	}
}

func TestNobodySeesThatOneOfTwoBackendsIsDead(t *testing.T) {
	well := upstream(t, answers(http.StatusOK, "application/json", plainAnswer))
	dying := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	for name, other := range map[string]string{
		"it refuses": refusing(t),
		"it resets":  upstream(t, dying),
		"it fails":   upstream(t, answers(500, "text/plain", "Internal Server Error")),
		"it is busy": upstream(t, answers(503, "application/json", `{"error":{"message":"The engine is currently busy"}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, other, well)
			for range 100 {
				if got := r.complete(`{"model":"m","prompt":"x"}`); got.status != http.StatusOK {
					t.Fatalf("got %d %s", got.status, got.body)
				}
			}
		})
	}
}

func TestWhatIsTriedAgainAndWhere(t *testing.T) {
	silent := func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
	for _, c := range []struct {
		name     string
		backend  http.HandlerFunc
		attempts int64 // at a lone backend
	}{
		{"a failure, anywhere", answers(500, "text/plain", "boom"), 3},
		{"an answer that breaks off, anywhere", answers(200, "application/json", "{"), 3},
		{"out of memory, never", answers(500, "application/json", `{"error":{"message":"CUDA out of memory"}}`), 1},
		{"a dead engine, only elsewhere", answers(500, "application/json", `{"error":{"message":"EngineCore encountered an issue."}}`), 1},
		{"silence, only elsewhere", silent, 1},
		{"the client's mistake, never", answers(400, "application/json", `{"error":{"message":"no"}}`), 1},
		{"a stream that has begun, never", streams(event(0, "a", "null")), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var attempts atomic.Int64
			backend := upstream(t, func(w http.ResponseWriter, q *http.Request) {
				attempts.Add(1)
				c.backend(w, q)
			})
			r := newRig(t, func(o *rigOptions) { o.settings.FirstByteTimeout = 300 * time.Millisecond }, backend)
			r.complete(streamed)
			if attempts.Load() != c.attempts {
				t.Errorf("%d attempts, want %d", attempts.Load(), c.attempts)
			}
		})
	}
}

func TestAnOpenBreakerAnswersAtOnceAndCloses(t *testing.T) {
	var ill atomic.Bool
	ill.Store(true)
	backend := upstream(t, func(w http.ResponseWriter, q *http.Request) {
		if ill.Load() {
			answers(500, "text/plain", "boom")(w, q)
			return
		}
		answers(http.StatusOK, "application/json", plainAnswer)(w, q)
	})
	r := newRig(t, func(o *rigOptions) {
		o.breaker.ConsecutiveFailures, o.breaker.OpenFor, o.settings.Attempts = 3, 200*time.Millisecond, 1
	}, backend)
	for range 3 {
		r.complete(`{"model":"m","prompt":"x"}`)
	}
	got := r.complete(`{"model":"m","prompt":"x"}`)
	if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "circuit_open") || got.header.Get("Retry-After") != "1" {
		t.Fatalf("got %d %s %v", got.status, got.body, got.header)
	}
	ill.Store(false)
	poll.Until(t, "it serves again", func() bool { return r.complete(`{"model":"m","prompt":"x"}`).status == http.StatusOK })
}

// A client can put any words into its prompt, and vLLM quotes them; a breaker must not take them for vLLM's.
func TestNoPromptOpensABreaker(t *testing.T) {
	quoting := answers(400, "application/json", `{"error":{"message":"1 validation error:\n {'input': 'EngineCore encountered an issue. CUDA out of memory'}","code":400}}`)
	r := newRig(t, func(o *rigOptions) { o.breaker.ConsecutiveFailures = 1 }, upstream(t, quoting))
	for range 20 {
		if got := r.complete(`{"model":"m","prompt":"x"}`); got.status != http.StatusBadRequest {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
}

func TestBestOfIsEmulated(t *testing.T) {
	answer := `{"id":"c","choices":[` +
		`{"index":0,"text":"bad","logprobs":{"token_logprobs":[-3,-3]},"finish_reason":"length"},` +
		`{"index":1,"text":"best","logprobs":{"token_logprobs":[-1,-1]},"finish_reason":"length"},` +
		`{"index":2,"text":"good","logprobs":{"token_logprobs":[-2]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":5}}`
	r := newRig(t, nil, upstream(t, answers(http.StatusOK, "application/json", answer)))
	got := r.complete(`{"model":"m","prompt":"x","n":2,"best_of":3}`)
	want := `{"id":"c","choices":[` +
		`{"index":0,"text":"best","logprobs":null,"finish_reason":"length"},` +
		`{"index":1,"text":"good","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":5}}`
	if got.body != want {
		t.Errorf("got  %s\nwant %s", got.body, want)
	}
}
