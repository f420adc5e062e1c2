package proxy_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"basegate/gateway/config"
	"basegate/mockvllm"
	"basegate/proxy"
)

// tokenizeCalls returns how many requests to the tokenizer have preceded the one with a path, of those after the first sent ones: a
// prompt whose request takes long is counted meanwhile.
func tokenizeCalls(mock *mockvllm.Process, sent int, path string) (n int) {
	for _, r := range mock.Requests()[sent:] {
		switch r.Path {
		case "/tokenize":
			n++
		case path:
			return n
		}
	}
	return n
}

// A prompt is refused only by the tokenizer's count, never by the upper bound. A prompt whose bound fits is not
// counted.
func TestPromptIsCountedOnlyIfItsBoundDoesNotFit(t *testing.T) {
	t.Parallel()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}, APIKey: "backend-key", MaxModelLen: 200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	h := newHarness(t, nil, mock.URL())
	ids := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("65,", n), ",") + "]" }
	long := strings.Repeat("the sea ", 200)
	for _, c := range []struct {
		name, prompt string
		maxTokens    int
		status       int
		calls        int // of the tokenizer
	}{
		{"a short text", `"the sea"`, 16, 200, 0},
		{"a text that fits, though its bound does not", `"` + strings.Repeat("the ", 48) + `"`, 10, 200, 1},
		{"a long text", `"` + long + `"`, 16, 400, 1},
		{"a short and a long text", `["the sea","` + long + `"]`, 16, 400, 1},
		{"token ids that just fit", ids(184), 16, 200, 0},
		{"token ids that do not fit", ids(185), 16, 400, 0},
		{"two prompts, one of which does not fit", "[[65]," + ids(185) + "]", 16, 400, 0},
		{"two prompts that fit each", "[" + ids(150) + "," + ids(150) + "]", 16, 200, 0},
		{"decomposed letters, which have more tokens than letters in NFC", `"` + strings.Repeat("e\u0301", 64) + `"`, 10, 400, 1},
		{"max_tokens that does not fit", `"x"`, 200, 400, 0},
		{"a huge max_tokens", `"x"`, 1 << 30, 400, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := len(mock.Requests())
			got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d}`, c.prompt, c.maxTokens))
			if got.status != c.status || (c.status == 400 && (!strings.Contains(got.body, `"code":"context_length_exceeded"`) ||
				!strings.Contains(got.body, fmt.Sprintf(`"max_tokens":%d,"max_model_len":200`, c.maxTokens)))) {
				t.Errorf("got %d %s, want %d", got.status, got.body, c.status)
			}
			if n := tokenizeCalls(mock, sent, proxy.CompletionsPath); n != c.calls {
				t.Errorf("got %d calls of the tokenizer, want %d", n, c.calls)
			}
		})
	}
	// If the tokenizer fails, the length is left to vLLM to check.
	mock.InjectFault(mockvllm.Fault{Kind: "error", Path: "/tokenize", Status: 500, Body: "no", Times: 1})
	got := h.complete(`{"model":"m","prompt":"` + long + `"}`)
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"code":"vllm_context_length"`) {
		t.Errorf("while the tokenizer fails: got %d %s, want 502 vllm_context_length", got.status, got.body)
	}
}

// Where a backend has no /tokenize, the upper bound decides on the length, and the message says so.
func TestBoundDecidesOnTheLengthWithoutATokenizer(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		limited := func(o *harnessOptions) { o.model.MaxScoredPromptTokens = 10 }
		h := newHarness(t, limited, startBackendWithTokenizer(t, respond(status, "application/json", "{}")))
		fits := 4096 - 16 - 4 // with the special tokens that are assumed
		for _, c := range []struct {
			body   string
			status int
			parts  []string
		}{
			{fmt.Sprintf(`"prompt":%q`, strings.Repeat("x", fits)), 200, nil},
			{fmt.Sprintf(`"prompt":%q`, strings.Repeat("x", fits+1)), 400, []string{
				`"code":"context_length_exceeded"`, `"param":"prompt"`, `"prompt_tokens":4081,"max_tokens":16,"max_model_len":4096`,
				"judged by its bytes",
			}},
			{`"prompt":"once u","prompt_logprobs":1`, 200, nil},
			{`"prompt":"once upon","prompt_logprobs":1`, 400, []string{
				`"code":"invalid_request"`, `"param":"prompt"`, "up to 13 tokens", "judged by its bytes",
			}},
			{`"prompt":"once upon","prompt_logprobs":1,"truncate_prompt_tokens":10`, 200, nil},
			{`"prompt":"once upon a time"`, 200, nil},
		} {
			for path, want := range map[string]int{"/v1/estimate": c.status, "/v1/completions": c.status} {
				got := h.post(path, `{"model":"m",`+c.body+`}`)
				if got.status != want {
					t.Errorf("/tokenize answers %d: %s %.60s: got %d %s, want %d", status, path, c.body, got.status, got.body, want)
				}
				for _, part := range c.parts {
					if !strings.Contains(got.body, part) {
						t.Errorf("/tokenize answers %d: %s %.60s: got %s, want it to contain %s", status, path, c.body, got.body, part)
					}
				}
			}
		}
	}
}

// A prompt to be scored that may exceed the limit for such prompts is refused while the tokenizer fails, because vLLM
// does not know that limit.
func TestUncountablePromptToBeScoredIsRefused(t *testing.T) {
	t.Parallel()
	limited := func(o *harnessOptions) { o.model.MaxScoredPromptTokens = 10 }
	h := newHarness(t, limited, startBackendWithTokenizer(t, respond(500, "text/plain", "no")))
	for body, status := range map[string]int{
		`"prompt":"once upon a time","prompt_logprobs":1`: http.StatusBadGateway,
		`"prompt":"once","prompt_logprobs":1`:             http.StatusOK,
		`"prompt":"once upon a time"`:                     http.StatusOK,
	} {
		got := h.complete(`{"model":"m",` + body + `}`)
		if got.status != status || status == http.StatusBadGateway && !strings.Contains(got.body, `"code":"upstream_unreachable"`) {
			t.Errorf("%s: got %d %s, want %d", body, got.status, got.body, status)
		}
	}
}

// The tokens of a prompt of token ids are known without a backend, so one that is too long to be scored starts no model.
// Its request would fail after the boot.
func TestPromptOfTokenIDsTooLongToBeScoredStartsNoModel(t *testing.T) {
	t.Parallel()
	for _, context := range []int64{0, 100} {
		started := filepath.Join(t.TempDir(), "started")
		h := newHarness(t, func(o *harnessOptions) {
			o.model.MaxModelLen, o.model.MaxScoredPromptTokens = context, 10
			o.model.Backends = []config.Backend{{Name: "b", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Launch: &config.Launch{
				Start: []string{"touch", started}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: time.Minute,
			}}}
		})
		for _, body := range []string{
			`"prompt":` + tokenIDs(11) + `,"prompt_logprobs":0`,
			`"prompt":[[1],` + tokenIDs(11) + `],"echo":true,"logprobs":1`,
			`"prompt":` + tokenIDs(12) + `,"prompt_logprobs":1,"truncate_prompt_tokens":11`,
		} {
			for _, path := range []string{"/v1/completions", "/v1/estimate"} {
				got := h.post(path, `{"model":"m",`+body+`}`)
				if got.status != 400 || !strings.Contains(got.body, `"param":"prompt"`) || !strings.Contains(got.body, "got 11 tokens to be scored") {
					t.Errorf("context %d: %s %s: got %d %s, want 400 for 11 tokens to be scored", context, path, body, got.status, got.body)
				}
			}
		}
		if _, err := os.Stat(started); err == nil {
			t.Fatalf("context %d: the model was started", context)
		}
		for _, body := range []string{
			`"prompt":` + tokenIDs(11),
			`"prompt":` + tokenIDs(10) + `,"prompt_logprobs":1`,
			`"prompt":` + tokenIDs(11) + `,"prompt_logprobs":1,"truncate_prompt_tokens":10`,
			`"prompt":"once upon a time","prompt_logprobs":1`,
		} {
			if got := h.complete(`{"model":"m",` + body + `}`); got.status != 503 || !strings.Contains(got.body, `"code":"modal_cold_boot"`) {
				t.Errorf("context %d: %s: got %d %s, want 503 modal_cold_boot", context, body, got.status, got.body)
			}
		}
	}
}
