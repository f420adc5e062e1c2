package mockvllm_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"basegate/mockvllm"
)

func TestStopStringTruncatesText(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"prompt": "Question:", "temperature": 0, "max_tokens": 60}
	whole := complete(t, p, fields).Choices[0].Text
	for _, stop := range []string{"\n", "ance", " of Fr", "nswer: P", "?\nAns"} {
		before, _, found := strings.Cut(whole, stop)
		if !found {
			t.Fatalf("%q is not in %q", stop, whole)
		}
		fields["stop"] = []string{"never said", stop}
		c := complete(t, p, fields).Choices[0]
		if c.Text != before || *c.FinishReason != "stop" || c.StopReason != stop {
			t.Errorf("stop %q: got %q, %s, %v, want %q", stop, c.Text, *c.FinishReason, c.StopReason, before)
		}
		fields["include_stop_str_in_output"] = true
		if c := complete(t, p, fields).Choices[0]; c.Text != before+stop {
			t.Errorf("stop %q, included: got %q, want %q", stop, c.Text, before+stop)
		}
		delete(fields, "include_stop_str_in_output")
		events, _ := stream(t, p, fields)
		if got := streamedText(decodeEvents(t, events))[0]; got != before {
			t.Errorf("stop %q, streamed: got %q, want %q", stop, got, before)
		}
	}
}

func TestStopTokenIsReportedAsStopReason(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{"logit_bias": map[string]any{"33": 100}, "stop_token_ids": []int{33}}).Choices[0]
	if c.Text != "" || c.StopReason != 33.0 || *c.FinishReason != "stop" {
		t.Errorf("got %+v, want no text and stop_reason 33", c)
	}
}

func TestStreamedTextEqualsPlainText(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for _, fields := range []map[string]any{
		{"prompt": "Good morning", "max_tokens": 60, "seed": 3},
		{"prompt": "从前有", "max_tokens": 40, "temperature": 0},
		{"prompt": "I ❤️", "max_tokens": 60, "temperature": 1.5, "seed": 4, "logprobs": 2, "echo": true},
		{"prompt": []string{"Hi", "Once"}, "max_tokens": 20, "n": 3, "seed": 5, "stop": "a", "echo": true},
	} {
		plain := complete(t, p, fields)
		events, err := stream(t, p, fields)
		if err != nil || events[len(events)-1] != "[DONE]" {
			t.Fatalf("got error %v and last event %q, want [DONE]", err, events[len(events)-1])
		}
		texts := streamedText(decodeEvents(t, events))
		for _, c := range plain.Choices {
			if texts[c.Index] != c.Text {
				t.Errorf("choice %d: streamed %q, plain %q", c.Index, texts[c.Index], c.Text)
			}
		}
	}
}

func TestPartialCharactersAreHeldBack(t *testing.T) {
	p := start(t, mockvllm.Options{})
	events, _ := stream(t, p, map[string]any{"prompt": "从前有一座", "max_tokens": 30, "temperature": 0})
	empty := 0
	for _, event := range decodeEvents(t, events) {
		text := event.Choices[0].Text
		if text == "" {
			empty++
		}
		if strings.ContainsRune(text, utf8.RuneError) {
			t.Errorf("an event has a partial character: %q", text)
		}
	}
	if empty == 0 {
		t.Error("no event is empty, so no character was spread over tokens")
	}
}

func TestEchoPrependsThePrompt(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"temperature": 0, "max_tokens": 3}
	bare := complete(t, p, fields)
	fields["echo"], fields["logprobs"] = true, 2
	echoed := complete(t, p, fields)
	c := echoed.Choices[0]
	if want := "The capital of France is" + bare.Choices[0].Text; c.Text != want {
		t.Errorf("echo: got %q, want %q", c.Text, want)
	}
	if len(c.Logprobs.Tokens) != echoed.Usage.Total || c.Logprobs.TokenLogprobs[0] != nil || c.Logprobs.TopLogprobs[0] != nil {
		t.Errorf("logprobs cover %d of %d tokens", len(c.Logprobs.Tokens), echoed.Usage.Total)
	}
	if c.PromptLogprobs == nil {
		t.Error("prompt_logprobs is null, want it implied by echo with logprobs")
	}
	if diff := cmp.Diff(bare.Usage, echoed.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

func TestEchoWithoutTokensScoresThePrompt(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{"echo": true, "logprobs": 1, "max_tokens": 0})
	if got := c.Choices[0]; got.Text != "The capital of France is" || *got.FinishReason != "length" ||
		len(got.Logprobs.Tokens) != c.Usage.Prompt || c.Usage.Completion != 1 {
		t.Errorf("got %+v with usage %+v, want the scored prompt alone", got, c.Usage)
	}
}

func TestTokenIDsAreDecodedForEcho(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{"prompt": []int{72, 105}, "echo": true, "max_tokens": 1, "temperature": 0})
	if !strings.HasPrefix(c.Choices[0].Text, "Hi") || c.Usage.Prompt != 2 {
		t.Errorf("got %+v with usage %+v, want text that begins with Hi and 2 prompt tokens", c.Choices[0], c.Usage)
	}
}

func TestTextOffsetsPointAtTokens(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{
		"prompt": []int{72, 105}, "echo": true, "logprobs": 0, "max_tokens": 12, "temperature": 0,
	}).Choices[0]
	text := []rune(c.Text)
	for i, token := range c.Logprobs.Tokens {
		at := c.Logprobs.TextOffset[i]
		if token == "<|end_of_text|>" {
			continue
		}
		if got := string(text[at:min(len(text), at+utf8.RuneCountInString(token))]); got != token {
			t.Errorf("token %d is %q, but its offset %d points at %q", i, token, at, got)
		}
	}
}

// tokens returns the token ids that /tokenize lists.
func tokens(t *testing.T, p *mockvllm.Process, text string, special bool) []int {
	t.Helper()
	request, err := json.Marshal(map[string]any{"prompt": text, "add_special_tokens": special})
	if err != nil {
		t.Fatal(err)
	}
	a := send(t, p, http.MethodPost, "/tokenize", string(request))
	var got struct {
		Count  int   `json:"count"`
		Limit  int   `json:"max_model_len"`
		Tokens []int `json:"tokens"`
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Count != len(got.Tokens) || got.Limit != 8192 {
		t.Fatalf("got %s, error %v", a.body, err)
	}
	return got.Tokens
}

func TestTokenizeCountsLikeCompletions(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for _, text := range []string{"The capital of France is", "Příliš žluťoučký kůň", "x", "<|end_of_text|>", "\x00\n"} {
		c := complete(t, p, map[string]any{"prompt": text, "max_tokens": 1})
		if got := len(tokens(t, p, text, true)); got != c.Usage.Prompt {
			t.Errorf("%q: /tokenize counts %d, usage %d", text, got, c.Usage.Prompt)
		}
	}
	if got := len(tokens(t, p, "The capital of France is", true)); got != 6 {
		t.Errorf("the documented example: got %d tokens, want 6", got)
	}
}

func FuzzTokenizerRoundTrip(f *testing.F) {
	p, err := mockvllm.Start(f.Context(), "127.0.0.1:0", mockvllm.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = p.Close() })
	for _, text := range []string{"", "a", "The capital of France is Paris.", "日本語 🎂 \u2028", "<|begin_of_text|>", "\xff\xfe", "<|end"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		ids := tokens(t, p, text, true)
		if len(ids) > len(text)+1 {
			t.Errorf("got %d tokens for %d bytes, want at most one more than bytes", len(ids), len(text))
		}
		request, err := json.Marshal(map[string]any{"tokens": ids[1:]})
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ Prompt string }
		if err := json.Unmarshal([]byte(send(t, p, http.MethodPost, "/detokenize", string(request)).body), &back); err != nil {
			t.Fatal(err)
		}
		if back.Prompt != text {
			t.Errorf("/detokenize: got %q, want %q", back.Prompt, text)
		}
	})
}
