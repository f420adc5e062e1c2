package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestHealthyBackendHidesAFailingOne(t *testing.T) {
	t.Parallel()
	healthy := startBackend(t, respond(http.StatusOK, "application/json", plainResponse))
	reset := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	for name, other := range map[string]string{
		"connection refused": refusingBackend(t),
		"connection reset":   startBackend(t, reset),
		"error 500":          startBackend(t, respond(500, "text/plain", "Internal Server Error")),
		"busy":               startBackend(t, respond(503, "application/json", `{"error":{"message":"The engine is currently busy"}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, other, healthy)
			for range 100 {
				if got := h.complete(plainRequest); got.status != http.StatusOK {
					t.Fatalf("got %d %s", got.status, got.body)
				}
			}
		})
	}
}

// One of two backends fails. Whether the request is sent to the other one depends on the failure.
func TestFailoverDependsOnTheFailure(t *testing.T) {
	t.Parallel()
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	reset := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	truncated := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "999")
		io.WriteString(w, plainResponse)
	}
	errorBody := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	plain, stream := respond(http.StatusOK, "application/json", plainResponse), respondStream(event(0, "a", `"stop"`), doneEvent)
	for _, c := range []struct {
		name     string
		failure  http.HandlerFunc
		body     string
		failover bool
	}{
		{"silence", silent, streamRequest, true},
		{"silence, plain", silent, plainRequest, true},
		{"a reset", reset, streamRequest, true},
		{"a truncated response", truncated, plainRequest, true},
		{"a dead engine", respond(500, "application/json", fmt.Sprintf(errorBody, "EngineCore encountered an issue.", 500)), streamRequest, true},
		{"a dead engine with status 200", respond(200, "application/json", fmt.Sprintf(errorBody, "EngineCore encountered an issue.", 500)), plainRequest, true},
		{"a dead engine as the first event", respondStream("data: "+fmt.Sprintf(errorBody, "EngineCore encountered an issue.", 400)+"\n\n", doneEvent), streamRequest, true},
		{"an abort", respondStream(event(0, "", `"abort"`), doneEvent), streamRequest, true},
		{"an abort, plain", respond(200, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`), plainRequest, true},
		{"a choice that is missing, plain", respond(200, "application/json", `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0}}`), plainRequest, true},
		{"a choice without a finish reason, plain", respond(200, "application/json", `{"choices":[{"index":0,"text":"a","finish_reason":null}]}`), plainRequest, true},
		{"a full queue", respond(503, "application/json", fmt.Sprintf(errorBody, "The engine is currently busy", 503)), streamRequest, true},
		{"too many requests", respond(429, "text/plain", "slow down"), plainRequest, true},
		{"a wrong key", respond(401, "application/json", `{"error":"Unauthorized"}`), streamRequest, true},
		{"no permission", respond(403, "text/plain", "Forbidden"), plainRequest, true},
		{"another model", respond(404, "application/json", fmt.Sprintf(errorBody, "The model `org/Model-8B` does not exist.", 404)), plainRequest, true},
		{"no such method", respond(405, "application/json", `{"detail":"Method Not Allowed"}`), plainRequest, true},
		{"an empty stream", respondStream(""), streamRequest, true},
		{"out of memory", respond(500, "application/json", fmt.Sprintf(errorBody, "CUDA out of memory. Tried to allocate", 500)), streamRequest, false},
		{"out of memory as the first event", respondStream("data: "+fmt.Sprintf(errorBody, "CUDA out of memory. Tried to allocate", 500)+"\n\n", doneEvent), streamRequest, false},
		{"a prompt that is too long", respond(400, "application/json", fmt.Sprintf(errorBody, "This model's maximum context length is 10 tokens.", 400)), streamRequest, false},
		{"a client error", respond(400, "application/json", fmt.Sprintf(errorBody, "top_p must be in (0, 1], got 0.", 400)), streamRequest, false},
		{"a stream that has begun", respondStream(event(0, "a", "null")), streamRequest, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()                      // silence waits
			var failing, healthy atomic.Int64 // attempts
			h := newHarness(t, func(o *harnessOptions) {
				o.breaker.OpenFor = time.Nanosecond
				if strings.HasPrefix(c.name, "silence") {
					o.settings.FirstByteTimeout = 4 * time.Second
				}
			}, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				failing.Add(1)
				c.failure(w, r)
			}), startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				healthy.Add(1)
				if c.body == streamRequest {
					stream(w, r)
				} else {
					plain(w, r)
				}
			}))
			for sent := int64(1); failing.Load() == 0 || sent < 5; sent++ {
				before := failing.Load()
				got := h.complete(c.body)
				served := got.status == http.StatusOK && !strings.Contains(got.body, `"error"`)
				if failed := failing.Load() > before; served != (c.failover || !failed) {
					t.Fatalf("got %d %s after an attempt that failed: %t", got.status, got.body, failed)
				}
				if c.failover && healthy.Load() != sent {
					t.Fatalf("the healthy backend received %d of %d requests", healthy.Load(), sent)
				}
				if !c.failover && healthy.Load()+failing.Load() != sent {
					t.Fatalf("%d attempts for %d requests", healthy.Load()+failing.Load(), sent)
				}
				if sent == 1000 {
					t.Fatal("the failing backend received no request")
				}
			}
		})
	}
}

// The breaker counts a request once per backend, however often it was retried there.
func TestRetriedRequestCountsOnceForTheBreaker(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int64
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 3 }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		attempts.Add(1)
		respond(502, "text/plain", "Bad Gateway")(w, r)
	}))
	for i, want := range []int64{3, 6, 7} { // the first attempt of the third request opens the breaker
		if got := h.complete(plainRequest); got.status != http.StatusBadGateway || attempts.Load() != want {
			t.Fatalf("request %d: got %d %s after %d attempts, want 502 after %d", i, got.status, got.body, attempts.Load(), want)
		}
	}
	if got := h.complete(plainRequest); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "circuit_open") {
		t.Errorf("after 3 requests: got %d %s, want circuit_open", got.status, got.body)
	}
}

// A failure after a stream's first event is a failure like any other: as many in a row open the breaker.
func TestStreamsThatBreakOffHalfwayOpenTheBreaker(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 6 }, startBackend(t, respondStream(event(0, "a", "null"))))
	for i := range 6 {
		if got := h.complete(streamRequest); got.status != http.StatusOK || !strings.Contains(got.body, `"upstream_server_error"`) {
			t.Fatalf("stream %d: got %d %s, want a stream that breaks off", i, got.status, got.body)
		}
	}
	if got := h.complete(streamRequest); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "circuit_open") {
		t.Errorf("after 6 streams: got %d %s, want circuit_open", got.status, got.body)
	}
}

func TestStreamsThatCompleteResetTheCount(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	breaksOff, completes := respondStream(event(0, "a", "null")), respondStream(event(0, "a", `"stop"`), doneEvent)
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 2 }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%2 == 0 {
			breaksOff(w, r)
		} else {
			completes(w, r)
		}
	}))
	for i := range 12 {
		if got := h.complete(streamRequest); got.status != http.StatusOK {
			t.Fatalf("stream %d: got %d %s", i, got.status, got.body)
		}
	}
}
