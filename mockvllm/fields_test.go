package mockvllm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

func TestBadWordsAreNotGenerated(t *testing.T) {
	p := start(t, mockvllm.Options{})
	greedy := map[string]any{"temperature": 0, "max_tokens": 1, "prompt": "The capital of France is Paris"}
	if c := complete(t, p, greedy); c.Choices[0].Text != "." {
		t.Fatalf("got %q, want a full stop", c.Choices[0].Text)
	}
	greedy["bad_words"] = []string{"."}
	if c := complete(t, p, greedy); c.Choices[0].Text == "." {
		t.Errorf("got %q in spite of bad_words", c.Choices[0].Text)
	}
	old := start(t, mockvllm.Options{Version: "0.24.0"})
	if c := complete(t, old, greedy); c.Choices[0].Text != "." {
		t.Errorf("0.24.0: got %q, want bad_words ignored", c.Choices[0].Text)
	}
}

func TestBadWordsOfSeveralTokensBanOnlyTheirLast(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"temperature": 0, "max_tokens": 3, "return_token_ids": true}
	want := complete(t, p, fields).Choices[0]
	fields["bad_words"] = []string{strings.TrimPrefix(want.Text, " Paris")}
	got := complete(t, p, fields).Choices[0]
	if len(want.TokenIDs) != 3 || !slices.Equal(got.TokenIDs[:2], want.TokenIDs[:2]) || got.TokenIDs[2] == want.TokenIDs[2] {
		t.Errorf("got tokens %v, want %v but for the last", got.TokenIDs, want.TokenIDs)
	}
}

func TestPromptFieldsChangeThePromptsTokens(t *testing.T) {
	whole := complete(t, start(t, mockvllm.Options{}), nil).Usage.Prompt
	for _, test := range []struct {
		version string
		fields  map[string]any
		want    int
	}{
		{"0.32.0", map[string]any{"add_special_tokens": false}, whole - 1},
		{"0.32.0", map[string]any{"truncate_prompt_tokens": 3}, 3},
		{"0.8.5", map[string]any{"truncate_prompt_tokens": 3}, 3},
		{"0.32.0", map[string]any{"truncate_prompt_tokens": 3, "prompt": []int{1, 2, 3, 4, 5}}, 3},
		{"0.32.0", map[string]any{"truncate_prompt_tokens": 3, "prompt": []int{1, 2}}, 2},
		{"0.32.0", map[string]any{"truncate_prompt_tokens": -1, "prompt": make([]int, 100), "max_tokens": 24}, 40},
		{"0.11.0", map[string]any{"truncate_prompt_tokens": -1, "prompt": make([]int, 100), "max_tokens": 24}, 40},
	} {
		p := start(t, mockvllm.Options{Version: test.version, MaxModelLen: 64})
		if got := complete(t, p, test.fields).Usage.Prompt; got != test.want {
			t.Errorf("%s: %v: got %d prompt tokens, want %d", test.version, test.fields, got, test.want)
		}
	}
}

func TestFieldsOfVLLMAreValidatedInItsWords(t *testing.T) {
	p := start(t, mockvllm.Options{Version: "0.32.0", MaxModelLen: 64})
	for field, want := range map[string]string{
		`"truncate_prompt_tokens":49`:                        `truncate_prompt_tokens=49 cannot be greater than max_model_len - max_tokens = 48. Please request a smaller truncation size. (parameter=truncate_prompt_tokens, value=49)`,
		`"truncate_prompt_tokens":0`:                         `The decoder prompt cannot be empty`,
		`"bad_words":"a"`:                                    `Input should be a valid list`,
		`"min_p":true`:                                       `Input should be a valid number`,
		`"echo":1`:                                           `Input should be a valid boolean`,
		`"structured_outputs":{"choice":[]}`:                 `Choice '[]' cannot be an empty list`,
		`"structured_outputs":{"grammar":" "}`:               `Invalid grammar specification`,
		`"structured_outputs":{"grammar":"root ::= other"}`:  `rule other is not defined`,
		`"structured_outputs":{"regex":"("}`:                 `Failed to transform regex into a grammar`,
		`"structured_outputs":{"json":{"$ref":"#/nowhere"}}`: `Failed to transform json schema into a grammar`,
		`"structured_outputs":{"json":{"required":["a"],"properties":{"a":{"$ref":"#"}}}}`: `Failed to transform json schema into a grammar`,
	} {
		a := send(t, p, http.MethodPost, completions, `{"model":"mock-model","prompt":"x",`+field+`}`)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%.100s: got %d %s, want 400 with %s", field, a.status, a.body, want)
		}
	}
}

// person is a schema with most of what the generator knows.
const person = `{"type":"object","$defs":{"pet":{"type":"object","properties":{"name":{"type":"string","minLength":9,"maxLength":12},
	"pets":{"type":"array","items":{"$ref":"#/$defs/pet"}},"next":{"anyOf":[{"$ref":"#/$defs/pet"},{"type":"null"}]}},"required":["name","pets","next"]}},
	"properties":{"name":{"type":"string","pattern":"^[A-Z][a-z]{2,5}$"},"age":{"type":"integer","minimum":30,"maximum":31},
	"grade":{"enum":["a","b"]},"height":{"type":"number","minimum":1.5},"tags":{"type":"array","minItems":2,"maxItems":2,"items":{"const":"x"}},
	"pet":{"anyOf":[{"$ref":"#/$defs/pet"},{"type":"null"}]},"ok":{"allOf":[{"type":"boolean"}]}},
	"required":["name","age","grade","height","tags","pet","ok"],"additionalProperties":false}`

func isPerson(text string) bool {
	type pet struct {
		Name string
		Pets []json.RawMessage
		Next json.RawMessage
	}
	var p struct {
		Name, Grade string
		Age         int
		Height      float64
		Tags        []string
		Pet         *pet
		Ok          *bool
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(&p) == nil && regexp.MustCompile(`^[A-Z][a-z]{2,5}$`).MatchString(p.Name) &&
		(p.Age == 30 || p.Age == 31) && (p.Grade == "a" || p.Grade == "b") && p.Height >= 1.5 &&
		slices.Equal(p.Tags, []string{"x", "x"}) && p.Ok != nil &&
		(p.Pet == nil || len(p.Pet.Name) >= 9 && len(p.Pet.Name) <= 12)
}

func TestStructuredOutputConforms(t *testing.T) {
	isObject := func(text string) bool { return json.Unmarshal([]byte(text), &map[string]any{}) == nil }
	oneOf := func(texts ...string) func(string) bool {
		return func(text string) bool { return slices.Contains(texts, text) }
	}
	sum := regexp.MustCompile(`^\d([-+]\d)*$`)
	for _, test := range []struct {
		version, fields string
		conforms        func(string) bool
	}{
		{"0.32.0", `{"structured_outputs":{"choice":["yes","no","perhaps not"]}}`, oneOf("yes", "no", "perhaps not")},
		{"0.32.0", `{"structured_outputs":{"regex":"[a-f]{3}-\\d+(x|yz)?"}}`, regexp.MustCompile(`^[a-f]{3}-\d+(x|yz)?$`).MatchString},
		{"0.32.0", `{"structured_outputs":{"json":` + person + `}}`, isPerson},
		{"0.32.0", `{"structured_outputs":{"json":` + fmt.Sprintf("%q", strings.ReplaceAll(strings.ReplaceAll(person, "\n", ""), "\t", "")) + `}}`, isPerson},
		{"0.32.0", `{"structured_outputs":{"json_object":true}}`, isObject},
		{"0.32.0", `{"structured_outputs":{"json":{"properties":{"next":{"$ref":"#"}},"type":["object","null"]}}}`, isObject},
		{"0.32.0", `{"response_format":{"type":"json_object"}}`, isObject},
		{"0.8.5", `{"response_format":{"type":"json_object"}}`, isObject},
		{"0.11.0", `{"response_format":{"type":"json_schema","json_schema":{"name":"p","schema":` + person + `}}}`, isPerson},
		{"0.32.0", `{"structured_outputs":{"grammar":"root ::= [0-9] ((\"+\" | \"-\") [0-9])*"}}`, sum.MatchString},
		{"0.8.5", `{"guided_choice":["yes","no"]}`, oneOf("yes", "no")},
		{"0.8.5", `{"guided_regex":"[0-9]{4}"}`, regexp.MustCompile(`^\d{4}$`).MatchString},
		{"0.11.0", `{"guided_json":` + person + `}`, isPerson},
		{"0.6.6", `{"guided_grammar":"root ::= \"SELECT \" (\"a\" | \"b\")"}`, oneOf("SELECT a", "SELECT b")},
	} {
		var fields map[string]any
		if err := json.Unmarshal([]byte(test.fields), &fields); err != nil {
			t.Fatalf("%v: %s", err, test.fields)
		}
		p := start(t, mockvllm.Options{Version: test.version})
		fields["max_tokens"], fields["n"] = 4000, 20
		for _, c := range complete(t, p, fields).Choices {
			if !test.conforms(c.Text) || *c.FinishReason != "stop" {
				t.Errorf("%s: %.100s: got %q and finish_reason %s, which does not conform", test.version, test.fields, c.Text, *c.FinishReason)
			}
		}
		delete(fields, "n")
		fields["stream"], fields["temperature"] = true, 0
		events, err := stream(t, p, fields)
		if text := streamedText(decodeEvents(t, events))[0]; err != nil || !test.conforms(text) {
			t.Errorf("%s: %.100s: streamed %q, error %v, which does not conform: %.500q", test.version, test.fields, text, err, events)
		}
	}
}

// TestUnknownFieldsAreIgnored covers fields that a version does not have: vLLM accepts them without any effect.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	for version, fields := range map[string][]map[string]any{
		"0.32.0": {{"guided_choice": []string{"x"}}, {"guided_json": 1}, {"best_of": 3}},
		"0.12.0": {{"guided_regex": "x"}},
		"0.10.1": {{"structured_outputs": map[string]any{"choice": []string{"x"}}}},
		"0.9.2":  {{"cache_salt": ""}, {"return_token_ids": true}, {"bad_words": []string{""}}},
	} {
		p := start(t, mockvllm.Options{Version: version})
		want := complete(t, p, map[string]any{"temperature": 0}).Choices[0].Text
		for _, more := range fields {
			more["temperature"] = 0
			got := complete(t, p, more).Choices[0]
			if got.Text != want || got.TokenIDs != nil {
				t.Errorf("%s: %v: got %q, want %q", version, more, got.Text, want)
			}
		}
	}
}

func TestStructuredOutputIsCutAtMaxTokens(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{"max_tokens": 3, "structured_outputs": map[string]any{"regex": "[0-9]{50}"}})
	if *c.Choices[0].FinishReason != "length" || c.Usage.Completion != 3 {
		t.Errorf("got %+v, %+v, want three tokens and finish_reason length", c.Choices[0], c.Usage)
	}
}

func TestVersion085FailsAtEchoLikeTheV0Engine(t *testing.T) {
	p := start(t, mockvllm.Options{Version: "0.8.5"})
	several := send(t, p, http.MethodPost, completions, body(t, map[string]any{"echo": true, "logprobs": 1, "n": 3}))
	if several.status != 500 || several.body != "Internal Server Error" {
		t.Errorf("echo, logprobs and n: got %d %s, want 500", several.status, several.body)
	}
	if a := send(t, p, http.MethodGet, "/health", ""); a.status != 200 {
		t.Errorf("/health: got %d, want 200", a.status)
	}
	if c := complete(t, p, map[string]any{"echo": true, "logprobs": 1}); c.Choices[0].Logprobs == nil {
		t.Errorf("echo and logprobs: got %+v, want logprobs", c.Choices[0])
	}
}

func TestTextOffsetsContinueAfterTheEchoedTokens(t *testing.T) {
	p := start(t, mockvllm.Options{})
	events, err := stream(t, p, map[string]any{"echo": true, "logprobs": 0, "max_tokens": 3, "ignore_eos": true, "temperature": 0})
	if err != nil {
		t.Fatal(err)
	}
	chunks := decodeEvents(t, events)
	first, second := chunks[0].Choices[0].Logprobs, chunks[1].Choices[0].Logprobs
	last := len(first.Tokens) - 1
	if second.TextOffset[0] != first.TextOffset[last]+len(first.Tokens[last]) {
		t.Errorf("got offsets %v, then %v, want the latter to continue", first.TextOffset, second.TextOffset)
	}
}

func TestNamedTokensAreListedAndSpoilOtherRequests(t *testing.T) {
	for _, sound := range []bool{false, true} {
		p := start(t, mockvllm.Options{SoundLogprobIDs: sound, TokenDelay: time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		named := make(chan struct{})
		go func() {
			defer close(named)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+"/v1/completions",
				strings.NewReader(`{"model":"mock-model","prompt":"x","max_tokens":8000,"ignore_eos":true,"logprobs":1,"logprob_token_ids":[5]}`))
			if err != nil {
				return
			}
			r.Header.Set("Content-Type", "application/json")
			if response, err := client().Do(r); err == nil {
				response.Body.Close()
			}
		}()
		poll.Until(t, "the first request runs", func() bool { return p.Running() == 1 })
		var other string
		poll.Until(t, "another one is spoilt, or never", func() bool {
			other = send(t, p, http.MethodPost, "/v1/completions", `{"model":"mock-model","prompt":"x","max_tokens":1,"logprobs":5,"return_tokens_as_token_ids":true}`).body
			return sound || strings.Contains(other, `"token_id:0":-9999.0`)
		})
		if sound && strings.Contains(other, "-9999") {
			t.Errorf("a sound server spoils the other request: %s", other)
		}
		cancel()
		<-named
	}
	p := start(t, mockvllm.Options{})
	got := send(t, p, http.MethodPost, "/v1/completions", `{"model":"mock-model","prompt":"x","max_tokens":1,"logprobs":1,"return_tokens_as_token_ids":true,"logprob_token_ids":[5,6]}`).body
	if !strings.Contains(got, `"token_id:5":`) || !strings.Contains(got, `"token_id:6":`) {
		t.Errorf("the response lacks the tokens: %s", got)
	}
	got = send(t, p, http.MethodPost, "/v1/completions", `{"model":"mock-model","prompt":"x","max_tokens":1,"logprobs":1,"logprob_token_ids":[99999999]}`).body
	if !strings.Contains(got, "token_id(s) [99999999] in logprob_token_ids contain out-of-vocab token ids") {
		t.Errorf("an unknown token: %s", got)
	}
}

func TestTokenizerInfoNeedsItsOption(t *testing.T) {
	if got := send(t, start(t, mockvllm.Options{}), http.MethodGet, "/tokenizer_info", ""); got.status != http.StatusNotFound {
		t.Errorf("got %d %s", got.status, got.body)
	}
	got := send(t, start(t, mockvllm.Options{TokenizerInfo: true}), http.MethodGet, "/tokenizer_info", "")
	var info struct {
		BOS string `json:"bos_token"`
		Dir string `json:"name_or_path"`
	}
	if err := json.Unmarshal([]byte(got.body), &info); err != nil || info.BOS != "<|begin_of_text|>" || info.Dir != "/models/mock-model" {
		t.Errorf("got %s: %v", got.body, err)
	}
}
