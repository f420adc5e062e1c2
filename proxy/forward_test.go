package proxy_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const plainAnswer = `{"id":"cmpl-1", "object":"text_completion","choices":[ {"index":0,"text":"caf\u00e9 ☕","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2},"big":1e400}`

func TestABodyGoesThroughByteForByte(t *testing.T) {
	var got string
	r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		got = string(body)
		answers(http.StatusOK, "application/json", plainAnswer)(w, q)
	}))
	sent := "{ \"temperature\" : 0.70,\"model\":\"m\", \"seed\":null,\n\t\"prompt\" : \"caf\\u00e9 \\/ ☕\", \"max_tokens\": 16 , \"user\":null }"
	want := "{ \"temperature\" : 0.70,\"model\":\"org/Model-8B\",\n\t\"prompt\" : \"caf\\u00e9 \\/ ☕\", \"max_tokens\": 16  }"
	if answer := r.complete(sent); answer.body != plainAnswer {
		t.Errorf("the answer (-sent +got):\n%s", cmp.Diff(plainAnswer, answer.body))
	}
	if got != want {
		t.Errorf("the request (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestTheUserTagComesBack(t *testing.T) {
	r := newRig(t, nil, upstream(t, answers(http.StatusOK, "application/json", plainAnswer)))
	got := r.complete(`{"model":"m","prompt":"x","user":"run \u0031\t"}`)
	if want := strings.TrimSuffix(plainAnswer, "}") + `,"user":"run \u0031\t"}`; got.body != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got.body))
	}
	if _, there := got.header["X-Acs-User"]; there {
		t.Error("a tag with a tab has become a header")
	}
	if got := r.complete(`{"model":"m","prompt":"x","user":"run 1"}`); got.header.Get("X-Acs-User") != "run 1" {
		t.Errorf("X-Acs-User is %q", got.header.Get("X-Acs-User"))
	}
	if got := r.complete(`{"model":"m","prompt":"x","user":"run 1","temperature":3}`); got.status != 400 || got.header.Get("X-Acs-User") != "run 1" {
		t.Errorf("of a refused request X-Acs-User is %q", got.header.Get("X-Acs-User"))
	}
}

func TestHeadersUpstream(t *testing.T) {
	var seen []http.Header
	r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		seen = append(seen, q.Header.Clone())
		if len(seen) == 1 {
			answers(http.StatusInternalServerError, "text/plain", "Internal Server Error")(w, q)
			return
		}
		answers(http.StatusOK, "application/json", plainAnswer)(w, q)
	}))
	req := r.request(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"x"}`)
	for name, value := range map[string]string{
		"Cookie": "a=b", "X-Forwarded-For": "1.2.3.4", "X-Request-Id": "mine", "X-Vllm-Priority": "9", "User-Agent": "me",
		"Traceparent": "00-1-2-01", "Tracestate": "a=b", "Accept": "application/json", "Content-Type": "text/plain",
	} {
		req.Header.Set(name, value)
	}
	answer := r.do(req)
	if answer.status != http.StatusOK || len(seen) != 2 {
		t.Fatalf("got %d after %d attempts", answer.status, len(seen))
	}
	id := answer.header.Get("X-Request-Id")
	want := http.Header{
		"Accept": {"application/json"}, "Content-Type": {"application/json"}, "Traceparent": {"00-1-2-01"}, "Tracestate": {"a=b"},
		"Authorization": {"Bearer backend-key"}, "X-Request-Id": {id + "-2"}, "Content-Length": seen[1]["Content-Length"],
	}
	if diff := cmp.Diff(want, seen[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if first := seen[0].Get("X-Request-Id"); first != id+"-1" {
		t.Errorf("the first attempt's id is %q", first)
	}
}

func TestHeadersOfAnAnswer(t *testing.T) {
	r := newRig(t, nil, upstream(t, answers(http.StatusOK, "application/json", plainAnswer)))
	got := r.complete(`{"model":"m","prompt":"x"}`).header
	for name, want := range map[string]string{
		"X-Acs-Upstream-Model": "org/Model-8B", "X-Acs-Upstream-Gpu": "H100", "Content-Type": "application/json", "Server": "",
	} {
		if got.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Get(name), want)
		}
	}
	if !strings.HasPrefix(got.Get("X-Request-Id"), "req_") || !strings.HasPrefix(got.Get("Server-Timing"), "queue;dur=") {
		t.Errorf("got %v", got)
	}
}

func TestBodiesThatAreNoAnswer(t *testing.T) {
	short := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, plainAnswer)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, backend := range map[string]http.HandlerFunc{
		"it breaks off":        short,
		"it is cut, but whole": answers(http.StatusOK, "application/json", plainAnswer[:60]),
		"it is not JSON":       answers(http.StatusOK, "application/json", "oops"),
		"it is an array":       answers(http.StatusOK, "application/json", "[]"),
		"it has no choices":    answers(http.StatusOK, "application/json", "{}"),
		"it was aborted":       answers(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, upstream(t, backend))
			got := r.complete(`{"model":"m","prompt":"x"}`)
			if got.status != http.StatusBadGateway || got.header.Get("X-Acs-Upstream-Error-Kind") != "upstream_server_error" {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	}
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

// The first that fails answers: each request is wrong in its own way and in every later one.
func TestOrderOfJudgement(t *testing.T) {
	r := newRig(t, nil, upstream(t, answers(http.StatusOK, "application/json", plainAnswer)))
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
		{"size unpacked", "POST", "/v1/completions", "", "gzip", gzipped(t, huge), 413, "request_too_large"},
		{"encoding", "POST", "/v1/completions", "", "br", "x", 415, "unsupported_encoding"},
		{"gzip that is none", "POST", "/v1/completions", "", "gzip", "x", 400, "bad_json"},
		{"JSON", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other"`, 400, "bad_json"},
		{"fields", "POST", "/v1/completions", "", "", `{"nope":1,"model":"other","prompt":"x"}`, 400, "invalid_request"},
		{"model", "POST", "/v1/completions", "", "", `{"model":"other","prompt":[1],"max_tokens":5000}`, 400, "model_not_found"},
		{"length", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4096}`, 400, "context_length_exceeded"},
		{"nothing", "POST", "/v1/completions", "", "", `{"model":"m","prompt":[1],"max_tokens":4095}`, 200, ""},
		{"nothing, packed", "POST", "/v1/completions", "", "gzip", gzipped(t, `{"model":"m","prompt":"x"}`), 200, ""},
		{"chat", "POST", "/v1/chat/completions", "", "", `nonsense`, 400, "chat_completions_unsupported"},
		{"chat without a key", "POST", "/v1/chat/completions", "no", "", `nonsense`, 401, "invalid_api_key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := r.request(t.Context(), c.method, c.path, c.body)
			if c.key != "" {
				req.Header.Set("Authorization", "Bearer "+c.key)
			}
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			got := r.do(req)
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

func TestModels(t *testing.T) {
	r := newRig(t, nil, upstream(t, answers(http.StatusOK, "application/json", plainAnswer)))
	object := `"id":"m","object":"model"`
	list := r.do(r.request(t.Context(), http.MethodGet, "/v1/models", ""))
	if !strings.Contains(list.body, object) || !strings.Contains(list.body, `"max_model_len":4096`) || !strings.Contains(list.body, `"status":"warm"`) {
		t.Errorf("got %s", list.body)
	}
	if one := r.do(r.request(t.Context(), http.MethodGet, "/v1/models/%6d", "")); !strings.Contains(one.body, object) {
		t.Errorf("got %s", one.body)
	}
	if none := r.do(r.request(t.Context(), http.MethodGet, "/v1/models/a%2Fb", "")); none.status != http.StatusNotFound {
		t.Errorf("got %d", none.status)
	}
	down := newRig(t, nil, refusing(t))
	if got := down.do(down.request(t.Context(), http.MethodGet, "/v1/models", "")); !strings.Contains(got.body, `"status":"unavailable","boot_estimate_seconds":0`) {
		t.Errorf("of a model that is not warm: %s", got.body)
	}
	req := r.request(t.Context(), http.MethodGet, "/v1/models", "")
	req.Header.Del("Authorization")
	if got := r.do(req); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("without a key: %d %v", got.status, got.header)
	}
}
