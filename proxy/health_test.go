package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/identity"
	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/proxy"
)

// failure033 is what version 0.33 sends after any failure of its own, that of a dead engine too.
const failure033 = `{"error":{"message":"The server had an error while processing your request.","type":"InternalServerError","param":null,"code":500}}`

// engine is a backend whose engine can be dead.
type engine struct {
	t        *testing.T
	url      string
	server   *httptest.Server
	dead     atomic.Bool
	attempts atomic.Int64
}

// startEngine starts a backend that passes completion requests to complete until its engine is dead.
func startEngine(t *testing.T, complete func(e *engine, w http.ResponseWriter, r *http.Request)) *engine {
	t.Helper()
	e := &engine{t: t}
	inner, err := url.Parse(startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		e.attempts.Add(1)
		complete(e, w, r)
	}))
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(inner)
	forward.FlushInterval = -1
	e.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" && e.dead.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(e.server.Close)
	e.url = e.server.URL
	return e
}

// dies responds as version 0.33 does when a request kills its engine: a request that says kill.
func dies(e *engine, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !strings.Contains(string(body), "kill") && !e.dead.Load() {
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
		return
	}
	if strings.Contains(string(body), "midstream") {
		respondStream(event(0, "a", "null"))(w, r)
		e.dead.Store(true)
		respondStream("data: "+failure033+"\n\n", doneEvent)(w, r)
		return
	}
	e.dead.Store(true)
	respond(http.StatusInternalServerError, "application/json", failure033)(w, r)
}

func (h *harness) secondKey() string {
	h.t.Helper()
	if _, err := h.accounts.Create(h.t.Context(), identity.Account{Email: "bob@example.org"}); err != nil {
		h.t.Fatal(err)
	}
	_, secret, err := h.keys.Create(h.t.Context(), identity.Key{Email: "bob@example.org", Name: "other"})
	if err != nil {
		h.t.Fatal(err)
	}
	return secret
}

// completeAs is complete with another key.
func (h *harness) completeAs(secret, body string) response {
	h.t.Helper()
	req := h.newRequest(h.t.Context(), http.MethodPost, "/v1/completions", body)
	req.Header.Set("Authorization", "Bearer "+secret)
	return h.do(req)
}

func TestDeadEngineIsToldByItsHealth(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"plain":     `{"model": "m", "prompt": "kill"}`,
		"stream":    `{"model": "m", "prompt": "kill", "stream": true}`,
		"midstream": `{"model": "m", "prompt": "kill midstream", "stream": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, startEngine(t, dies).url)
			if got := h.complete(body); !strings.Contains(got.body, `"code":"vllm_engine_dead"`) || got.header.Get("X-Should-Retry") != "" {
				t.Errorf("got %d %s %v", got.status, got.body, got.header)
			}
			got := h.complete(plainRequest) // one death opens the breaker
			if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"code":"circuit_open"`) {
				t.Errorf("after it: got %d %s", got.status, got.body)
			}
		})
	}
}

func TestRequestThatTwoEnginesHaveDiedOfIsRefused(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]string{
		"plain":     `{"model": "m", "prompt": "kill"}`,
		"midstream": `{"model": "m", "prompt": "kill midstream", "stream": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := []*engine{startEngine(t, dies), startEngine(t, dies), startEngine(t, dies)}
			h := newHarness(t, nil, engines[0].url, engines[1].url, engines[2].url)
			attempts := func() (all int64) {
				for _, e := range engines {
					all += e.attempts.Load()
				}
				return all
			}
			got := h.complete(kill)
			if name == "midstream" { // a stream that has begun is not tried again, but its client asks again
				got = h.complete(kill)
			} else if got.header.Get("X-Should-Retry") != "false" {
				t.Errorf("X-Should-Retry is %q, want false", got.header.Get("X-Should-Retry"))
			}
			if !strings.Contains(got.body, `"code":"vllm_engine_dead"`) || !strings.Contains(got.body, "refused for ten minutes") || attempts() != 2 ||
				!strings.Contains(got.body, `"upstream_status":500,"attempts":`) {
				t.Fatalf("got %d %s after %d attempts", got.status, got.body, attempts())
			}
			other := h.secondKey()
			got = h.completeAs(other, kill)
			if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"code":"vllm_engine_dead"`) || got.header.Get("X-Should-Retry") != "false" || attempts() != 2 {
				t.Errorf("with another key: got %d %s %v after %d attempts", got.status, got.body, got.header, attempts())
			}
			if got := h.completeAs(other, plainRequest); got.status != http.StatusOK {
				t.Errorf("another request: got %d %s", got.status, got.body)
			}
		})
	}
}

// A request that fails by itself must not close a healthy backend to others.
func TestKeyWhoseRequestsFailClosesNoBackendToOthers(t *testing.T) {
	t.Parallel()
	e := startEngine(t, func(_ *engine, w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "fail") {
			respondStream(`data: {"error":{"message":"0","type":"InternalServerError","param":null,"code":500}}`+"\n\n", doneEvent)(w, r)
			return
		}
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
	})
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 5 }, e.url)
	other := h.secondKey()
	for round := range 3 {
		for i := range 5 {
			if got := h.complete(`{"model": "m", "prompt": "fail", "stream": true}`); !strings.Contains(got.body, `"code":"upstream_server_error"`) {
				t.Fatalf("round %d, failure %d: got %d %s", round, i, got.status, got.body)
			}
		}
		if got := h.complete(plainRequest); !strings.Contains(got.body, `"code":"circuit_open"`) {
			t.Fatalf("the key that has failed: got %d %s", got.status, got.body)
		}
		h.acquirePlace().Release()
		if got := h.completeAs(other, plainRequest); got.status != http.StatusOK {
			t.Fatalf("another key: got %d %s", got.status, got.body)
		}
	}
}

func TestFailureOfAHealthyEngineIsTriedElsewhereOnce(t *testing.T) {
	t.Parallel()
	fails := func(_ *engine, w http.ResponseWriter, r *http.Request) {
		respond(500, "application/json", failure033)(w, r)
	}
	engines := []*engine{startEngine(t, fails), startEngine(t, fails), startEngine(t, fails)}
	h := newHarness(t, nil, engines[0].url, engines[1].url, engines[2].url)
	if got := h.complete(plainRequest); !strings.Contains(got.body, `"code":"upstream_server_error"`) || !strings.Contains(got.body, `"attempts":2`) {
		t.Errorf("got %d %s, want two attempts", got.status, got.body)
	}
}

func TestUnavailableWithAHealthyEngineIsBusy(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"The engine has reached its prefill token backlog limit (8192 tokens).", "Generation is paused. Please retry after it resumes.", "A text of a version to come.",
	} {
		body := fmt.Sprintf(`{"error":{"message":%q,"type":"ServiceUnavailableError","param":null,"code":503}}`, text)
		e := startEngine(t, func(_ *engine, w http.ResponseWriter, r *http.Request) { respond(503, "application/json", body)(w, r) })
		h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 }, e.url)
		for range 3 {
			if got := h.complete(plainRequest); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"code":"overloaded"`) {
				t.Fatalf("%s: got %d %s", text, got.status, got.body)
			}
		}
	}
}

// As 0.33 does after a SIGTERM: it accepts no connections any more, and those that are open stay open without a byte.
func TestSilentAttemptEndsWhenItsBackendRefusesConnections(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"plain": plainRequest, "stream": streamRequest, "a stream that has begun": streamRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			hangs := startEngine(t, func(e *engine, w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(name, "a stream") {
					respondStream(event(0, "a", "null"))(w, r)
				}
				e.server.Listener.Close()
				<-release
			})
			t.Cleanup(func() { close(release) })
			other := startEngine(t, func(_ *engine, w http.ResponseWriter, r *http.Request) {
				if body == plainRequest {
					respond(http.StatusOK, "application/json", plainResponse)(w, r)
				} else {
					respondStream(event(0, "a", `"stop"`), doneEvent)(w, r)
				}
			})
			h := newHarness(t, func(o *harnessOptions) {
				o.probes, o.settings.FirstByteTimeout, o.settings.IdleTimeout = 100*time.Millisecond, time.Hour, time.Hour
			}, hangs.url, other.url)
			for hangs.attempts.Load() == 0 {
				got := h.complete(body)
				failed := strings.Contains(got.body, `"code":"upstream_server_error"`)
				if got.status != http.StatusOK || failed != (hangs.attempts.Load() > 0 && strings.HasPrefix(name, "a stream")) {
					t.Fatalf("got %d %s", got.status, got.body)
				}
			}
			poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
		})
	}
}

// A server that shuts down in order finishes what it has begun, for as long as that takes.
func TestStreamThatGoesOnOutlivesItsListener(t *testing.T) {
	t.Parallel()
	e := startEngine(t, func(e *engine, w http.ResponseWriter, r *http.Request) {
		e.server.Listener.Close()
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for range 16 {
			respondStream(event(0, "a", "null"))(w, r)
			<-ticker.C
		}
		respondStream(event(0, "a", `"stop"`), doneEvent)(w, r)
	})
	h := newHarness(t, func(o *harnessOptions) { o.probes = 100 * time.Millisecond }, e.url)
	if got := h.complete(streamRequest); !strings.HasSuffix(got.body, doneEvent) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// A backend that is known to refuse connections is tried nevertheless, because it may be back.
func TestBackendThatHasRefusedProbesIsTried(t *testing.T) {
	t.Parallel()
	handler := startEngine(t, dies).server.Config.Handler
	address := loopback.Address(t)
	start := func() *http.Server {
		socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: handler}
		go server.Serve(socket)
		t.Cleanup(func() { server.Close() })
		return server
	}
	up := start()
	h := newHarness(t, func(o *harnessOptions) { o.probes = 100 * time.Millisecond }, "http://"+address)
	up.Close()
	down := time.Now()
	poll.Until(t, "the backend is down for longer than an attempt may be silent", func() bool { return time.Since(down) > 5*time.Second })
	if got := h.complete(plainRequest); !strings.Contains(got.body, `"code":"upstream_unreachable"`) || !strings.Contains(got.body, `"attempts":3`) {
		t.Errorf("down: got %d %s", got.status, got.body)
	}
	start()
	if got := h.complete(plainRequest); got.status != http.StatusOK {
		t.Errorf("back: got %d %s", got.status, got.body)
	}
}

func TestLineThatTwoEnginesHaveDiedOfIsFinal(t *testing.T) {
	t.Parallel()
	engines := []*engine{startEngine(t, dies), startEngine(t, dies), startEngine(t, dies)}
	h := newHarness(t, nil, engines[0].url, engines[1].url, engines[2].url)
	const kill = `{"model": "m", "prompt": "kill"}`
	h.complete(kill)
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	place := h.acquirePlace()
	defer place.Release()
	got := h.server.ServeLine(t.Context(), proxy.Line{
		Batch: "batch_1", Account: principal.AccountID, Key: principal.KeyID, Endpoint: proxy.CompletionsPath, Body: []byte(kill), Place: place,
	})
	defer got.Release()
	if got.Code != "vllm_engine_dead" || got.Retryable || engines[0].attempts.Load()+engines[1].attempts.Load()+engines[2].attempts.Load() != 2 {
		t.Errorf("got code %s, retryable %t", got.Code, got.Retryable)
	}
}

// vLLM's Rust frontend ends with its engine.
func TestDeathOfARustFrontendCountsAsItsEngines(t *testing.T) {
	t.Parallel()
	var engines []string
	var attempts atomic.Int64
	for range 3 {
		e := startEngine(t, dies)
		inner := e.server.Config.Handler
		e.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/version":
				io.WriteString(w, `{"version":"0.33.0","rust_frontend_version":"0.1"}`)
			case "/v1/completions":
				attempts.Add(1)
				e.server.Listener.Close()
				panic(http.ErrAbortHandler)
			default:
				inner.ServeHTTP(w, r)
			}
		})
		engines = append(engines, e.url)
	}
	h := newHarness(t, nil, engines...)
	got := h.complete(plainRequest)
	if attempts.Load() != 2 || !strings.Contains(got.body, `"code":"vllm_engine_dead"`) || got.header.Get("X-Should-Retry") != "false" ||
		!strings.Contains(got.body, `"upstream_status":null`) { // no response was received
		t.Errorf("got %d %s after %d attempts", got.status, got.body, attempts.Load())
	}
}

// A validation error quotes the whole prompt, so an error may be as long as that, or broken off.
func TestErrorBodyOfAnySizeKeepsItsClass(t *testing.T) {
	t.Parallel()
	piece := strings.Repeat("x", 1<<20)
	for name, pieces := range map[string]int{"a MiB": 1, "100 MiB": 100, "broken off": 0} {
		t.Run(name, func(t *testing.T) {
			for text, code := range map[string]string{
				"CUDA out of memory. Tried to allocate ": "vllm_oom",
				"EngineCore encountered an issue. ":      "vllm_engine_dead",
				"This model's maximum context length is": "vllm_context_length",
			} {
				e := startEngine(t, func(_ *engine, w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusInternalServerError)
					io.WriteString(w, `{"error":{"message":"`+text)
					http.NewResponseController(w).Flush()
					for range pieces {
						io.WriteString(w, piece)
					}
					if pieces == 0 {
						panic(http.ErrAbortHandler)
					}
					io.WriteString(w, `","type":"InternalServerError","param":null,"code":500}}`)
				})
				got := newHarness(t, nil, e.url).complete(plainRequest)
				if !strings.Contains(got.body, `"code":"`+code+`"`) || e.attempts.Load() != 1 || len(got.body) > 8<<10 {
					t.Errorf("%s: got %d %.300s after %d attempts", text, got.status, got.body, e.attempts.Load())
				}
			}
		})
	}
}
