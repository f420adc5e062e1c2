package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"basegate/admission"
	"basegate/quota"
)

// The first that fails answers: each request is wrong in its own way and in every later one.
func TestFirstFailingCheckDecidesTheResponse(t *testing.T) {
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	huge := strings.Repeat(" ", 1<<20+1)
	for _, c := range []struct {
		name, method, path, key, encoding, body string
		status                                  int
		code                                    string
	}{
		{"path", "POST", "/v1/embeddings", "no", "", huge, 404, "not_found"},
		{"slash at the end", "POST", "/v1/completions/", "no", "", huge, 404, "not_found"},
		{"more than a model's id", "POST", "/v1/models/m/x", "no", "", "", 404, "not_found"},
		{"less than a model's id", "GET", "/v1/models/", "no", "", "", 404, "not_found"},
		{"method", "GET", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"OPTIONS", "OPTIONS", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"a method of nobody's", "BREW", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"key", "POST", "/v1/completions", "no", "", huge, 401, "invalid_api_key"},
		{"size", "POST", "/v1/completions", "", "", huge, 413, "request_too_large"},
		{"size unpacked", "POST", "/v1/completions", "", "gzip", gzipText(t, huge), 413, "request_too_large"},
		{"encoding", "POST", "/v1/completions", "", "br", "x", 415, "unsupported_encoding"},
		{"gzip that is none", "POST", "/v1/completions", "", "gzip", "x", 400, "bad_json"},
		{"JSON", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other"`, 400, "bad_json"},
		{"fields", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other","prompt":"x"}`, 400, "invalid_request"},
		{"model", "POST", "/v1/completions", "", "", `{"model":"other","prompt":[1],"max_tokens":5000}`, 400, "model_not_found"},
		{"length", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4096}`, 400, "context_length_exceeded"},
		{"nothing", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4095}`, 200, ""},
		{"nothing, packed", "POST", "/v1/completions", "", "gzip", gzipText(t, plainRequest), 200, ""},
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
				t.Fatalf("got %d %s", got.status, got.body)
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

// What can be told at once waits for nothing; what takes the tokenizer or a reservation comes behind the queue.
func TestOrderOfChecksAroundTheQueue(t *testing.T) {
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthInput = quota.Limit(10) }))
	running := h.completeAsync(t.Context(), `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":1}`)
	<-backend.arrived
	for body, code := range map[string]string{
		`{`: "bad_json", `{"model":"m","prompt":"x","n":0}`: "invalid_request", `{"model":"other","prompt":"x"}`: "model_not_found",
	} {
		if got := h.complete(body); !strings.Contains(got.body, `"`+code+`"`) {
			t.Errorf("%s: got %s", body, got.body)
		}
	}
	tooLong := h.completeAsync(t.Context(), `{"model":"m","prompt":[1],"max_tokens":1000000}`)
	h.awaitQueue("it waits, too long as it is", admission.Stats{Running: 1, Waiting: 1})
	backend.open <- struct{}{}
	<-running
	if got := <-tooLong; !strings.Contains(got.body, `"context_length_exceeded"`) {
		t.Errorf("length goes before budget, but got %s", got.body)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthInput = quota.Limit(0) }))
	running = h.completeAsync(t.Context(), promptRequest(0))
	if got := <-running; got.status != 429 || !strings.Contains(got.body, `"meter":"input"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
