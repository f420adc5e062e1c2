package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"basegate/mockvllm"
)

// A refusal rests on the tokenizer's count, never on the bound; and a prompt that fits by its bytes costs no question.
func TestPromptIsCountedOnlyIfItsBoundDoesNotFit(t *testing.T) {
	p, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}, APIKey: "backend-key", MaxModelLen: 200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	h := newHarness(t, nil, p.URL())
	questions := func() (n int) {
		for _, r := range p.Requests() {
			if r.Path == "/tokenize" {
				n++
			}
		}
		return n
	}
	ids := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("65,", n), ",") + "]" }
	long := strings.Repeat("the sea ", 200)
	for _, c := range []struct {
		name, prompt string
		maxTokens    int
		status       int
		asked        int
	}{
		{"a short text", `"the sea"`, 16, 200, 0},
		{"a text that fits by its tokens alone", `"` + strings.Repeat("the ", 48) + `"`, 10, 200, 1},
		{"a long text", `"` + long + `"`, 16, 400, 1},
		{"a short and a long text", `["the sea","` + long + `"]`, 16, 400, 1},
		{"token ids that just fit", ids(184), 16, 200, 0},
		{"token ids that do not", ids(185), 16, 400, 0},
		{"one list of token ids that does not", "[[65]," + ids(185) + "]", 16, 400, 0},
		{"many that fit each", "[" + ids(150) + "," + ids(150) + "]", 16, 200, 0},
		{"decomposed letters, of which this tokenizer makes more than NFC has", `"` + strings.Repeat("e\u0301", 64) + `"`, 10, 400, 1},
		{"too many tokens asked for", `"x"`, 200, 400, 1},
		{"far too many", `"x"`, 1 << 30, 400, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := questions()
			got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d}`, c.prompt, c.maxTokens))
			if got.status != c.status || (c.status == 400 && (!strings.Contains(got.body, `"code":"context_length_exceeded"`) ||
				!strings.Contains(got.body, fmt.Sprintf(`"max_tokens":%d,"max_model_len":200`, c.maxTokens)))) {
				t.Errorf("got %d %s", got.status, got.body)
			}
			if n := questions() - before; n != c.asked {
				t.Errorf("the tokenizer was asked %d times", n)
			}
		})
	}
	// Where the tokenizer does not answer, vLLM judges.
	p.InjectFault(mockvllm.Fault{Kind: "error", Path: "/tokenize", Status: 500, Body: "no", Times: -1})
	got := h.complete(`{"model":"m","prompt":"` + long + `"}`)
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"code":"vllm_context_length"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// A prompt to be scored whose length decides is not let through uncounted: vLLM knows nothing of that limit.
func TestUncountablePromptToBeScoredIsRefused(t *testing.T) {
	limited := func(o *harnessOptions) { o.model.MaxScoredPromptTokens = 10 }
	h := newHarness(t, limited, startBackendWithout(t, "/tokenize", respond(200, "application/json", `{"choices":[{"index":0,"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)))
	for body, status := range map[string]int{
		`"prompt":"once upon a time","prompt_logprobs":1`: http.StatusBadGateway,
		`"prompt":"once","prompt_logprobs":1`:             http.StatusOK,
		`"prompt":"once upon a time"`:                     http.StatusOK,
	} {
		got := h.complete(`{"model":"m",` + body + `}`)
		if got.status != status || status == http.StatusBadGateway && !strings.Contains(got.body, `"code":"upstream_unreachable"`) {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}
