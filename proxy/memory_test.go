package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"basegate/budget"
	"basegate/identity"
	"basegate/internal/poll"
)

// startUploads starts uploads of that many bytes, of which one byte never arrives, until one is refused.
func startUploads(t *testing.T, h *harness, size int) {
	t.Helper()
	for first := h.memory.Stats(); h.memory.Stats().Refused == first.Refused; {
		body, writer := io.Pipe()
		t.Cleanup(func() { writer.Close() })
		req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", "")
		req.Body, req.ContentLength, req.GetBody = body, int64(size), nil
		go func() {
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		before := h.memory.Stats()
		go writer.Write([]byte(strings.Repeat(" ", size-1)))
		poll.Until(t, "the upload is counted or refused", func() bool {
			now := h.memory.Stats()
			return now.Refused > before.Refused || now.BufferedBytes >= before.BufferedBytes+int64(size)/2
		})
	}
}

// The uploads that one key does not finish leave memory for the bodies of others.
func TestUnfinishedUploadsOfAKeyLeaveMemoryForOthers(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.maxBuffered = 4 << 20 }, startBackend(t, respond(200, "application/json", plainResponse)))
	_, other, err := h.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	startUploads(t, h, 400<<10)
	startUploads(t, h, 64<<10)
	startUploads(t, h, 32<<10)
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 40<<10)+`"}`)
	req.Header.Set("Authorization", "Bearer "+other)
	if got := h.do(req); got.status != http.StatusOK {
		t.Errorf("the other key: got %d %s, want 200", got.status, got.body)
	}
}

// A response over the limit is refused without reading it, and does not open the breaker.
func TestPlainResponseOverTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	long := `{"choices":[{"index":0,"text":"` + strings.Repeat("x", 100<<10) + `","finish_reason":"stop"}]}`
	for name, length := range map[string]bool{"with a Content-Length": true, "chunked": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(o *harnessOptions) {
				o.settings.MaxAnswerBytes, o.breaker.ConsecutiveFailures = 100<<10, 1
			}, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "short") {
					respond(200, "application/json", plainResponse)(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if length {
					w.Header().Set("Content-Length", fmt.Sprint(len(long)))
				}
				io.WriteString(w, long)
			}))
			if got := h.complete(plainRequest); got.status != http.StatusBadGateway || !strings.Contains(got.body, `"upstream_server_error"`) {
				t.Errorf("got %d %.200s, want 502 upstream_server_error", got.status, got.body)
			}
			if got := h.complete(`{"model":"m","prompt":"short"}`); got.status != http.StatusOK {
				t.Errorf("a short response: got %d %s, want 200", got.status, got.body)
			}
			h.awaitQueue("nothing is held", budget.Stats{})
		})
	}
}

func TestEventOverTheLimitEndsTheStream(t *testing.T) {
	t.Parallel()
	long := event(0, strings.Repeat("x", 200<<10), "null")
	h := newHarness(t, func(o *harnessOptions) {
		o.settings.MaxAnswerBytes, o.breaker.ConsecutiveFailures = 100<<10, 1
	}, startBackend(t, respondStream(event(0, "a", "null"), long, doneEvent)))
	for range 2 {
		got := h.complete(streamRequest)
		if got.status != http.StatusOK || strings.Contains(got.body, "xxx") || !strings.Contains(got.body, `"upstream_server_error"`) {
			t.Errorf("got %d %.300s, want an event with upstream_server_error", got.status, got.body)
		}
	}
}

// A plain response that takes more memory than the key may hold is refused with 503, and does not open the breaker.
func TestPlainResponseCountsAsBufferedMemory(t *testing.T) {
	t.Parallel()
	long := `{"choices":[{"index":0,"text":"` + strings.Repeat("x", 1<<20) + `","finish_reason":"stop"}]}`
	backend := respond(200, "application/json", long)
	h := newHarness(t, func(o *harnessOptions) { o.maxBuffered, o.breaker.ConsecutiveFailures = 1<<20, 1 }, startBackend(t, backend))
	for range 2 {
		if got := h.complete(plainRequest); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
			t.Errorf("got %d %.200s, want 503 overloaded", got.status, got.body)
		}
	}
	h.awaitQueue("nothing is held", budget.Stats{})
}

// faultyTransport fails every completion with an error while it is not nil.
type faultyTransport struct {
	http.RoundTripper
	fault atomic.Pointer[error]
}

func (f *faultyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if fault := f.fault.Load(); fault != nil && r.Method == http.MethodPost {
		return nil, *fault
	}
	return f.RoundTripper.RoundTrip(r)
}

// Too few file descriptors of the gateway are not a failure of a backend.
func TestLocalFaultIsNotCountedAgainstABackend(t *testing.T) {
	t.Parallel()
	transport := new(faultyTransport)
	h := newHarness(t, func(o *harnessOptions) {
		transport.RoundTripper = o.transport
		o.transport, o.breaker.ConsecutiveFailures = transport, 1
	}, startBackend(t, respond(200, "application/json", plainResponse)))
	var fault error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	transport.fault.Store(&fault)
	for range 5 {
		got := h.complete(plainRequest)
		if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) || got.header.Get("Retry-After") == "" {
			t.Errorf("got %d %s, want 503 overloaded with Retry-After", got.status, got.body)
		}
	}
	transport.fault.Store(nil)
	if got := h.complete(plainRequest); got.status != http.StatusOK {
		t.Errorf("after the fault: got %d %s, want 200", got.status, got.body)
	}
}

// A request that has killed two engines kills no third one.
func TestRequestThatKillsEnginesIsTriedTwice(t *testing.T) {
	t.Parallel()
	var deaths atomic.Int64
	die := func(w http.ResponseWriter, r *http.Request) {
		deaths.Add(1)
		respond(500, "application/json", `{"error":{"message":"EngineCore encountered an issue.","type":"x","param":null,"code":500}}`)(w, r)
	}
	h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 4 },
		startBackend(t, die), startBackend(t, die), startBackend(t, die), startBackend(t, die))
	if got := h.complete(plainRequest); got.status != http.StatusBadGateway || !strings.Contains(got.body, `"vllm_engine_dead"`) {
		t.Errorf("got %d %s, want 502 vllm_engine_dead", got.status, got.body)
	}
	if got := deaths.Load(); got != 2 {
		t.Errorf("the request killed %d engines, want 2", got)
	}
}

// respondWithComments returns a handler that sends events, and then comments and events without data until the request is
// cancelled.
func respondWithComments(events string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		respondStream(events+": ping\n\n")(w, r)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		none := []string{": ping\n\n", ": ping\n", "\r\n", "retry: 5\n\n", "event: ping\ndata:\n\n"}
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				respondStream(none[i%len(none)])(w, r)
			case <-r.Context().Done():
				return
			}
		}
	}
}

func TestCommentsAreNotAFirstEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) {
		o.settings.FirstByteTimeout, o.settings.IdleTimeout, o.settings.Attempts = 100*time.Millisecond, 100*time.Millisecond, 1
	}, startBackend(t, respondWithComments("")))
	if got := h.complete(streamRequest); got.status != http.StatusBadGateway || !strings.Contains(got.body, `"upstream_unreachable"`) {
		t.Errorf("got %d %.300s, want 502 upstream_unreachable", got.status, got.body)
	}
}

func TestCommentsAreNotProgress(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.settings.IdleTimeout = 100 * time.Millisecond },
		startBackend(t, respondWithComments(event(0, "a", "null"))))
	if got := h.complete(streamRequest); got.status != http.StatusOK || !strings.Contains(got.body, `"upstream_unreachable"`) {
		t.Errorf("got %d %.300s, want an event with upstream_unreachable", got.status, got.body)
	}
}

// A client that disconnects while its prompts are counted ends the count, and its slot is free only then.
func TestCountEndsWithItsClient(t *testing.T) {
	t.Parallel()
	counting, stopped := make(chan struct{}, 100), make(chan struct{}, 100)
	backend := startFilteredBackend(t, respond(200, "application/json", plainResponse), func(r *http.Request) bool {
		if r.URL.Path == "/tokenize" {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if len(body) > 4000 { // not a probe
				counting <- struct{}{}
				<-r.Context().Done()
				stopped <- struct{}{}
			}
		}
		return true
	})
	h := newHarness(t, nil, backend)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		resp, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x ", 4000)+`"}`))
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	<-counting
	if s := h.memory.Stats(); s.BufferedBytes < 8000 {
		t.Errorf("while the prompt is counted: got %+v, want its memory counted", s)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	<-stopped
	poll.Until(t, "nothing is held", func() bool { return h.memory.Stats().BufferedBytes == 0 })
}
