package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBodiesAreForwardedByteForByte(t *testing.T) {
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
		"aborted":                 respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`),
		"ended by an error":       respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"a","finish_reason":"error"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, startBackend(t, backend))
			got := h.complete(plainRequest)
			if got.status != http.StatusBadGateway || got.header.Get("X-Acs-Upstream-Error-Kind") != "upstream_server_error" {
				t.Errorf("got %d %s, want 502 upstream_server_error", got.status, got.body)
			}
		})
	}
}
