package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/quota"
	"basegate/identity"
	"basegate/internal/poll"
)

// blockingBackend is a backend that responds to one request for each value sent to release.
type blockingBackend struct {
	arrived chan string // receives the prompt of each request
	release chan struct{}
}

func newBlockingBackend() *blockingBackend {
	return &blockingBackend{arrived: make(chan string, 1000), release: make(chan struct{}, 1000)}
}

func (b *blockingBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.arrived <- gjson.GetBytes(body, "prompt").Str
	select {
	case <-b.release:
		respond(200, "application/json", plainResponse)(w, r)
	case <-r.Context().Done():
	}
}

// completeAsync posts a completion request and returns a channel that receives the response. The channel is closed
// without one if the request fails.
func (h *harness) completeAsync(ctx context.Context, body string) <-chan response {
	out := make(chan response, 1)
	req := h.newRequest(ctx, http.MethodPost, "/v1/completions", body)
	go func() {
		defer close(out)
		resp, err := client.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			out <- response{resp.StatusCode, resp.Header, string(text)}
		}
	}()
	return out
}

// awaitQueue waits until as many requests are running and waiting as in want.
func (h *harness) awaitQueue(description string, want budget.Stats) {
	h.t.Helper()
	poll.Until(h.t, description, func() bool {
		load := h.ledger.Load()
		return want == budget.Stats{Running: load.Running, Waiting: load.Waiting}
	})
}

// promptRequest returns a plain request whose prompt is "p" and a number.
func promptRequest(i int) string { return fmt.Sprintf(`{"model":"m","prompt":"p%d"}`, i) }

// concurrency returns an option that sets the concurrency of keys.
func concurrency(n int) func(*harnessOptions) {
	return func(o *harnessOptions) { o.settings.ConcurrencyPerKey = n }
}

func TestRequestsOfAKeyAreForwardedInOrderUpToItsConcurrency(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(2), startBackend(t, backend.ServeHTTP))
	var all []<-chan response
	for i := range 6 {
		all = append(all, h.completeAsync(t.Context(), promptRequest(i)))
		h.awaitQueue("the request has arrived", budget.Stats{Running: min(i+1, 2), Waiting: max(i-1, 0)})
	}
	first := map[string]bool{<-backend.arrived: true, <-backend.arrived: true}
	if !first["p0"] || !first["p1"] {
		t.Errorf("the backend first received %v, want p0 and p1", first)
	}
	for i := 2; i < 6; i++ {
		backend.release <- struct{}{}
		if got := <-backend.arrived; got != "p"+strconv.Itoa(i) {
			t.Errorf("request %d at the backend is %s, want p%d", i, got, i)
		}
	}
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	for i, one := range all {
		got := <-one
		if got.status != 200 {
			t.Errorf("request %d: got %d %s", i, got.status, got.body)
		}
		queued := 0.0
		if _, err := fmt.Sscanf(got.header.Get("Server-Timing"), "queue;dur=%f, upstream;dur=", &queued); err != nil || queued < 0 {
			t.Errorf("request %d: Server-Timing is %q: %v", i, got.header.Get("Server-Timing"), err)
		}
	}
	if !strings.Contains(h.log.String(), `"queue_ms":`) {
		t.Error("the log has no queue_ms")
	}
}

func TestEveryFailureReleasesTheSlot(t *testing.T) {
	t.Parallel()
	h := newHarness(t, concurrency(1), startBackend(t, respond(500, "text/plain", "Internal Server Error")))
	for i, body := range []string{
		promptRequest(1), `{"model":"m","prompt":[1],"max_tokens":1000000}`, `{"model":"m","prompt":"x","stream":true}`,
		`{"model":"m","prompt":"x","max_tokens":0}`,
	} {
		h.complete(body)
		h.awaitQueue(fmt.Sprintf("request %d has released its slot", i), budget.Stats{})
	}
}

func TestRequestIsRefusedIfTooMuchIsWaiting(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, func(o *harnessOptions) { o.settings.ConcurrencyPerKey, o.maxBuffered = 1, 3*admission.WaitingCost }, startBackend(t, backend.ServeHTTP))
	first := h.completeAsync(t.Context(), `{"model":"m","prompt":"`+strings.Repeat("x", 200)+`"}`) // runs at once
	<-backend.arrived
	second := h.completeAsync(t.Context(), promptRequest(1))
	h.awaitQueue("one request waits", budget.Stats{Running: 1, Waiting: 1})
	poll.Until(t, "its wait is counted", func() bool { return h.memory.Stats().BufferedBytes >= admission.WaitingCost })
	refused := h.complete(`{"model":"m","prompt":"` + strings.Repeat("x", 80) + `"}`)
	if refused.status != 503 || !strings.Contains(refused.body, `"overloaded"`) || refused.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 overloaded with Retry-After; headers: %v", refused.status, refused.body, refused.header)
	}
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	if a, b := (<-first).status, (<-second).status; a != 200 || b != 200 {
		t.Errorf("got %d and %d, want 200 and 200", a, b)
	}
}

func TestKeyPausedWhileItsRequestWaitsIsRefused(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	first := h.completeAsync(t.Context(), promptRequest(0))
	<-backend.arrived
	second := h.completeAsync(t.Context(), promptRequest(1))
	h.awaitQueue("one request waits", budget.Stats{Running: 1, Waiting: 1})
	all, err := h.keys.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.keys.Pause(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	if got := <-second; got.status != 401 {
		t.Errorf("the waiting request: got %d %s, want 401", got.status, got.body)
	}
	backend.release <- struct{}{}
	if got := (<-first).status; got != 200 {
		t.Errorf("the running request: got %d, want 200", got)
	}
	h.awaitQueue("every slot is free", budget.Stats{})
}

// The secret of a request is looked up again after a wait of a second.
func TestSecretReplacedWhileItsRequestWaitsIsRefused(t *testing.T) {
	t.Parallel() // it waits for that second
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(1000) }))
	first := h.completeAsync(t.Context(), promptRequest(0))
	<-backend.arrived
	second := h.completeAsync(t.Context(), promptRequest(1))
	h.awaitQueue("one request waits", budget.Stats{Running: 1, Waiting: 1})
	all := must(h.keys.List(t.Context()))(t)
	if _, _, err := h.keys.Rotate(t.Context(), all[0].ID, 0); err != nil {
		t.Fatal(err)
	}
	<-time.NewTimer(1100 * time.Millisecond).C
	backend.release <- struct{}{}
	if got := (<-first).status; got != 200 {
		t.Errorf("the running request: got %d, want 200", got)
	}
	if got := <-second; got.status != 401 || got.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("the waiting request: got %d %s, want 401 without a budget; headers %v", got.status, got.body, got.header)
	}
	if row := summary(h.awaitRows(2)[1]); row != `settled 401 "invalid_api_key" 0+0` {
		t.Errorf("the row of the waiting request is %s", row)
	}
	h.awaitQueue("every slot is free", budget.Stats{})
}

func TestConcurrencyOfAKeyOverridesTheDefault(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	h.updateKey(func(f *identity.Key) { f.Concurrency = 3 })
	var all sync.WaitGroup
	for i := range 4 {
		one := h.completeAsync(t.Context(), promptRequest(i))
		all.Go(func() { <-one })
	}
	h.awaitQueue("three requests run", budget.Stats{Running: 3, Waiting: 1})
	for range 4 {
		backend.release <- struct{}{}
	}
	all.Wait()
}
