package validate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/validate"
)

func serverOf(version string) *validate.Server {
	return &validate.Server{Version: validate.ParseVersion(version)}
}

// unservedBy returns the name and the reason of a field that a server cannot serve, or "".
func unservedBy(t *testing.T, r *validate.Request, s *validate.Server) string {
	t.Helper()
	u, found := r.Unserved(s)
	if !found {
		return ""
	}
	if u.Field == "" || !strings.HasPrefix(u.Name, u.Field) || !strings.Contains(u.Reason, "expected ") || !strings.Contains(u.Reason, "use another model") {
		t.Errorf("got %+v", u)
	}
	return u.Name + " " + u.Reason
}

func parseChat(t *testing.T, members string) *validate.Request {
	t.Helper()
	r, err := validate.Chat([]byte(`{"model": "m", "messages": `+oneMessage+members+`}`), defaultLimits)
	if err != nil {
		t.Fatalf("%s: %v", members, result(err))
	}
	return r
}

// Each field is served from its first version on, and not before. Fields that every version has are served by all.
func TestFieldsAreServedFromTheirFirstVersionOn(t *testing.T) {
	for _, c := range []struct {
		members, name, before, since string
		ofChat                       bool
	}{
		{members: ``},
		{members: `, "bad_words": null, "truncate_prompt_tokens": 9, "structured_outputs": {"json": {}}, "prompt_cache_key": "k"`},
		{members: `, "structured_outputs": {"json": {}, "disable_any_whitespace": null}`},
		{members: `, "min_tokens": 1, "ignore_eos": true, "response_format": {"type": "json_object"}`},
		{members: `, "store": false, "service_tier": "auto", "modalities": ["text"], "safety_identifier": "s", "tools": []`, ofChat: true},
		{`, "bad_words": ["x"]`, "bad_words", "0.25.1", "0.26.0", false},
		{`, "bad_words": ["x"]`, "bad_words", "0.10.2", "0.11.0", true},
		{`, "truncate_prompt_tokens": -1`, "truncate_prompt_tokens -1", "0.14.1", "0.20.2", false},
		{`, "truncate_prompt_tokens": 9, "truncation_side": "left"`, "truncation_side", "0.23.0", "0.24.0", false},
		{`, "return_token_ids": true`, "return_token_ids", "0.10.0", "0.10.1", false},
		{`, "cache_salt": "s"`, "cache_salt", "0.9.2", "0.10.0", false},
		{`, "cache_salt": "s", "return_token_ids": true`, "return_token_ids", "0.9.2", "0.10.1", false},
		{`, "stream": true, "stream_interval": 2`, "stream_interval", "0.26.0", "0.27.0", false},
		{`, "stream": true, "stream_interval": 2`, "stream_interval", "0.20.2", "0.27.0", true},
		{`, "repetition_detection": {"min_count": 2}`, "repetition_detection", "0.31.0", "0.32.0", false},
		{`, "logprobs": 1, "logprob_token_ids": [7]`, "logprob_token_ids", "0.25.1", "0.26.0", false},
		{`, "logprobs": true, "logprob_token_ids": [7]`, "logprob_token_ids", "0.25.1", "0.26.0", true},
		{`, "return_weight_versions": true`, "return_weight_versions", "0.32.0", "0.33.0", false},
		{`, "return_weight_versions": true`, "return_weight_versions", "0.32.0", "0.33.0", true},
		{`, "vllm_xargs": {"alpha": 1}`, "vllm_xargs", "0.9.2", "0.10.0", false},
		{`, "structured_outputs": {"json": {}, "disable_any_whitespace": true}`, "structured_outputs.disable_any_whitespace", "0.10.2", "0.11.0", false},
		{`, "max_completion_tokens": 4`, "max_completion_tokens", "0.6.3", "0.6.4", true},
		{`, "reasoning_effort": "low"`, "reasoning_effort", "0.10.0", "0.10.1", true},
		{`, "include_reasoning": false`, "include_reasoning", "0.8.5", "0.10.1", true},
	} {
		var r *validate.Request
		if c.ofChat {
			r = parseChat(t, c.members)
		} else {
			r = mustParse(t, `{"model": "m", "prompt": "a"`+c.members+`}`)
		}
		if c.name == "" {
			c.since = "0.6.0"
		} else {
			want := fmt.Sprintf("%s expected vLLM %s or later, which is the first to have it; remove it or use another model", c.name, strings.TrimSuffix(c.since, ".0"))
			if c.name == "truncate_prompt_tokens -1" { // 0.20.2 is the first that was seen to take it
				want = strings.Replace(want, "0.20.2", "0.20", 1)
			}
			if got := unservedBy(t, r, serverOf(c.before)); got != want {
				t.Errorf("%s by %s: got %q, want %q", c.members, c.before, got, want)
			}
		}
		for _, version := range []string{c.since, "0.33.0", "1.0.0", ""} {
			if got := unservedBy(t, r, serverOf(version)); got != "" {
				t.Errorf("%s by %q: got %q, want it served", c.members, version, got)
			}
		}
	}
}

// openAPI returns a document that describes the requests of completions and of chat with these fields.
func openAPI(completions, chat string) []byte {
	properties := func(names string) string {
		var all []string
		for name := range strings.FieldsSeq(names) {
			all = append(all, fmt.Sprintf(`%q: {"title": "x"}`, name))
		}
		return strings.Join(all, ",")
	}
	return fmt.Appendf(nil, `{"openapi": "3.1.0", "components": {"schemas": {"CompletionRequest": {"properties": {%s}}, "ChatCompletionRequest": {"properties": {%s}}}}}`,
		properties(completions), properties(chat))
}

// What a server says of itself goes before what is known of its version, in both directions.
func TestOwnDescriptionOfAServerGoesBeforeItsVersion(t *testing.T) {
	completions := "model prompt max_tokens temperature n stream stream_options truncate_prompt_tokens bad_words return_token_ids"
	describe := func(version string) *validate.Server {
		s := serverOf(version)
		s.Describe(openAPI(completions, "model messages max_tokens stream"))
		return s
	}
	const denied = " expected a server that has it; this one describes no such field; remove it or use another model"
	const tooNew = " expected vLLM 0.20 or later, which is the first to have it; remove it or use another model"
	for _, c := range []struct{ members, version, want string }{
		{`, "bad_words": ["x"]`, "0.12.0", ""},
		{`, "cache_salt": "x"`, "0.33.0", "cache_salt" + denied},
		{`, "cache_salt": "x"`, "0.9.2", "cache_salt expected vLLM 0.10 or later, which is the first to have it; remove it or use another model"},
		{`, "cache_salt": "x"`, "", "cache_salt" + denied},
		{`, "cache_salt": null`, "0.33.0", ""},
		{`, "min_p": 0.5, "cache_salt": "x"`, "0.33.0", "min_p" + denied},
		{`, "user": "x", "best_of": 2, "prompt_cache_key": "k", "n": 2`, "0.33.0", ""},
		{`, "structured_outputs": {"json": {}}`, "0.33.0", "structured_outputs" + denied},
		{`, "structured_outputs": {"json": {}}`, "0.8.5", ""},
		{`, "truncate_prompt_tokens": -1`, "0.14.1", "truncate_prompt_tokens -1" + tooNew},
		{`, "truncate_prompt_tokens": -1`, "0.20.2", ""},
	} {
		if got := unservedBy(t, mustParse(t, `{"model": "m", "prompt": "a"`+c.members+`}`), describe(c.version)); got != c.want {
			t.Errorf("%s by %q: got %q, want %q", c.members, c.version, got, c.want)
		}
	}
	if got := unservedBy(t, parseChat(t, `, "logprobs": true`), describe("0.33.0")); got != "logprobs"+denied {
		t.Errorf("chat: got %q", got)
	}
	tokenize, err := validate.Tokenize([]byte(`{"model": "m", "prompt": "a", "return_token_strs": true}`), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := unservedBy(t, tokenize, describe("0.33.0")); got != "" {
		t.Errorf("tokenize: got %q", got)
	}
}

// A build without tags reports no version that says how it takes structured output.
func TestServerThatDescribesGuidedFieldsGetsThem(t *testing.T) {
	for _, version := range []string{"", "0.9.2", "0.33.0"} {
		s := serverOf(version)
		s.Describe(openAPI("model prompt response_format guided_json", ""))
		plain := mustParse(t, `{"model": "m", "prompt": "a", "structured_outputs": {"json": {}}}`)
		spaced := mustParse(t, `{"model": "m", "prompt": "a", "structured_outputs": {"json": {}, "disable_any_whitespace": true}}`)
		if got := unservedBy(t, plain, s); !s.TakesGuided() || got != "" {
			t.Errorf("%q: takes guided_json: %t, and got %q", version, s.TakesGuided(), got)
		}
		if got := unservedBy(t, spaced, s); !strings.HasPrefix(got, "structured_outputs.disable_any_whitespace expected vLLM 0.11 or later") {
			t.Errorf("%q: got %q", version, got)
		}
	}
	for version, want := range map[string]bool{"": false, "0.10.2": true, "0.33.0": false} {
		s := serverOf(version)
		if s.Describe(openAPI("model prompt guided_json structured_outputs", "")); s.TakesGuided() != want {
			t.Errorf("%q with both fields: got %t", version, s.TakesGuided())
		}
	}
}

func TestUselessDescriptionsOfAServerAreIgnored(t *testing.T) {
	whole := string(openAPI("model prompt", "model messages"))
	for _, document := range []string{
		"", "x", "null", "[]", "{}", `{"components": 1}`, whole[:len(whole)-1], string(openAPI("", "")), string(openAPI("model", "model")),
		`{"components": {"schemas": {"CompletionRequest": {"properties": ["prompt"]}}}}`,
	} {
		s := serverOf("0.33.0")
		s.Describe([]byte(document))
		if *s != *serverOf("0.33.0") {
			t.Errorf("%q: got %+v, want nothing known", document, s)
		}
	}
}

func TestRustFrontendTakesOnePromptAndOneCompletion(t *testing.T) {
	rust := &validate.Server{Version: validate.ParseVersion("0.33.0"), Rust: true}
	for members, want := range map[string]string{
		`"prompt": "a", "n": 1, "best_of": 1, "echo": true, "logprobs": 2, "prompt_logprobs": 1, "bad_words": ["x"]`: "",
		`"prompt": [1, 2], "truncate_prompt_tokens": 1, "spaces_between_special_tokens": true, "n": null`:            "",
		`"prompt": ["a", "b"]`: "prompt", `"prompt": ["a"]`: "prompt", `"prompt": [[1], [2]]`: "prompt", `"prompt": [[1]]`: "prompt",
		`"prompt": "a", "n": 3`: "n", `"prompt": "a", "best_of": 2`: "best_of",
		`"prompt": "a", "echo": true, "truncate_prompt_tokens": 1`:              "truncate_prompt_tokens",
		`"prompt": "a", "spaces_between_special_tokens": false`:                 "spaces_between_special_tokens",
		`"prompt": "a", "return_weight_versions": true`:                         "return_weight_versions",
		`"prompt": "a", "stream": true, "stream_interval": 2`:                   "stream_interval",
		`"prompt": "a", "truncate_prompt_tokens": 2, "truncation_side": "left"`: "truncation_side",
	} {
		r := mustParse(t, `{"model": "m", `+members+`}`)
		if got, _, _ := strings.Cut(unservedBy(t, r, rust), " "); got != want {
			t.Errorf("%s: got %q, want %q", members, got, want)
		}
		if got := unservedBy(t, r, serverOf("0.33.0")); got != "" {
			t.Errorf("%s by the Python frontend: got %q", members, got)
		}
	}
	if got, _, _ := strings.Cut(unservedBy(t, parseChat(t, `, "n": 2`), rust), " "); got != "n" {
		t.Errorf("chat with n: got %q", got)
	}
	if diff := cmp.Diff("vLLM 0.33 with its Rust frontend", rust.String()); diff != "" {
		t.Error(diff)
	}
}

func TestServerThatLacksMoreThanItsVersionSaysIsFound(t *testing.T) {
	names := strings.Join(validate.FieldNames(), " ")
	for version, want := range map[string][]string{"0.33.0": {"min_p", "bad_words"}, "0.20.2": {"min_p"}, "": {"min_p", "bad_words"}} {
		s := serverOf(version)
		s.Describe(openAPI(strings.NewReplacer("bad_words", "", "min_p", "", "best_of", "").Replace(names), ""))
		if diff := cmp.Diff(want, s.Undescribed(false)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", version, diff)
		}
		if got := s.Undescribed(true); got != nil {
			t.Errorf("%q: got %q of chat, which it does not describe", version, got)
		}
	}
}

// The names in vllm_xargs are the model's; the model may follow them in the body.
func TestNamesInXArgsAreTheModels(t *testing.T) {
	limits := validate.Limits{Model: func(model string) validate.Model {
		if model == "other" {
			return validate.UnknownModel
		}
		return validate.Model{MaxLogprobs: 20, XArgs: map[string][]string{"plugged": {"alpha"}}[model]}
	}}
	for body, want := range map[string]string{
		`{"model": "plugged", "prompt": "a", "vllm_xargs": {"alpha": 1}}`:            "",
		`{"vllm_xargs": {"alpha": [1, "x"]}, "prompt": "a", "model": "plugged"}`:     "",
		`{"vllm_xargs": {"beta": null}, "prompt": "a", "model": "m"}`:                "",
		`{"vllm_xargs": {}, "prompt": "a", "model": "m"}`:                            "",
		`{"vllm_xargs": {"alpha": 1}, "prompt": "a", "model": "other"}`:              "",
		`{"vllm_xargs": {"alpha": 1}, "prompt": "a", "model": "m"}`:                  `vllm_xargs: got the name "alpha"; expected one of the names that the operator lists for this model, which are none`,
		`{"vllm_xargs": {"alpha": 1, "beta": 1}, "prompt": "a", "model": "plugged"}`: `vllm_xargs: got the name "beta"; expected one of the names that the operator lists for this model: alpha`,
		`{"vllm_xargs": {"x": 1}, "n": 0, "prompt": "a", "model": "plugged"}`:        `vllm_xargs: got the name "x"; expected one of the names that the operator lists for this model: alpha`,
		`{"n": 0, "vllm_xargs": {"x": 1}, "prompt": "a", "model": "plugged"}`:        "n: got 0; expected an integer from 1 to 16",
	} {
		_, err := validate.Completion([]byte(body), limits)
		got := ""
		if err != nil {
			_, got, _ = strings.Cut(result(err), ": ")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
}

func TestPromptCacheKeyIsReadAndNotSentOn(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt_cache_key":"k\u0041","prompt":"a"}`:     `{"model":"org/C","prompt":"a"}`,
		`{"prompt_cache_key" : "kA","model":"m","prompt":"a"}`:        `{"model":"org/C","prompt":"a"}`,
		`{"model":"m","prompt":"a", "prompt_cache_key":"kA" }`:        `{"model":"org/C","prompt":"a" }`,
		`{"n":null,"prompt_cache_key":"kA","prompt":"a","model":"m"}`: `{"prompt":"a","model":"org/C"}`,
	} {
		r := mustParse(t, body)
		if got := string(r.Upstream(validate.Edits{Model: checkpoint}).Append(nil)); got != want || r.PromptCacheKey != "kA" {
			t.Errorf("%s: got %s and the key %q, want %s", body, got, r.PromptCacheKey, want)
		}
		if scalars, others := r.Parameters(); len(scalars)+len(others) > 0 {
			t.Errorf("%s: got the parameters %v %v, want none", body, scalars, others)
		}
	}
	if key := mustParse(t, minimal).PromptCacheKey; key != "" {
		t.Errorf("got the key %q without the field", key)
	}
}
