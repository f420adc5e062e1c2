package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
	"basegate/proxy"
)

// startFrontend starts a mock of vLLM 0.33, with its Rust frontend or with the Python one.
func startFrontend(t *testing.T, rust bool) *mockvllm.Process {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{
		Models: []string{"org/Model-8B"}, APIKey: "backend-key", Version: "0.33.0", RustFrontend: rust,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	return mock
}

// What the Rust frontend refuses goes to the backend beside it, every time.
func TestRequestsThatTheRustFrontendRefusesGoElsewhere(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startFrontend(t, true).URL(), startFrontend(t, false).URL())
	for _, members := range []string{
		`"prompt":"x","n":3`, `"prompt":["x","y"]`, `"prompt":["x"]`, `"prompt":[[1,2],[3]]`, `"prompt":"x","best_of":2`, `"prompt":"x"`,
		`"prompt":"x","echo":true,"truncate_prompt_tokens":1`, `"prompt":"x","return_weight_versions":true`, `"prompt":"x","stream":true,"n":2`,
	} {
		for range 12 {
			if got := h.complete(`{"model":"m","max_tokens":3,"seed":1,` + members + `}`); got.status != http.StatusOK {
				t.Fatalf("%s: got %d %s", members, got.status, got.body)
			}
		}
	}
}

func TestRequestsThatOnlyARustFrontendCouldServeAreRefusedWithTheField(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startFrontend(t, true).URL())
	for members, param := range map[string]string{
		`"prompt":"x","n":3`: "n", `"prompt":["x","y"]`: "prompt", `"prompt":[[1,2]]`: "prompt", `"prompt":"x","best_of":2`: "best_of",
		`"prompt":"x","return_weight_versions":true`: "return_weight_versions",
	} {
		got := h.complete(`{"model":"m","max_tokens":3,` + members + `}`)
		message := gjson.Get(got.body, "error.message").Str
		if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.code").Str != "invalid_request" || gjson.Get(got.body, "error.param").Str != param ||
			!strings.HasPrefix(message, param+": ") || !strings.Contains(message, "vLLM 0.33 with its Rust frontend") || gjson.Get(got.body, "error.upstream_status").Exists() {
			t.Errorf("%s: got %d %s, want %s refused by the gateway", members, got.status, got.body, param)
		}
	}
	if got := h.complete(`{"model":"m","prompt":[1,2],"max_tokens":3,"n":1}`); got.status != http.StatusOK {
		t.Errorf("one prompt: got %d %s", got.status, got.body)
	}
}

func TestRustFrontendScoresOneContinuation(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startFrontend(t, true).URL())
	const body = `{"model":"m","context":[5,6],"continuations":`
	if got := h.post(proxy.LoglikelihoodPath, body+`[[7,8]]}`); got.status != http.StatusOK || gjson.Get(got.body, "method").Str != "scored" {
		t.Errorf("one: got %d %s", got.status, got.body)
	}
	got := h.post(proxy.LoglikelihoodPath, body+`[[7,8],[9,9]]}`)
	if message := gjson.Get(got.body, "error.message").Str; got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "continuations" ||
		!strings.HasPrefix(message, "continuations: ") {
		t.Errorf("two: got %d %s", got.status, got.body)
	}
}

// describing makes a backend answer GET /openapi.json with the fields of completions.
func describing(t *testing.T, version, fields string, complete http.HandlerFunc) string {
	t.Helper()
	document := `{"components":{"schemas":{"CompletionRequest":{"properties":{"` + strings.ReplaceAll(fields, " ", `":{},"`) + `":{}}}}}}`
	return startBackendOf(t, version, complete, func(*http.Request) bool { return true }, func(mux *http.ServeMux) {
		mux.HandleFunc("GET /openapi.json", respond(http.StatusOK, "application/json", document))
	})
}

func TestBackendThatDescribesGuidedFieldsGetsThem(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, describing(t, "0.1.dev1+g1234567", "model prompt max_tokens response_format guided_json", backend.ServeHTTP))
	got := h.complete(`{"model":"m","prompt":"x","structured_outputs":{"json":{}}}`)
	if received := backend.received(); got.status != http.StatusOK || len(received) != 1 || !strings.Contains(received[0], `"guided_json":{}`) {
		t.Errorf("got %d %s, and the backend received %q", got.status, got.body, received)
	}
}

// A build may lack a field that its version has, or have one that its version lacks.
func TestFieldsGoOnlyToBackendsThatDescribeThem(t *testing.T) {
	t.Parallel()
	var lacking, having recorder
	h := newHarness(t, nil,
		describing(t, "0.33.0", "model prompt max_tokens", lacking.ServeHTTP),
		describing(t, "0.9.2", "model prompt max_tokens bad_words cache_salt", having.ServeHTTP))
	for range 8 {
		if got := h.complete(`{"model":"m","prompt":"x","bad_words":["y"],"cache_salt":"s"}`); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if n := len(lacking.received()); n > 0 || len(having.received()) != 8 {
		t.Errorf("the backend that lacks the fields received %d requests", n)
	}
	got := h.complete(`{"model":"m","prompt":"x","min_p":0.5}`)
	if message := gjson.Get(got.body, "error.message").Str; got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "min_p" || !strings.Contains(message, "vLLM 0.33") {
		t.Errorf("got %d %s, want min_p refused", got.status, got.body)
	}
}
