package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"basegate/proxy"
)

func TestBodiesAreForwardedByteForByte(t *testing.T) {
	t.Parallel()
	var got string
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = string(body)
		respond(http.StatusOK, "application/json", plainResponse)(w, r)
	}))
	sent := "{ \"temperature\" : 0.70,\"model\":\"m\", \"seed\":null,\n\t\"prompt\" : \"caf\\u00e9 \\/ ☕\", \"max_tokens\": 16 , \"user\":null }"
	want := "{ \"temperature\" : 0.70,\"model\":\"org/Model-8B\",\n\t\"prompt\" : \"caf\\u00e9 \\/ ☕\", \"max_tokens\": 16  }"
	if resp := h.complete(sent); resp.body != plainResponse {
		t.Errorf("the response (-want +got):\n%s", cmp.Diff(plainResponse, resp.body))
	}
	if got != want {
		t.Errorf("the request (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestUserTagIsReturned(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	got := h.complete(`{"model":"m","prompt":"x","user":"run \u0031\t"}`)
	if want := strings.TrimSuffix(plainResponse, "}") + `,"user":"run \u0031\t"}`; got.body != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got.body))
	}
	if _, ok := got.header["X-Acs-User"]; ok {
		t.Error("a tag with a tab was sent as a header")
	}
	if got := h.complete(`{"model":"m","prompt":"x","user":"run 1"}`); got.header.Get("X-Acs-User") != "run 1" {
		t.Errorf("X-Acs-User is %q, want run 1", got.header.Get("X-Acs-User"))
	}
	if got := h.complete(`{"model":"m","prompt":"x","user":"run 1","temperature":3}`); got.status != 400 || got.header.Get("X-Acs-User") != "run 1" {
		t.Errorf("an invalid request: got %d with X-Acs-User %q, want 400 with run 1", got.status, got.header.Get("X-Acs-User"))
	}
}

func TestInvalidPlainResponseIsRefused(t *testing.T) {
	t.Parallel()
	truncated := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, plainResponse)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, backend := range map[string]http.HandlerFunc{
		"shorter than its length": truncated,
		"truncated JSON":          respond(http.StatusOK, "application/json", plainResponse[:60]),
		"not JSON":                respond(http.StatusOK, "application/json", "oops"),
		"an array":                respond(http.StatusOK, "application/json", "[]"),
		"no choices":              respond(http.StatusOK, "application/json", "{}"),
		"null for choices":        respond(http.StatusOK, "application/json", `{"choices":null,"usage":{"prompt_tokens":2,"completion_tokens":0}}`),
		"choices that are none":   respond(http.StatusOK, "application/json", `{"choices":{"index":0,"text":"a","finish_reason":"stop"}}`),
		"aborted":                 respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`),
		"ended by an error":       respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"a","finish_reason":"error"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil, startBackend(t, backend))
			got := h.complete(plainRequest)
			if got.status != http.StatusBadGateway || got.header.Get("X-Acs-Upstream-Error-Kind") != "upstream_server_error" {
				t.Errorf("got %d %s, want 502 upstream_server_error", got.status, got.body)
			}
		})
	}
}

// chats lets the harness's model chat.
func chats(o *harnessOptions) { o.model.Chat, o.model.Completions = true, true }

// A response is passed on, and charged, only with every choice that was asked for, each once and finished. Otherwise another
// attempt follows, as after a response that broke off.
func TestPlainResponseHasEveryChoiceOnceAndFinished(t *testing.T) {
	t.Parallel()
	const usage = `],"usage":{"prompt_tokens":1,"total_tokens":4,"completion_tokens":3}}`
	choice := func(index int, members string) string {
		return fmt.Sprintf(`{"index":%d,"text":" abc","message":{"content":"abc"},"logprobs":{"tokens":["a"],"token_logprobs":[-1]},%s},`, index, members)
	}
	const stop, length = `"finish_reason":"stop"`, `"finish_reason":"length"`
	for _, c := range []struct {
		name, path, members string
		choices             string
		whole               bool
	}{
		{"two of two", proxy.CompletionsPath, `"prompt":"x","n":2`, choice(0, stop) + choice(1, length), true},
		{"two of two, in another order", proxy.CompletionsPath, `"prompt":["x","y"]`, choice(1, stop) + choice(0, length), true},
		{"one of two", proxy.CompletionsPath, `"prompt":"x","n":2`, choice(0, stop), false},
		{"one of two prompts", proxy.CompletionsPath, `"prompt":["x","y"]`, choice(1, stop), false},
		{"three of four", proxy.CompletionsPath, `"prompt":[[1],[2]],"n":2`, choice(0, stop) + choice(1, stop) + choice(2, stop), false},
		{"none", proxy.CompletionsPath, `"prompt":"x"`, "", false},
		{"two of one", proxy.CompletionsPath, `"prompt":"x"`, choice(0, stop) + choice(1, stop), false},
		{"an index twice", proxy.CompletionsPath, `"prompt":"x","n":2`, choice(0, stop) + choice(0, stop), false},
		{"an index that is too large", proxy.CompletionsPath, `"prompt":"x","n":2`, choice(0, stop) + choice(2, stop), false},
		{"a negative index", proxy.CompletionsPath, `"prompt":"x"`, choice(-1, stop), false},
		{"null for a finish reason", proxy.CompletionsPath, `"prompt":"x"`, choice(0, `"finish_reason":null`), false},
		{"an empty finish reason", proxy.CompletionsPath, `"prompt":"x","n":2`, choice(0, stop) + choice(1, `"finish_reason":""`), false},
		{"no finish reason", proxy.CompletionsPath, `"prompt":"x"`, choice(0, `"stop_reason":"stop"`), false},
		{"a finish reason that is no string", proxy.CompletionsPath, `"prompt":"x"`, choice(0, `"finish_reason":{"type":"stop"}`), false},
		{"best_of, all candidates", proxy.CompletionsPath, `"prompt":"x","best_of":2`, choice(0, stop) + choice(1, stop), true},
		{"best_of, one candidate", proxy.CompletionsPath, `"prompt":"x","best_of":2`, choice(0, stop), false},
		{"best_of, a candidate that has not finished", proxy.CompletionsPath, `"prompt":"x","best_of":2`, choice(0, stop) + choice(1, `"finish_reason":null`), false},
		{"chat", proxy.ChatPath, `"messages":[{"role":"user","content":"x"}],"n":2`, choice(0, stop) + choice(1, stop), true},
		{"chat, one of two", proxy.ChatPath, `"messages":[{"role":"user","content":"x"}],"n":2`, choice(0, stop), false},
		{"chat, an empty finish reason", proxy.ChatPath, `"messages":[{"role":"user","content":"x"}]`, choice(0, `"finish_reason":""`), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // a broken response is tried again after a while
			h := newHarness(t, chats, startBackend(t, respond(http.StatusOK, "application/json", `{"choices":[`+strings.TrimSuffix(c.choices, ",")+usage)))
			got := h.post(c.path, `{"model":"m",`+c.members+`}`)
			want, wantRow := http.StatusOK, `settled 200 "" 1+3`
			if !c.whole {
				want, wantRow = http.StatusBadGateway, `settled 502 "upstream_server_error" 0+0`
			}
			if got.status != want || !c.whole && gjson.Get(got.body, "error.attempts").Int() != 3 {
				t.Errorf("got %d %s, want %d", got.status, got.body, want)
			}
			if row := summary(h.awaitRows(1)[0]); row != wantRow {
				t.Errorf("the ledger has %s, want %s", row, wantRow)
			}
		})
	}
}
