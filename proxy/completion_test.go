package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/identity"
	"basegate/internal/poll"
)

func TestUnknownExpectationIsRefusedInTheAPIsForm(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	for _, path := range []string{"/v1/completions", "/v1/models", "/v1/nothing"} {
		req := h.newRequest(t.Context(), http.MethodPost, path, plainRequest)
		req.Header.Set("Expect", "something-else")
		got := h.do(req)
		e := gjson.Get(got.body, "error")
		if got.status != http.StatusExpectationFailed || e.Get("code").Str != "invalid_request" || !e.Get("param").Exists() ||
			e.Get("request_id").Str == "" || e.Get("request_id").Str != got.header.Get("X-Request-Id") {
			t.Errorf("%s: got %d %s, want 417 with an error of the API", path, got.status, got.body)
		}
	}
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", plainRequest)
	req.Header.Set("Expect", "100-Continue")
	if got := h.do(req); got.status != http.StatusOK {
		t.Errorf("100-Continue: got %d %s, want 200", got.status, got.body)
	}
}

// Each request fails one check and all later ones that it can.
func TestFirstFailingCheckDecidesTheResponse(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	huge := strings.Repeat(" ", 1<<20+1)
	for _, c := range []struct {
		name, method, path, key, encoding, body string
		status                                  int
		code                                    string
	}{
		{"path", "POST", "/v1/embeddings", "no", "", huge, 404, "not_found"},
		{"slash at the end", "POST", "/v1/completions/", "no", "", huge, 404, "not_found"},
		{"more than a model's id", "GET", "/v1/models/m/x", "", "", "", 404, "not_found"},
		{"less than a model's id", "GET", "/v1/models/", "no", "", "", 404, "not_found"},
		{"method", "GET", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"OPTIONS", "OPTIONS", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"an unknown method", "BREW", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"key", "POST", "/v1/completions", "no", "", huge, 401, "invalid_api_key"},
		{"the beginning of a key", "POST", "/v1/completions", "acs-bm-1a2b3c…", "", huge, 401, "the key ends in an ellipsis"},
		{"the beginning of a key in ASCII", "POST", "/v1/completions", "acs-bm-1a2b3c...", "", huge, 401, "the key ends in an ellipsis"},
		{"size", "POST", "/v1/completions", "", "", huge, 413, "request_too_large"},
		{"size after decompression", "POST", "/v1/completions", "", "gzip", gzipText(t, huge), 413, "request_too_large"},
		{"encoding", "POST", "/v1/completions", "", "br", "x", 415, "unsupported_encoding"},
		{"invalid gzip", "POST", "/v1/completions", "", "gzip", "x", 400, "bad_json"},
		{"JSON", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other"`, 400, "bad_json"},
		{"fields", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other","prompt":"x"}`, 400, "invalid_request"},
		{"model", "POST", "/v1/completions", "", "", `{"model":"other","prompt":[1],"max_tokens":5000}`, 400, "model_not_found"},
		{"length", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4096}`, 400, "context_length_exceeded"},
		{"valid", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4095}`, 200, ""},
		{"valid, compressed", "POST", "/v1/completions", "", "gzip", gzipText(t, plainRequest), 200, ""},
		{"chat", "POST", "/v1/chat/completions", "", "", `nonsense`, 400, "chat_completions_unsupported"},
		{"chat without a key", "POST", "/v1/chat/completions", "no", "", `nonsense`, 401, "invalid_api_key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := h.newRequest(t.Context(), c.method, c.path, c.body)
			if c.key != "" {
				req.Header.Set("Authorization", "Bearer "+c.key)
			}
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			got := h.do(req)
			if got.status != c.status || !strings.Contains(got.body, c.code) {
				t.Fatalf("got %d %s, want %d %s", got.status, got.body, c.status, c.code)
			}
			if got.header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
			if c.status == 405 && got.header.Get("Allow") != "POST" {
				t.Errorf("Allow is %q", got.header.Get("Allow"))
			}
		})
	}
}

// Checks that need the body or the tokenizer happen before the request waits for a slot, and before those that need a
// reservation.
func TestOrderOfChecksAroundTheQueue(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthInput] = quota.Limit(10) }))
	running := h.completeAsync(t.Context(), `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":1}`)
	<-backend.arrived
	for body, code := range map[string]string{
		`{`: "bad_json", `{"model":"m","prompt":"x","n":0}`: "invalid_request", `{"model":"other","prompt":"x"}`: "model_not_found",
		`{"model":"m","prompt":[1],"max_tokens":1000000}`: "context_length_exceeded", `{"model":"m","prompt":"x","max_tokens":4096}`: "context_length_exceeded",
	} {
		if got := h.complete(body); !strings.Contains(got.body, `"`+code+`"`) {
			t.Errorf("%s: got %s, want %s", body, got.body, code)
		}
	}
	if got := h.complete(`{"model":"m","prompt":"` + strings.Repeat("word ", 5000) + `"}`); !strings.Contains(got.body, `"context_length_exceeded"`) {
		t.Errorf("got %s, want the length to be checked before the budget", got.body)
	}
	backend.release <- struct{}{}
	<-running
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthInput] = quota.Limit(0) }))
	if got := h.complete(promptRequest(0)); got.status != 429 || !strings.Contains(got.body, `"meter":"input"`) {
		t.Errorf("a key without budget: got %d %s", got.status, got.body)
	}
}

// awaitWithoutSlot returns the response to a request that must get one while all slots of its key are taken.
func (h *harness) awaitWithoutSlot(body string) response {
	h.t.Helper()
	pending := h.completeAsync(h.t.Context(), body)
	var got response
	poll.Until(h.t, fmt.Sprintf("%s is refused without waiting for a slot", body), func() bool {
		select {
		case got = <-pending:
			return true
		default:
			return false
		}
	})
	return got
}

// Each cap of the key and of its account refuses as soon as it is used up, also while the key has no free slot.
func TestSpentBudgetIsRefusedWithoutWaitingForASlot(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	backend.release <- struct{}{}
	if got := h.complete(plainRequest); got.status != 200 { // uses 2 tokens of the prompt and 2 of the completion
		t.Fatalf("got %d %s", got.status, got.body)
	}
	<-backend.arrived
	running := h.completeAsync(t.Context(), plainRequest)
	<-backend.arrived
	for _, c := range []struct {
		caps quota.Caps
		want string
	}{
		{quota.Caps{quota.MonthTotal: quota.Limit(4)}, `"window":"month","meter":"total","limit":4,"used":4`},
		{quota.Caps{quota.DayTotal: quota.Limit(4)}, `"window":"day","meter":"total","limit":4,"used":4`},
		{quota.Caps{quota.MonthInput: quota.Limit(2)}, `"window":"month","meter":"input","limit":2,"used":2`},
		{quota.Caps{quota.MonthOutput: quota.Limit(2)}, `"window":"month","meter":"output","limit":2,"used":2`},
	} {
		h.updateKey(func(f *identity.Key) { f.Caps = c.caps })
		if got := h.awaitWithoutSlot(plainRequest); got.status != 429 || !strings.Contains(got.body, `"scope":"key",`+c.want) {
			t.Errorf("got %d %s, want 429 with %s of the key", got.status, got.body, c.want)
		}
		h.updateKey(func(f *identity.Key) { f.Caps = quota.Caps{} })
		h.updateAccount(c.caps)
		if got := h.awaitWithoutSlot(plainRequest); got.status != 429 || !strings.Contains(got.body, `"scope":"account",`+c.want) {
			t.Errorf("got %d %s, want 429 with %s of the account", got.status, got.body, c.want)
		}
		h.updateAccount(quota.Caps{})
	}
	backend.release <- struct{}{}
	if got := <-running; got.status != 200 {
		t.Errorf("the running request: got %d %s", got.status, got.body)
	}
}

// updateAccount sets the caps of the harness's account.
func (h *harness) updateAccount(caps quota.Caps) {
	h.t.Helper()
	if _, err := h.accounts.Set(h.t.Context(), "ada@example.org", func(f *identity.Account) { f.Caps = caps }); err != nil {
		h.t.Fatal(err)
	}
}

func TestOpenBreakerRefusesWithoutWaitingForASlot(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, func(o *harnessOptions) {
		o.settings.ConcurrencyPerKey, o.settings.Attempts, o.breaker.ConsecutiveFailures, o.breaker.OpenFor = 1, 1, 2, time.Hour
	}, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "fail") {
			respond(500, "text/plain", "boom")(w, r)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		backend.ServeHTTP(w, r)
	}))
	running := h.completeAsync(t.Context(), plainRequest)
	<-backend.arrived
	for _, name := range []string{"second", "third"} { // what one key alone has opened is closed to others
		_, secret, err := h.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		failing := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"fail"}`)
		failing.Header.Set("Authorization", "Bearer "+secret)
		if got := h.do(failing); got.status != 502 {
			t.Fatalf("got %d %s, want a failure that the breaker counts", got.status, got.body)
		}
	}
	got := h.awaitWithoutSlot(plainRequest)
	if got.status != 503 || !strings.Contains(got.body, `"code":"circuit_open"`) || got.header.Get("Retry-After") != "59" || !strings.Contains(got.body, `"retry_after_seconds":59`) {
		t.Errorf("got %d %s, Retry-After %q, want 503 circuit_open and 59, since SDKs ignore a minute or more", got.status, got.body, got.header.Get("Retry-After"))
	}
	backend.release <- struct{}{}
	<-running
}
