package proxy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// effectVersions are a version of vLLM with the present names of all fields, and two older ones: 0.10.2 has guided_* in
// place of structured_outputs, and 0.9.2 lacks some fields.
var effectVersions = []string{"0.32.0", "0.10.2", "0.9.2"}

// Each of vLLM's own fields has its effect through the gateway, and the charge is what vLLM reports.
func TestFieldsOfVLLMHaveTheirEffect(t *testing.T) {
	t.Parallel()
	const a, b, exclamation = 65, 66, 33 // the mock's first 256 tokens are the bytes
	onlyAB := `"allowed_token_ids":[65,66],"temperature":1,"seed":3,"max_tokens":40,"ignore_eos":true`
	always := func(token int) string { return fmt.Sprintf(`"logit_bias":{"%d":100}`, token) }
	words := strings.TrimSpace(strings.Repeat("The sea ", 30))
	oneOf := func(values ...string) func(gjson.Result) bool {
		return func(r gjson.Result) bool { return slices.Contains(values, r.Get("choices.0.text").Str) }
	}
	object := func(r gjson.Result) bool {
		text := r.Get("choices.0.text").Str
		return gjson.Valid(text) && gjson.Parse(text).IsObject()
	}
	has := func(path, want string) func(gjson.Result) bool {
		return func(r gjson.Result) bool { return r.Get(path).String() == want }
	}
	schema := `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	hasN := func(r gjson.Result) bool {
		return object(r) && gjson.Get(r.Get("choices.0.text").Str, "n").Type == gjson.Number
	}
	for _, c := range []struct {
		name, members string
		since         string // the first version that has the field; empty: all
		effect        func(gjson.Result) bool
	}{
		{"min_tokens with ignore_eos", `"prompt":"The sea","max_tokens":30,"min_tokens":30,"ignore_eos":true,"temperature":0`, "", has("usage.completion_tokens", "30")},
		{"stop_token_ids", `"prompt":"x","stop_token_ids":[33],` + always(exclamation), "", has("choices.0.stop_reason", "33")},
		{"stop_token_ids after min_tokens", `"prompt":"x","stop_token_ids":[65],"allowed_token_ids":[65,66],"min_tokens":5,` + always(a), "", func(r gjson.Result) bool {
			return strings.HasPrefix(r.Get("choices.0.text").Str, "BBBBB") && r.Get("usage.completion_tokens").Int() == 6
		}},
		{"stop excluded", `"prompt":"x","stop":"!",` + always(exclamation), "", oneOf("")},
		{"include_stop_str_in_output", `"prompt":"x","stop":"!","include_stop_str_in_output":true,` + always(exclamation), "", oneOf("!")},
		{"allowed_token_ids", `"prompt":"x",` + onlyAB, "", func(r gjson.Result) bool {
			text := r.Get("choices.0.text").Str
			return len(text) == 40 && strings.Trim(text, "AB") == "" && strings.Contains(text, "A") && strings.Contains(text, "B")
		}},
		{"bad_words", `"prompt":"x","bad_words":["A"],` + onlyAB, "0.26", oneOf(strings.Repeat("B", 40))},
		{"truncate_prompt_tokens of text", `"prompt":"` + words + `","truncate_prompt_tokens":7`, "", has("usage.prompt_tokens", "7")},
		{"truncate_prompt_tokens of token ids", `"prompt":` + tokenIDs(50) + `,"truncate_prompt_tokens":9`, "", has("usage.prompt_tokens", "9")},
		{"truncate_prompt_tokens above the length", `"prompt":` + tokenIDs(5) + `,"truncate_prompt_tokens":9`, "", has("usage.prompt_tokens", "5")},
		{"truncate_prompt_tokens to fit", `"prompt":` + tokenIDs(9000) + `,"truncate_prompt_tokens":-1,"max_tokens":12,"ignore_eos":true`, "0.20", has("usage.total_tokens", "8192")},
		{"add_special_tokens", `"prompt":"!!!","add_special_tokens":false`, "", has("usage.prompt_tokens", "3")},
		{"skip_special_tokens", `"prompt":"x","skip_special_tokens":false,"ignore_eos":true,"max_tokens":2,"temperature":0,"logit_bias":{"EOS":100}`, "", oneOf("<|end_of_text|><|end_of_text|>")},
		{"special tokens are skipped", `"prompt":"x","ignore_eos":true,"max_tokens":2,"temperature":0,"logit_bias":{"EOS":100}`, "", oneOf("")},
		{"spaces_between_special_tokens", `"prompt":"x","spaces_between_special_tokens":false`, "", has("object", "text_completion")},
		{"return_tokens_as_token_ids", `"prompt":"x","logprobs":0,"return_tokens_as_token_ids":true,"max_tokens":1,"allowed_token_ids":[66]`, "", has("choices.0.logprobs.tokens.0", fmt.Sprint("token_id:", b))},
		{"return_token_ids", `"prompt":"x","return_token_ids":true,"max_tokens":2,"allowed_token_ids":[66],"ignore_eos":true`, "0.10.1", has("choices.0.token_ids", "[66,66]")},
		{"cache_salt", `"prompt":"x","cache_salt":"salt"`, "0.10", has("object", "text_completion")},
		{"response_format text", `"prompt":"x","response_format":{"type":"text"}`, "", has("object", "text_completion")},
		{"response_format json_object", `"prompt":"x","max_tokens":200,"response_format":{"type":"json_object"}`, "", object},
		{"response_format json_schema", `"prompt":"x","max_tokens":200,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}`, "", hasN},
		{"structured_outputs json", `"prompt":"x","max_tokens":200,"structured_outputs":{"json":` + schema + `}`, "", hasN},
		{"structured_outputs json_object", `"prompt":"x","max_tokens":200,"structured_outputs":{"json_object":true}`, "", object},
		{"structured_outputs choice", `"prompt":"x","structured_outputs":{"choice":["heads","tails"]}`, "", oneOf("heads", "tails")},
		{"structured_outputs regex", `"prompt":"x","structured_outputs":{"regex":"(ab){2}c"}`, "", oneOf("ababc")},
		{"structured_outputs grammar", `"prompt":"x","structured_outputs":{"grammar":"root ::= \"yes\" | \"no\""}`, "", oneOf("yes", "no")},
		{"disable_any_whitespace", `"prompt":"x","max_tokens":200,"structured_outputs":{"json":` + schema + `,"disable_any_whitespace":true}`, "0.11", hasN},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, version := range effectVersions {
				h, mock := startMock(t, version)
				eos := endOfTextID(t, h, mock.URL())
				got := h.complete(`{"model":"m",` + strings.ReplaceAll(c.members, "EOS", eos) + `}`)
				if version != effectVersions[0] && c.since != "" && lacks(version, c.since) {
					if got.status != 400 || !strings.Contains(got.body, c.since+" or later") {
						t.Errorf("%s: got %d %s, want 400: it needs %s", version, got.status, got.body, c.since)
					}
					continue
				}
				r := gjson.Parse(got.body)
				if got.status != 200 || !c.effect(r) {
					t.Errorf("%s: got %d %.600s", version, got.status, got.body)
					continue
				}
				want := fmt.Sprintf(`settled 200 "" %d+%d`, r.Get("usage.prompt_tokens").Int(), r.Get("usage.completion_tokens").Int())
				if row := summary(h.awaitRows(1)[0]); row != want {
					t.Errorf("%s: charged %s, want %s", version, row, want)
				}
			}
		})
	}
}

// lacks reports whether a version is older than since, both of 0.x.
func lacks(version, since string) bool {
	var v, s [2]int
	fmt.Sscanf(version, "0.%d.%d", &v[0], &v[1]) // a missing patch release is 0
	fmt.Sscanf(since, "0.%d.%d", &s[0], &s[1])
	return slices.Compare(v[:], s[:]) < 0
}

// endOfTextID returns the id of the mock's end-of-text token.
func endOfTextID(t *testing.T, h *harness, mock string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mock+"/tokenize",
		strings.NewReader(`{"model":"org/Model-8B","prompt":"<|end_of_text|>","add_special_tokens":false}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return gjson.Get(h.do(req).body, "tokens.0").String()
}

// The mock of 0.32 lowers max_tokens to the room in its context without a word, and older ones refuse; the gateway refuses
// what is over with every version, before it reaches vLLM.
func TestLengthAboveTheContextIsRefusedForEveryVersion(t *testing.T) {
	t.Parallel()
	text := strings.TrimSpace(strings.Repeat("The sea ", 4090))
	for _, version := range effectVersions {
		h, mock := startMock(t, version)
		tokens, err := h.tokenize(mock.URL(), text)
		if err != nil {
			t.Fatal(err)
		}
		for members, ok := range map[string]bool{
			`"prompt":` + tokenIDs(8190) + `,"max_tokens":2`:                                true,
			`"prompt":` + tokenIDs(8190) + `,"max_tokens":3`:                                false,
			`"prompt":"x","max_tokens":8192`:                                                false,
			fmt.Sprintf(`"prompt":"%s","max_tokens":%d`, text, 8192-tokens):                 true,
			fmt.Sprintf(`"prompt":"%s","max_tokens":%d`, text, 8192-tokens+1):               false,
			fmt.Sprintf(`"prompt":"%s","max_tokens":%d,"stream":true`, text, 8192-tokens+1): false,
			`"prompt":` + tokenIDs(9000) + `,"truncate_prompt_tokens":8190,"max_tokens":3`:  false,
		} {
			sent := len(mock.Requests())
			got := h.complete(`{"model":"m",` + members + `}`)
			if ok && got.status != 200 || !ok && (got.status != 400 || gjson.Get(got.body, "error.code").Str != "context_length_exceeded") {
				t.Errorf("%s: …%s: got %d %.300s", version, members[len(members)-40:], got.status, got.body)
			}
			for _, r := range mock.Requests()[sent:] {
				if !ok && r.Path == "/v1/completions" {
					t.Errorf("%s: …%s was sent to vLLM", version, members[len(members)-40:])
				}
			}
		}
	}
}

// continuous_usage_stats passes untouched: each event has the usage of its choice, and the last one that of the request.
func TestContinuousUsagePassesUntouched(t *testing.T) {
	t.Parallel()
	for _, version := range effectVersions {
		h, mock := startMock(t, version)
		body := `{"model":"m","prompt":"The sea","n":2,"seed":1,"max_tokens":6,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
		got := h.complete(body)
		counts := map[int64]int64{}
		var total gjson.Result
		for line := range strings.SplitSeq(got.body, "\n") {
			data, isData := strings.CutPrefix(line, "data: ")
			if !isData || data == "[DONE]" {
				continue
			}
			if choice := gjson.Get(data, "choices.0"); choice.Exists() {
				counts[choice.Get("index").Int()] = gjson.Get(data, "usage.completion_tokens").Int()
			} else {
				total = gjson.Get(data, "usage")
			}
		}
		if got.status != 200 || counts[0] != 6 || counts[1] != 6 || total.Get("completion_tokens").Int() != 12 {
			t.Errorf("%s: got %d %s", version, got.status, got.body)
		}
		want := strings.Replace(body, `"m"`, `"org/Model-8B"`, 1)
		if got := lastCompletion(mock); got != want {
			t.Errorf("%s: the backend received %s, want %s", version, got, want)
		}
	}
}
