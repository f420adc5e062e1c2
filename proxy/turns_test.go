package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/budget/admission"
	"basegate/identity"
	"basegate/internal/poll"
)

// fullEngine is an engine whose completions wait for release.
type fullEngine struct {
	url      string
	full     atomic.Bool  // it reports that it runs one request, and that all others wait
	crowded  atomic.Bool  // it reports that it runs one request, and that 100 others wait
	running  atomic.Int64 // requests that have arrived and not ended
	arrived  atomic.Int64 // requests
	marked   atomic.Bool  // a request with MARKED has arrived
	readings atomic.Int64 // of its load
	release  chan struct{}
}

func startFullEngine(t *testing.T) *fullEngine {
	t.Helper()
	e := &fullEngine{release: make(chan struct{})}
	complete := func(w http.ResponseWriter, r *http.Request) {
		e.running.Add(1)
		defer e.running.Add(-1)
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "MARKED") {
			e.marked.Store(true)
		}
		e.arrived.Add(1)
		select {
		case <-e.release:
		case <-r.Context().Done():
			return
		}
		if strings.Contains(string(body), `"stream":true`) {
			respondStream(event(0, "a", `"length"`))(w, r)
			return
		}
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
	}
	e.url = startBackendOf(t, "0.33.0", complete, func(*http.Request) bool { return true }, func(mux *http.ServeMux) {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
			all := e.running.Load()
			running := all
			if e.full.Load() {
				running = min(all, 1)
			}
			if e.crowded.Load() {
				running, all = 1, 101
			}
			fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n", running, all-running)
			e.readings.Add(1)
		})
	})
	return e
}

// waitedLong matches a Server-Timing with a second or more in the queue.
var waitedLong = regexp.MustCompile(`queue;dur=\d{4}`)

// A request that is held back at a full backend waits as one in the queue: its client may leave, its key may be revoked, and its
// wait is told. Its place returns whatever becomes of it.
func TestARequestIsHeldBackWhileItsBackendIsFull(t *testing.T) {
	t.Parallel()
	e := startFullEngine(t)
	h := newHarness(t, func(o *harnessOptions) { withoutTimeouts(o); o.probes = 10 * time.Millisecond }, e.url)
	m, _ := h.fleet.Model("m")
	backend := m.Backends()[0]
	awaitHeld := func(n int) {
		t.Helper()
		poll.Until(t, fmt.Sprint("requests that are held back: ", n), func() bool { return backend.Held() == n })
	}
	other := h.secondKey()
	var all []<-chan response
	for i := range 8 {
		body := `{"model":"m","prompt":"a","max_tokens":4}`
		if i%2 == 1 {
			body = streamRequest
		}
		all = append(all, h.completeAsync(t.Context(), body))
	}
	poll.Until(t, "all have arrived", func() bool { return e.running.Load() == 8 })
	e.full.Store(true) // not before: a probe between two of the requests would hold back the others
	before := e.readings.Load()
	poll.Until(t, "the gateway knows that seven wait", func() bool { return e.readings.Load() >= before+3 })

	ctx, leave := context.WithCancel(t.Context())
	left := h.completeAsync(ctx, `{"model":"m","prompt":"leaves"}`)
	awaitHeld(1)
	leave()
	awaitHeld(0)
	if _, ok := <-left; ok {
		t.Error("the client that has left received a response")
	}

	late := h.completeAsync(t.Context(), `{"model":"m","prompt":"late"}`)
	awaitHeld(1)
	refused := make(chan response, 1)
	go func() { refused <- h.completeAs(other, `{"model":"m","prompt":"revoked"}`) }()
	awaitHeld(2)
	began := time.Now()
	revoke(t, h, "other")
	poll.Until(t, "they have waited for over a second", func() bool { return time.Since(began) > 1100*time.Millisecond })
	close(e.release)
	for i, c := range append(all, late) {
		if got, ok := <-c; !ok || got.status != http.StatusOK {
			t.Errorf("request %d: got %d %s", i, got.status, got.body)
		} else if timing := got.header.Get("Server-Timing"); i == len(all) && !waitedLong.MatchString(timing) {
			t.Errorf("Server-Timing of a request that was held back: got %q, want over a second in the queue", timing)
		}
	}
	if got := <-refused; got.status != http.StatusUnauthorized {
		t.Errorf("with a key that was revoked while it waited: got %d %s, want 401", got.status, got.body)
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 && backend.InFlight() == 0 && backend.Held() == 0 })
	for _, row := range h.awaitRows(11) {
		if row.Code != "" && row.PromptTokens+row.CompletionTokens != 0 {
			t.Errorf("a request that never reached the backend costs %+v", row)
		}
	}
}

// What another account sends to a full backend is served after a turn of the first one, and not after one of each of its keys.
func TestKeysOfAnAccountShareItsTurnsAtAFullBackend(t *testing.T) {
	t.Parallel()
	const sent, keys, limit = 8, 8, 2 // limit is what the gateway lets through to an engine where nearly all wait
	e := startFullEngine(t)
	h := newHarness(t, func(o *harnessOptions) { withoutTimeouts(o); o.probes = 10 * time.Millisecond }, e.url)
	h.registry.MustRegister(h.fleet)
	held := func() int { return h.metric(`basegate_backend_held_requests{backend="b0",model="m"}`) }
	var all []<-chan response
	for range sent {
		all = append(all, h.completeAsync(t.Context(), plainRequest))
	}
	poll.Until(t, "all have arrived", func() bool { return e.arrived.Load() == sent })
	e.crowded.Store(true)
	before := e.readings.Load()
	poll.Until(t, "the gateway's limit has fallen", func() bool { return e.readings.Load() >= before+4 })
	other := h.secondKey()
	for i := range keys {
		key, secret, err := h.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: fmt.Sprint("key ", i)})
		if err != nil {
			t.Fatal(err)
		}
		h.secret = secret
		all = append(all, h.completeAsync(t.Context(), plainRequest))
		poll.Until(t, "the request with the key "+key.ID+" is held back", func() bool { return held() == i+1 })
	}
	h.secret = other
	all = append(all, h.completeAsync(t.Context(), `{"model":"m","prompt":"MARKED"}`))
	poll.Until(t, "the other account's request is held back", func() bool { return held() == keys+1 })
	for i := range sent - limit + 3 { // three go on
		e.release <- struct{}{}
		poll.Until(t, "the next has gone on", func() bool { return e.arrived.Load() == int64(sent+max(0, i+1-(sent-limit))) })
	}
	if !e.marked.Load() || held() != keys+1-3 {
		t.Errorf("after three turns %d are held back, and it is %v that the other account's request has gone on; want %d and true", held(), e.marked.Load(), keys+1-3)
	}
	close(e.release)
	for i, c := range all {
		if got := <-c; got.status != http.StatusOK {
			t.Errorf("request %d: got %d %s", i, got.status, got.body)
		}
	}
	poll.Until(t, "nothing is held back", func() bool { return held() == 0 })
}

// revoke revokes the key with a name.
func revoke(t *testing.T, h *harness, name string) {
	t.Helper()
	all, err := h.keys.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if k.Name == name {
			if _, err := h.keys.Revoke(t.Context(), k.ID); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no key is named %s", name)
}

// Large bodies of one account are parsed in turn with those of another. Small ones wait for nobody.
func TestLargeBodiesAreParsedInTurnsBetweenAccounts(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withoutTimeouts, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	places := h.server.LargeBodies()
	var held []*admission.Turn
	for range places.Stats().Places {
		turn, err := places.Acquire(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, turn)
	}
	const body = `{"model":"m","prompt":"a","max_tokens":4}`
	large := strings.Repeat(" ", 300<<10) + body
	ada := []<-chan response{h.completeAsync(t.Context(), large), h.completeAsync(t.Context(), large), h.completeAsync(t.Context(), large)}
	h.secret = h.secondKey()
	bob := h.completeAsync(t.Context(), large)
	poll.Until(t, "all large bodies wait", func() bool { return places.Stats().Waiting == 4 })
	if got := places.Stats().Accounts; got != 3 { // with that of the test
		t.Errorf("places are given to %d accounts, want 3", got)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := h.completeAsync(ctx, large)
	poll.Until(t, "another body waits", func() bool { return places.Stats().Waiting == 5 })
	leave()
	<-left
	poll.Until(t, "a client that has left does not wait", func() bool { return places.Stats().Waiting == 4 })
	if got := h.complete(body); got.status != http.StatusOK {
		t.Errorf("a small body: got %d %s", got.status, got.body)
	}
	for _, turn := range held {
		turn.Release()
	}
	for _, answer := range append(ada, bob) {
		if got := <-answer; got.status != http.StatusOK {
			t.Errorf("a large body: got %d %s", got.status, got.body)
		}
	}
	poll.Until(t, "all places are free", func() bool { return places.Stats().Running == 0 })
}
