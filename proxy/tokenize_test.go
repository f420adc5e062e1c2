package proxy_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/identity"
	"basegate/internal/poll"
)

// post sends a body to a path with the harness's key.
func (h *harness) post(path, body string) response {
	h.t.Helper()
	return h.do(h.newRequest(h.t.Context(), http.MethodPost, path, body))
}

func TestTokenizeReturnsVLLMsBytes(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, mock := startMock(t, version)
			for _, c := range []struct{ path, body, upstream string }{
				{"tokenize", `{"model":"m", "prompt":"caf\u00e9 zebra"}`, `{"model":"org/Model-8B", "prompt":"caf\u00e9 zebra"}`},
				{"tokenize", `{"prompt":"zebra","add_special_tokens":false,"return_token_strs":null,"model":"m"}`, `{"prompt":"zebra","add_special_tokens":false,"model":"org/Model-8B"}`},
				{"detokenize", `{"model":"m","tokens":[104, 105]}`, `{"model":"org/Model-8B","tokens":[104, 105]}`},
			} {
				got := h.post("/v1/"+c.path, c.body)
				recorded := mock.Requests()
				if last := recorded[len(recorded)-1]; last.Path != "/"+c.path || string(last.Body) != c.upstream {
					t.Errorf("vLLM received %s %s, want %s", last.Path, last.Body, c.upstream)
				}
				direct := must(http.NewRequestWithContext(t.Context(), http.MethodPost, mock.URL()+"/"+c.path, strings.NewReader(c.upstream)))(t)
				direct.Header.Set("Content-Type", "application/json")
				want := h.do(direct)
				if got.status != http.StatusOK || got.body != want.body {
					t.Errorf("%s: got %d %s, want %s", c.body, got.status, got.body, want.body)
				}
				for name, value := range map[string]string{"X-Acs-Upstream-Model": "org/Model-8B", "X-Acs-Upstream-Gpu": "H100", "Content-Type": "application/json"} {
					if got.header.Get(name) != value {
						t.Errorf("%s: got %q, want %q", name, got.header.Get(name), value)
					}
				}
				if got.header.Get("X-Request-Id") == "" || !strings.Contains(got.header.Get("Server-Timing"), "upstream;dur=") {
					t.Errorf("headers: %v", got.header)
				}
			}
			h.awaitRows(0)
			if log := h.log.String(); strings.Contains(log, "zebra") || strings.Count(log, `"endpoint":"POST /v1/tokenize"`) != 2 || strings.Count(log, `"endpoint":"POST /v1/detokenize"`) != 1 {
				t.Errorf("the log is %s", log)
			}
			if s := h.memory.Stats(); s.BufferedBytes != 0 {
				t.Errorf("after the requests: %+v", s)
			}
		})
	}
}

// must returns a function that fails the test with err, or returns the value.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestDetokenizeReversesTokenize(t *testing.T) {
	t.Parallel()
	h, _ := startMock(t, "0.32.0")
	const text = "Příliš žluťoučký kůň, 昔々"
	tokens := h.post("/v1/tokenize", fmt.Sprintf(`{"model":"m","prompt":%q,"add_special_tokens":false,"return_token_strs":true}`, text))
	if count, strs := gjson.Get(tokens.body, "count").Int(), gjson.Get(tokens.body, "token_strs.#").Int(); count == 0 || count != strs {
		t.Errorf("got %s, want as many token_strs as tokens", tokens.body)
	}
	back := h.post("/v1/detokenize", `{"model":"m","tokens":`+gjson.Get(tokens.body, "tokens").Raw+`}`)
	if got := gjson.Get(back.body, "prompt").Str; got != text {
		t.Errorf("got %q, want %q", got, text)
	}
	if count := gjson.Get(h.complete(fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1}`, text)).body, "usage.prompt_tokens").Int(); count !=
		gjson.Get(h.post("/v1/tokenize", fmt.Sprintf(`{"model":"m","prompt":%q}`, text)).body, "count").Int() {
		t.Error("tokenize and the usage of a completion count differently")
	}
}

func TestTokenizerRequestsAreRefusedLikeCompletions(t *testing.T) {
	t.Parallel()
	h, mock := startMock(t, "0.32.0")
	before := len(mock.Requests())
	for _, c := range []struct {
		path, body string
		status     int
		part       string
	}{
		{"tokenize", `{`, 400, `"code":"bad_json"`},
		{"tokenize", `{"model":"m","promt":"x"}`, 400, `"suggestion":"prompt"`},
		{"tokenize", `{"model":"m","prompt":7}`, 400, `"param":"prompt"`},
		{"tokenize", `{"model":"other","prompt":"x"}`, 400, `"code":"model_not_found"`},
		{"tokenize", `{"model":"org/Model-8B","prompt":"x"}`, 400, `"suggestion":"m"`},
		{"detokenize", `{"model":"m","tokens":[-1]}`, 400, `"param":"tokens"`},
		{"detokenize", `{"model":"m"}`, 400, `"param":"tokens"`},
		{"detokenize", `{"model":"m","tokens":[` + strings.Repeat("1,", 1<<19) + `1]}`, 413, `"code":"request_too_large"`},
		{"tokenize/", `{}`, 404, "the path is /v1/tokenize"},
		{"detokenize/", `{}`, 404, "the path is /v1/detokenize"},
		{"estimate/", `{}`, 404, "the path is /v1/estimate"},
	} {
		got := h.post("/v1/"+c.path, c.body)
		if got.status != c.status || !strings.Contains(got.body, c.part) || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s %.60s: got %d %s, want %d with %s", c.path, c.body, got.status, got.body, c.status, c.part)
		}
	}
	if got := len(mock.Requests()); got != before {
		t.Errorf("%d requests reached the backend", got-before)
	}
	for _, path := range []string{"/v1/tokenize", "/v1/detokenize", "/v1/estimate"} {
		if got := h.do(h.newRequest(t.Context(), http.MethodGet, path, "")); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodPost {
			t.Errorf("GET %s: got %d, Allow %q", path, got.status, got.header.Get("Allow"))
		}
		req := h.newRequest(t.Context(), http.MethodPost, path, `{`)
		req.Header.Del("Authorization")
		if got := h.do(req); got.status != http.StatusUnauthorized {
			t.Errorf("%s without a key: got %d", path, got.status)
		}
	}
	unknown := h.post("/v1/detokenize", `{"model":"m","tokens":[2147483647]}`)
	if unknown.status != 400 || !strings.Contains(unknown.body, "out of vocabulary") || !strings.Contains(unknown.body, `"upstream_status":400`) {
		t.Errorf("an unknown token: got %d %s, want vLLM's own message", unknown.status, unknown.body)
	}
	h.updateKey(func(f *identity.Key) { f.Models = must(identity.NewModelList([]string{"other"}))(t) })
	for _, path := range []string{"/v1/tokenize", "/v1/estimate"} {
		if got := h.post(path, tokenizeRequest); !strings.Contains(got.body, `"code":"model_not_found"`) {
			t.Errorf("%s of a model that the key may not use: got %d %s", path, got.status, got.body)
		}
	}
}

func TestTokenStringsNeedAVersionThatHasThem(t *testing.T) {
	t.Parallel()
	for version, status := range map[string]int{"0.8.5": 400, "0.10.0": 200} {
		h, _ := startMock(t, version)
		got := h.post("/v1/tokenize", `{"model":"m","prompt":"x","return_token_strs":true}`)
		if got.status != status || (status == 400) != strings.Contains(got.body, `"param":"return_token_strs"`) {
			t.Errorf("vLLM %s: got %d %s, want %d", version, got.status, got.body, status)
		}
		if got := h.post("/v1/tokenize", `{"model":"m","prompt":"x","return_token_strs":false}`); got.status != 200 {
			t.Errorf("vLLM %s, false: got %d %s", version, got.status, got.body)
		}
	}
}

func TestTokenizeTakesASlotOfTheKey(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	completion := h.completeAsync(t.Context(), plainRequest)
	<-backend.arrived
	tokens := make(chan response, 1)
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/tokenize", `{"model":"m","prompt":"to be"}`)
	go func() { tokens <- h.do(req) }()
	h.awaitQueue("tokenize waits for the slot", budget.Stats{Running: 1, Waiting: 1})
	backend.release <- struct{}{}
	if got := <-tokens; got.status != 200 || gjson.Get(got.body, "count").Int() != 2 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	<-completion
	h.awaitQueue("the slot is free", budget.Stats{})
	h.awaitRows(1)
}

// A key, and an account, count as many prompts of requests without a slot at a time as they have slots, beside their completions.
func TestCallsOfTheTokenizerAreAsManyAtATimeAsSlots(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*harnessOptions){
		"key": concurrency(1), "account": func(o *harnessOptions) { o.settings.ConcurrencyPerAccount = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, release := make(chan struct{}, 10), make(chan struct{})
			completions := newBlockingBackend()
			backend := startFilteredBackend(t, completions.ServeHTTP, func(r *http.Request) bool {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				if r.URL.Path == "/tokenize" && bytes.Contains(body, []byte("zebra")) { // no probe
					arrived <- struct{}{}
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
				return true
			})
			h := newHarness(t, limit, backend)
			completion := h.completeAsync(t.Context(), plainRequest)
			<-completions.arrived
			ended := make(chan response, 3)
			for _, path := range []string{"/v1/estimate", "/v1/estimate", "/v1/estimate"} {
				req := h.newRequest(t.Context(), http.MethodPost, path, `{"model":"m","prompt":"`+strings.Repeat("zebra ", 1000)+`"}`) // its bytes do not fit
				before := h.memory.Stats().BufferedBytes
				go func() { ended <- h.do(req) }()
				poll.Until(t, "the request has arrived", func() bool { return h.memory.Stats().BufferedBytes > before })
			}
			for range 3 {
				<-arrived
				select {
				case <-arrived:
					t.Fatal("two calls reach the tokenizer at a time")
				case <-time.NewTimer(50 * time.Millisecond).C:
				}
				release <- struct{}{}
			}
			for range 3 {
				if got := <-ended; got.status != http.StatusOK {
					t.Errorf("got %d %s, want 200", got.status, got.body)
				}
			}
			completions.release <- struct{}{}
			<-completion
		})
	}
}

func TestEstimateTellsTheQueuePosition(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	want := func(position int64) {
		t.Helper()
		if got := h.post("/v1/estimate", plainRequest); gjson.Get(got.body, "queue_position").Int() != position {
			t.Errorf("the estimate says %s, want queue_position %d", got.body, position)
		}
	}
	want(0)
	first := h.completeAsync(t.Context(), plainRequest)
	<-backend.arrived
	want(1)
	second := h.completeAsync(t.Context(), plainRequest)
	h.awaitQueue("one waits", budget.Stats{Running: 1, Waiting: 1})
	want(2)
	for range 2 {
		backend.release <- struct{}{}
	}
	<-first
	<-second
}

func TestTokenizeIsFree(t *testing.T) {
	t.Parallel()
	h, _ := startMock(t, "0.32.0")
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(0) }))
	got := h.post("/v1/tokenize", `{"model":"m","prompt":"x"}`)
	if got.status != 200 || got.header.Get("X-Ratelimit-Remaining-Tokens") != "0" {
		t.Errorf("with an exhausted budget: got %d %s, headers %v", got.status, got.body, got.header)
	}
	h.awaitRows(0)
}

// Without a limit, a key whose budget was used up kept a backend's tokenizer busy for ever.
func TestTokenizerTakesLittleTextBeyondTheBudget(t *testing.T) {
	t.Parallel()
	calls := 0
	backend := startTokenizer(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		io.WriteString(w, `{"count":1,"max_model_len":4096,"tokens":[1]}`)
	}, nil)
	h := newHarness(t, func(o *harnessOptions) { o.settings.MaxBodyBytes = 16 << 20 }, backend)
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 9<<20) + `"}`
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	io.WriteString(w, body)
	w.Close()
	send := func(zip bool) response {
		if !zip {
			return h.post("/v1/tokenize", body)
		}
		r := h.newRequest(t.Context(), http.MethodPost, "/v1/tokenize", zipped.String())
		r.Header.Set("Content-Encoding", "gzip")
		return h.do(r)
	}
	for range 2 {
		if got := send(false); got.status != http.StatusOK {
			t.Fatalf("with a budget: got %d %s, want 200", got.status, got.body)
		}
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(0) }))
	if got := send(false); got.status != http.StatusOK {
		t.Fatalf("within the allowance: got %d %s, want 200", got.status, got.body)
	}
	for _, zip := range []bool{false, true} {
		got := send(zip)
		if got.status != http.StatusTooManyRequests || gjson.Get(got.body, "error.code").Str != "budget_exceeded" ||
			!strings.Contains(gjson.Get(got.body, "error.message").Str, "10 MiB of text a minute") {
			t.Errorf("beyond the allowance, compressed %t: got %d %s, want 429 budget_exceeded", zip, got.status, got.body)
		}
	}
	if calls != 3 {
		t.Errorf("the tokenizer was called %d times, want 3", calls)
	}
	account := budget.Payer{Account: "acc_1", AccountCaps: quota.Caps{quota.DayTotal: quota.Limit(0)}} // of the console, without a key
	for i, allowed := range []bool{true, false} {
		if err := h.server.AllowFreeText(account, 9<<20); (err == nil) != allowed {
			t.Errorf("text %d of an account at the console: got %v, want it allowed: %t", i, err, allowed)
		}
	}
	if got := h.post("/v1/tokenize", `{"model":"m","prompt":"`+strings.Repeat("x", 11<<20)+`"}`); got.status != http.StatusTooManyRequests {
		t.Errorf("more than the allowance at once: got %d %s, want 429", got.status, got.body)
	}
}

// startTokenizer starts a backend whose /tokenize is a handler. The gateway's probe of it is answered as ever.
func startTokenizer(t *testing.T, tokenize, complete http.HandlerFunc) string {
	t.Helper()
	behind := httputil.NewSingleHostReverseProxy(must(url.Parse(startBackend(t, complete)))(t))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" && strings.HasPrefix(r.Header.Get("X-Request-Id"), "req_") {
			io.Copy(io.Discard, r.Body)
			tokenize(w, r)
			return
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

const tokenizeRequest = `{"model":"m","prompt":"x"}`

func TestTokenizerFailuresAreThoseOfCompletions(t *testing.T) {
	t.Parallel()
	healthy := startBackend(t, respond(200, "application/json", plainResponse))
	for _, c := range []struct {
		name     string
		failure  http.HandlerFunc
		status   int
		code     string
		failover bool
	}{
		{"a client error", respond(400, "application/json", `{"error":{"message":"bad text","param":"prompt","code":400}}`), 400, "invalid_request", false},
		{"a dead engine", respond(500, "application/json", `{"error":{"message":"EngineCore encountered an issue.","code":500}}`), 502, "vllm_engine_dead", true},
		{"error 500", respond(500, "text/plain", "Internal Server Error"), 502, "upstream_server_error", true},
		{"busy", respond(503, "application/json", `{"error":{"message":"The engine is currently busy"}}`), 503, "overloaded", true},
		{"no such path", http.NotFound, 502, "upstream_server_error", true},
		{"an error with status 200", respond(200, "application/json", `{"error":{"message":"no","code":500}}`), 502, "upstream_server_error", true},
		{"no tokens", respond(200, "application/json", `{"count":1,"max_model_len":4096}`), 502, "upstream_server_error", true},
		{"no JSON", respond(200, "text/html", `<html>`), 502, "upstream_server_error", true},
		{"cut JSON", respond(200, "application/json", `{"count":1,"tokens":[1`), 502, "upstream_server_error", true},
		{"a reset", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, "upstream_unreachable", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			failing := startTokenizer(t, c.failure, respond(200, "application/json", plainResponse))
			alone := newHarness(t, nil, failing)
			if got := alone.post("/v1/tokenize", tokenizeRequest); got.status != c.status || gjson.Get(got.body, "error.code").Str != c.code {
				t.Errorf("got %d %s, want %d %s", got.status, got.body, c.status, c.code)
			}
			alone.awaitRows(0)
			if c.failover {
				both := newHarness(t, nil, failing, healthy)
				for range 10 {
					if got := both.post("/v1/tokenize", tokenizeRequest); got.status != 200 {
						t.Fatalf("with a healthy backend: got %d %s", got.status, got.body)
					}
				}
			}
		})
	}
}

// A backend without /tokenize may still serve completions.
func TestMissingTokenizerDoesNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	sensitive := func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 }
	h := newHarness(t, sensitive, startTokenizer(t, http.NotFound, respond(200, "application/json", plainResponse)))
	for range 3 {
		if got := h.post("/v1/tokenize", tokenizeRequest); got.status != 502 {
			t.Errorf("got %d %s, want 502", got.status, got.body)
		}
	}
	if got := h.complete(plainRequest); got.status != 200 {
		t.Errorf("a completion: got %d %s", got.status, got.body)
	}
}

// The tokenizer of a dead engine still responds, so its success must not keep the breaker closed.
func TestTokenizerSuccessDoesNotKeepTheBreakerClosed(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) {
		o.breaker.ConsecutiveFailures, o.settings.Attempts = 2, 1
	}, startBackend(t, respond(500, "text/plain", "Internal Server Error")))
	for range 2 {
		if got := h.complete(plainRequest); got.status != 502 {
			t.Fatalf("got %d %s, want 502", got.status, got.body)
		}
		if got := h.post("/v1/tokenize", tokenizeRequest); got.status != 200 && got.status != 503 {
			t.Fatalf("tokenize: got %d %s", got.status, got.body)
		}
	}
	for _, path := range []string{"/v1/completions", "/v1/tokenize", "/v1/estimate"} {
		if got := h.post(path, plainRequest); got.status != 503 || !strings.Contains(got.body, `"code":"circuit_open"`) {
			t.Errorf("%s: got %d %s, want 503 circuit_open", path, got.status, got.body)
		}
	}
}
