package proxy_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestBestOfIsEmulated(t *testing.T) {
	t.Parallel()
	received := `{"id":"c","choices":[` +
		`{"index":0,"text":"bad","logprobs":{"token_logprobs":[-3,-3]},"finish_reason":"length"},` +
		`{"index":1,"text":"best","logprobs":{"token_logprobs":[-1,-1]},"finish_reason":"length"},` +
		`{"index":2,"text":"good","logprobs":{"token_logprobs":[-2]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":5}}`
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", received)))
	got := h.complete(`{"model":"m","prompt":"x","n":2,"best_of":3}`)
	want := `{"id":"c","choices":[` +
		`{"index":0,"text":"best","logprobs":null,"finish_reason":"length"},` +
		`{"index":1,"text":"good","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":5}}`
	if got.body != want {
		t.Errorf("got  %s\nwant %s", got.body, want)
	}
}

// choice is a choice of a plain response.
type choice struct {
	Index    int
	Text     string
	Logprobs *struct {
		TokenLogprobs []*float64 `json:"token_logprobs"`
	}
	PromptLogprobs []any `json:"prompt_logprobs"`
}

// choicesOf returns the choices of a plain response.
func choicesOf(t *testing.T, body string) []choice {
	t.Helper()
	var completion struct{ Choices []choice }
	if err := json.Unmarshal([]byte(body), &completion); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return completion.Choices
}

// meanLogprob returns the mean log-probability of the generated tokens, which follow those of the prompt.
func (c choice) meanLogprob() float64 {
	sum, n := 0.0, 0
	for _, p := range c.Logprobs.TokenLogprobs[len(c.PromptLogprobs):] {
		sum, n = sum+*p, n+1
	}
	return sum / float64(n)
}

func TestBestOfIsSentToAVersionThatHonoursIt(t *testing.T) {
	t.Parallel()
	h, mock := startMock(t, "0.6.6")
	if got := h.complete(`{"model":"m","prompt":"x","n":1,"best_of":3,"max_tokens":2}`); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if body := lastCompletion(mock); body != `{"model":"org/Model-8B","prompt":"x","n":1,"best_of":3,"max_tokens":2}` {
		t.Errorf("the backend received %s", body)
	}
}

// With the same seed, the choices of best_of are the n choices of each prompt with the highest mean log-probability.
func TestBestOfKeepsTheBestOfEachPrompt(t *testing.T) {
	t.Parallel()
	h, mock := startMock(t, "0.27.0")
	for _, echo := range []bool{false, true} {
		const members = `"prompt":["The sea","A house on"],"max_tokens":6,"seed":7,"echo":%t}`
		candidates := choicesOf(t, h.complete(fmt.Sprintf(`{"model":"m","n":4,"logprobs":0,`+members, echo)).body)
		if len(candidates) != 8 {
			t.Fatalf("got %d candidates, want 8", len(candidates))
		}
		var want []string
		for prompt := range 2 {
			group := slices.Clone(candidates[4*prompt : 4*prompt+4])
			slices.SortStableFunc(group, func(a, b choice) int { return cmp.Compare(b.meanLogprob(), a.meanLogprob()) })
			want = append(want, group[0].Text, group[1].Text)
		}
		got := h.complete(fmt.Sprintf(`{"model":"m","n":2,"best_of":4,`+members, echo))
		var texts []string
		for i, c := range choicesOf(t, got.body) {
			texts = append(texts, c.Text)
			if c.Index != i || c.Logprobs != nil || c.PromptLogprobs != nil {
				t.Errorf("echo %t: choice %d is %+v", echo, i, c)
			}
		}
		if diff := gocmp.Diff(want, texts); diff != "" {
			t.Errorf("echo %t (-want +got):\n%s", echo, diff)
		}
		if body := lastCompletion(mock); strings.Contains(body, "best_of") || !strings.Contains(body, `"n":4`) {
			t.Errorf("the backend received %s", body)
		}
		withLogprobs := choicesOf(t, h.complete(fmt.Sprintf(`{"model":"m","n":1,"best_of":2,"logprobs":1,`+members, echo)).body)
		if len(withLogprobs) != 2 || withLogprobs[0].Logprobs == nil {
			t.Errorf("echo %t: got %+v, want two choices with the logprobs that were requested", echo, withLogprobs)
		}
	}
	if got := h.complete(`{"model":"m","prompt":"x","n":2,"best_of":2,"max_tokens":2}`); len(choicesOf(t, got.body)) != 2 {
		t.Errorf("best_of equal to n: got %s, want two choices", got.body)
	}
}

// llama.cpp lists log-probabilities in another form, and servers without any ignore the field. The first choice was returned
// then, as if it were the best.
func TestBestOfIsRefusedWithoutLogprobsToChooseBy(t *testing.T) {
	t.Parallel()
	for name, logprobs := range map[string]string{"none": `null`, "in the form of chat": `{"content":[{"token":"a","logprob":-1}]}`} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			received := `{"choices":[{"index":0,"text":"a","logprobs":` + logprobs + `,"finish_reason":"stop"},` +
				`{"index":1,"text":"b","logprobs":` + logprobs + `,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
			h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/completions" {
					asked++
				}
				respond(http.StatusOK, "application/json", received)(w, r)
			}))
			for range 2 {
				got := h.complete(`{"model":"m","prompt":"x","best_of":2}`)
				if got.status != http.StatusBadRequest || !strings.Contains(got.body, `"code":"invalid_request"`) ||
					!strings.Contains(got.body, `"param":"best_of"`) || !strings.Contains(got.body, "no log-probabilities") {
					t.Errorf("got %d %s, want 400 that names best_of", got.status, got.body)
				}
			}
			if asked != 1 {
				t.Errorf("the backend received %d requests, want only the first", asked)
			}
			if got := h.complete(`{"model":"m","prompt":"x","n":2,"best_of":2}`); got.status != http.StatusOK {
				t.Errorf("without a choice to make: got %d %s, want 200", got.status, got.body)
			}
		})
	}
}
