package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"basegate/admission"
	"basegate/quota"
)

// Each request fails one check and all later ones that it can.
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
		{"an unknown method", "BREW", "/v1/completions", "no", "", "", 405, "method_not_allowed"},
		{"key", "POST", "/v1/completions", "no", "", huge, 401, "invalid_api_key"},
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

// Checks that need only the body happen before the request waits for a slot; those that need the tokenizer or a
// reservation happen after it.
func TestOrderOfChecksAroundTheQueue(t *testing.T) {
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthInput = quota.Limit(10) }))
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
	tooLong := h.completeAsync(t.Context(), `{"model":"m","prompt":"`+strings.Repeat("word ", 5000)+`"}`)
	h.awaitQueue("the request that is too long waits", admission.Stats{Running: 1, Waiting: 1})
	backend.release <- struct{}{}
	<-running
	if got := <-tooLong; !strings.Contains(got.body, `"context_length_exceeded"`) {
		t.Errorf("got %s, want the length to be checked before the budget", got.body)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthInput = quota.Limit(0) }))
	if got := h.complete(promptRequest(0)); got.status != 429 || !strings.Contains(got.body, `"meter":"input"`) {
		t.Errorf("a key without budget: got %d %s", got.status, got.body)
	}
}
