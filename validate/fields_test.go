package validate_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apierr "basegate/errors"
	"basegate/validate"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// fieldTable lists valid and invalid values for each field of the contract, as JSON.
var fieldTable = []struct {
	field    string
	accepted []string
	refused  []string
}{
	{
		"model",
		[]string{`"llama-8b"`, `"ll\u0061ma-8b"`, `""`},
		[]string{`null`, `1`, `true`, `["llama-8b"]`, `{}`},
	},
	{
		"prompt",
		[]string{
			`""`, `"a"`, `"null"`, `"\ud83d\ude00"`, `["a"]`, `["", "b"]`, `["1", "2"]`, `[0]`, `[1, 2, 128000]`,
			`[2147483647]`, `[[1]]`, `[[1, 2], [3]]`, `[ [ 0 ] , [ 0 ] ]`,
		},
		[]string{
			`null`, `1`, `1.5`, `true`, `{}`, `{"text": "a"}`, `[]`, `[[]]`, `[[1], []]`, `[[], [1]]`, `[null]`, `[true]`, `[{}]`,
			`["a", 1]`, `["a", null]`, `["a", ["b"]]`, `[1, "a"]`, `[1, [2]]`, `[1, null]`, `[[1], "a"]`, `[[1], 2]`, `[["a"]]`, `[[1, "2"]]`,
			`[[[1]]]`, `[-1]`, `[-0]`, `[1.0]`, `[1e2]`, `[1, 2.5]`, `[[1], [2.0]]`, `[[1, -2]]`, `[2147483648]`, `[[2147483648]]`, `[999999999999999999]`,
			`[99999999999999999999]`, `[1e400]`,
		},
	},
	{
		"max_tokens",
		[]string{`1`, `16`, `4096`, `9223372036854775807`, `null`},
		[]string{`0`, `-0`, `-1`, `true`, `"16"`, `16.0`, `1e2`, `1E2`, `16.5`, `1e400`, `9223372036854775808`, `123456789012345678901234567890`, `[16]`, `{}`, `""`},
	},
	{
		"temperature",
		[]string{`0`, `-0`, `-0.0`, `0.70`, `1`, `2`, `2.0`, `2e0`, `20e-1`, `1e-400`, `null`},
		[]string{`-0.0001`, `2.0001`, `-1`, `3`, `true`, `false`, `"1"`, `"NaN"`, `1e400`, `-1e400`, `100000000000000000000`, `[]`, `{}`},
	},
	{
		"top_p",
		[]string{`0.0001`, `0.95`, `1`, `1.0`, `1e0`, `null`},
		[]string{`0`, `0.0`, `-0`, `1e-400`, `-0.5`, `1.0001`, `true`, `"0.9"`, `1e400`, `[]`, `{}`},
	},
	{
		"top_k",
		[]string{`-1`, `1`, `40`, `9223372036854775807`, `null`},
		[]string{`0`, `-2`, `true`, `"40"`, `40.0`, `4e1`, `1e400`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"min_p",
		[]string{`0`, `0.05`, `1`, `1.0`, `null`},
		[]string{`-0.0001`, `1.0001`, `true`, `"0.1"`, `1e400`, `[]`, `{}`},
	},
	{
		"presence_penalty",
		[]string{`-2`, `-2.0`, `0`, `2`, `0.5`, `null`},
		[]string{`-2.0001`, `2.0001`, `true`, `"1"`, `1e400`, `[]`, `{}`},
	},
	{
		"frequency_penalty",
		[]string{`-2`, `-2.0`, `0`, `2`, `0.5`, `null`},
		[]string{`-2.0001`, `2.0001`, `true`, `"1"`, `1e400`, `[]`, `{}`},
	},
	{
		"repetition_penalty",
		[]string{`0.0001`, `1`, `1.1`, `2`, `2.0`, `null`},
		[]string{`0`, `-1`, `2.0001`, `true`, `"1.1"`, `1e400`, `[]`, `{}`},
	},
	{
		"seed",
		[]string{`0`, `42`, `-1`, `-9223372036854775808`, `9223372036854775807`, `null`},
		[]string{`9223372036854775808`, `-9223372036854775809`, `42.0`, `1e2`, `1e400`, `true`, `"42"`, `[]`, `{}`},
	},
	{
		"n",
		[]string{`1`, `16`, `null`},
		[]string{`0`, `-1`, `17`, `true`, `"2"`, `2.0`, `1e1`, `1e400`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"best_of",
		[]string{`1`, `16`, `null`},
		[]string{`0`, `-1`, `17`, `true`, `"2"`, `2.0`, `1e1`, `1e400`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"stop",
		[]string{`"\n"`, `"\u0000"`, `["a"]`, `["a", "b", "c", "d"]`, `["a", "a"]`, `null`},
		[]string{`""`, `[]`, `[""]`, `["a", ""]`, `["a", "b", "c", "d", "e"]`, `1`, `true`, `[1]`, `["a", null]`, `[["a"]]`, `{}`},
	},
	{
		"logprobs",
		[]string{`0`, `-0`, `5`, `20`, `null`},
		[]string{`-1`, `21`, `true`, `false`, `"5"`, `5.0`, `5e0`, `1e400`, `9223372036854775807`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"prompt_logprobs",
		[]string{`0`, `5`, `20`, `null`},
		[]string{`-1`, `21`, `true`, `false`, `"5"`, `5.0`, `5e0`, `1e400`, `9223372036854775807`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"echo",
		[]string{`true`, `false`, `null`},
		[]string{`0`, `1`, `"true"`, `"false"`, `[]`, `{}`},
	},
	{
		"stream",
		[]string{`true`, `false`, `null`},
		[]string{`0`, `1`, `"true"`, `[]`, `{}`},
	},
	{
		"stream_options",
		[]string{
			`{}`, `{"include_usage": true}`, `{"include_usage":false}`, `{"include_usage": null}`, `{"include\u005fusage": true}`, `null`,
			`{"include_usage": true, "continuous_usage_stats": true}`, `{"continuous_usage_stats": true, "include_usage": true}`,
			`{"include_usage": true, "continuous_usage_stats": false}`, `{"include_usage": false, "continuous_usage_stats": false}`,
			`{"include_usage": true, "include_obfuscation": null}`, `{"x": null, "continuous_usage_stats": true, "include_usage": true}`, `{"include_receipt": null}`,
			`{"continuous_usage_stats": null}`, `{"include_usage": true, "continuous\u005fusage_stats": null}`,
		},
		[]string{
			`true`, `1`, `"include_usage"`, `[]`, `{"include_usage": 1}`, `{"include_usage": "true"}`, `{"include_usage": {}}`,
			`{"continuous_usage_stats": true}`, `{"continuous_usage_stats": false}`, `{"include_usage": false, "continuous_usage_stats": true}`,
			`{"include_usage": null, "continuous_usage_stats": true}`, `{"include_usage": null, "continuous_usage_stats": false}`,
			`{"include_usage": true, "continuous_usage_stats": 1}`, `{"include_usage": true, "continuous_usage_stats": "true"}`,
			`{"include_usage": true, "include_receipt": true}`, `{"include_usage": true, "x": [1, {"y": 2}]}`, `{"": true}`, `{"include_usage": true, "include_obfuscation": false}`,
		},
	},
	{
		"logit_bias",
		[]string{`{}`, `{"0": 0}`, `{"50256": -100, "1": 100}`, `{"7": 1.5e1}`, `{"\u0037": 1}`, `{"2147483647": 1}`, `null`},
		[]string{
			`{"1": 100.1}`, `{"1": -100.1}`, `{"1": 1e400}`, `{"1": true}`, `{"1": "5"}`, `{"1": null}`, `{"1": [5]}`, `{"a": 1}`, `{"": 1}`,
			`{"-1": 1}`, `{"1.0": 1}`, `{" 1": 1}`, `{"07": 1}`, `{"2147483648": 1}`, `{"99999999999999999999": 1}`, `{"٧": 1}`, `[]`, `[1]`, `1`, `true`, `"1"`,
		},
	},
	{
		"user",
		[]string{`""`, `"run-17"`, `"Ž"`, quotedRepeat("u", 512), quotedRepeat(`\u0041`, 512), quotedRepeat("ž", 256), `null`},
		[]string{`1`, `true`, `[]`, `{}`, quotedRepeat("u", 513), quotedRepeat(`\u0041`, 513), quotedRepeat("ž", 257)},
	},
	{
		"prompt_cache_key",
		[]string{`""`, `"session-7"`, quotedRepeat("k", 512), quotedRepeat("ž", 256), `null`},
		[]string{`1`, `true`, `[]`, `{}`, quotedRepeat("k", 513), quotedRepeat("ž", 257)},
	},
	{
		"min_tokens",
		[]string{`0`, `-0`, `1`, `16`, `null`},
		[]string{`-1`, `17`, `true`, `"1"`, `1.0`, `1e0`, `9223372036854775808`, `[]`, `{}`},
	},
	{"ignore_eos", booleans, notBooleans},
	{"include_stop_str_in_output", booleans, notBooleans},
	{"skip_special_tokens", booleans, notBooleans},
	{"spaces_between_special_tokens", booleans, notBooleans},
	{"add_special_tokens", booleans, notBooleans},
	{
		"stop_token_ids",
		[]string{`[0]`, `[2, 2]`, `[2147483647]`, arrayOf("7", 128), `null`},
		[]string{`[]`, `0`, `"0"`, `true`, `{}`, `[-1]`, `[1.0]`, `["1"]`, `[true]`, `[null]`, `[[1]]`, `[2147483648]`, arrayOf("7", 129)},
	},
	{
		"allowed_token_ids",
		[]string{`[0]`, `[2, 2]`, `[2147483647]`, arrayOf("7", 262144), `null`},
		[]string{`[]`, `0`, `"0"`, `true`, `{}`, `[-1]`, `[1e1]`, `["1"]`, `[true]`, `[null]`, `[[1]]`, `[2147483648]`, arrayOf("7", 262145)},
	},
	{
		"bad_words",
		[]string{`["a"]`, `["a", "a"]`, `["\u0000"]`, arrayOf(`"a"`, 128), `null`},
		[]string{`[]`, `"a"`, `""`, `[""]`, `["a", ""]`, `[1]`, `[null]`, `[["a"]]`, `true`, `1`, `{}`, arrayOf(`"a"`, 129)},
	},
	{
		"truncate_prompt_tokens",
		[]string{`-1`, `1`, `40`, `9223372036854775807`, `null`},
		[]string{`0`, `-0`, `-2`, `true`, `"40"`, `40.0`, `4e1`, `1e400`, `9223372036854775808`, `[]`, `{}`},
	},
	{"return_tokens_as_token_ids", booleans, notBooleans},
	{"return_token_ids", booleans, notBooleans},
	{
		"cache_salt",
		[]string{`"a"`, `"ž"`, `"aZ09-_=+ ."`, quotedRepeat("s", 128), quotedRepeat(`\u0041`, 128), quotedRepeat("ž", 128), `null`},
		[]string{
			`""`, `1`, `true`, `[]`, `{}`, quotedRepeat("s", 129), quotedRepeat(`\u0041`, 129), quotedRepeat("ž", 129),
			`"a/b"`, `"a\/b"`, `"@"`, `"a\u0040b"`, `"\\"`, `"a\u0000"`, `"\u002f"`,
		},
	},
	{
		"stream_interval",
		[]string{`1`, `1024`, `null`},
		[]string{`0`, `-1`, `1025`, `true`, `"2"`, `2.0`, `1e1`, `9223372036854775808`, `[]`, `{}`},
	},
	{
		"repetition_detection",
		[]string{
			`{"max_pattern_size": 10, "min_pattern_size": 2, "min_count": 3}`, `{"min_count":2}`, `{"min_count": 1024, "max_pattern_size": 1024, "min_pattern_size": 1024}`,
			`{"max_pattern_size": 5, "min_count": 2}`, `{"max_pattern_size": null, "min_count": 2, "x": null}`, `null`,
		},
		[]string{
			`{}`, `[]`, `1`, `true`, `"x"`, `{"max_pattern_size": 10}`, `{"min_count": 1}`, `{"min_count": 0}`, `{"min_count": 1025}`, `{"min_count": -2}`, `{"min_count": 2.0}`,
			`{"min_count": "2"}`, `{"min_count": true}`, `{"min_count": [2]}`, `{"min_count": 2, "max_pattern_size": 1025}`, `{"min_count": 2, "min_pattern_size": -1}`,
			`{"min_count": 2, "min_pattern_size": 3, "max_pattern_size": 2}`, `{"min_count": 2, "min_pattern_size": 1}`, `{"min_count": 2, "x": 1}`,
			`{"min_count": 99999999999999999999}`,
		},
	},
	{
		"truncation_side",
		[]string{`"left"`, `"right"`, `"l\u0065ft"`, `null`},
		[]string{`""`, `"Left"`, `"middle"`, `1`, `true`, `["left"]`, `{}`},
	},
	{
		"logprob_token_ids",
		[]string{`[0]`, `[2147483647, 2]`, distinct(128), `null`},
		[]string{`[]`, `0`, `"0"`, `true`, `{}`, `[-1]`, `[1.0]`, `["1"]`, `[[1]]`, `[2147483648]`, `[2, 3, 2]`, distinct(129), arrayOf("7", 129)},
	},
	{"return_weight_versions", booleans, notBooleans},
	{
		"vllm_xargs",
		[]string{`{}`, `{"alpha": 1}`, `{"alpha": "x", "be\u0074a": [1, "y", true, 2.5]}`, `{"alpha": false, "beta": []}`, `{"gamma": null, "alpha": 1}`, `null`},
		[]string{`[]`, `1`, `"x"`, `true`, `{"alpha": {}}`, `{"alpha": [[1]]}`, `{"alpha": [{}]}`, `{"alpha": [null]}`},
	},
	{
		"response_format",
		[]string{
			`{"type": "text"}`, `{"type": "json_object"}`, `{"ty\u0070e":"json_object"}`, `{"type": "text", "json_schema": null}`, `{"later": null , "type": "text"}`,
			`{"json_schema": {"x": null, "name": "n", "strict": null, "schema": {"default": null}}, "type": "json_schema", "y":null}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}`, `null`,
			`{"json_schema": {"schema": {"type": "object", "a": [{"b": 1}, {"b": 2}]}, "name": "n", "strict": true, "description": "d"}, "type": "json_schema"}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": {"x": 1}, "strict": null, "description": null}}`,
		},
		[]string{
			`{}`, `[]`, `1`, `true`, `"text"`, `{"type": 1}`, `{"type": null}`, `{"type": "xml"}`, `{"type": "structural_tag"}`, `{"type": "json_schema"}`,
			`{"type": "json_schema", "json_schema": null}`, `{"type": "json_schema", "json_schema": {}}`, `{"type": "json_schema", "json_schema": []}`,
			`{"type": "json_schema", "json_schema": {"name": "n"}}`, `{"type": "json_schema", "json_schema": {"schema": {}}}`,
			`{"type": "json_schema", "json_schema": {"name": "", "schema": {}}}`, `{"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": "s"}}`, `{"type": "json_schema", "json_schema": {"name": "n", "schema": null}}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": "true"}}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "description": 1}}`,
			`{"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "x": 1}}`,
			`{"type": "text", "json_schema": {"name": "n", "schema": {}}}`, `{"type": "text", "x": 1}`,
		},
	},
	{
		"structured_outputs",
		[]string{
			`{"json": {}}`, `{"json": {"type": "object"}}`, `{"json": "{}"}`, `{"regex": "a+"}`, `{"choice": ["a", "b"]}`, `{"grammar": "root ::= x"}`,
			`{"json_object": true}`, `{"regex": "a", "json": null}`, `{"disable_any_whitespace": true, "json": {}}`,
			`{"json_object": true, "disable_any_whitespace": false}`, `{"r\u0065gex": "a"}`, `null`,
			`{"structural_tag": null, "json": {"enum": [null]}, "whitespace_pattern": null}`,
		},
		[]string{
			`{}`, `[]`, `1`, `true`, `"json"`, `{"json": null}`, `{"disable_any_whitespace": true}`, `{"json": {}, "regex": "a"}`, `{"json": 1}`, `{"json": ""}`,
			`{"json": []}`, `{"regex": ""}`, `{"regex": 1}`, `{"choice": []}`, `{"choice": "a"}`, `{"choice": [1]}`, `{"choice": ["a", ""]}`, `{"choice": {"a": "b"}}`,
			`{"grammar": {}}`, `{"json_object": false}`, `{"json_object": 1}`, `{"json": {}, "disable_any_whitespace": 1}`, `{"structural_tag": "x"}`,
			`{"json": {}, "whitespace_pattern": "x"}`,
		},
	},
}

var (
	booleans    = []string{`true`, `false`, `null`}
	notBooleans = []string{`0`, `1`, `"true"`, `"false"`, `[]`, `{}`}
)

// arrayOf returns an array of n times the same element.
func arrayOf(element string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

// distinct returns an array of n different token ids.
func distinct(n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	return "[" + strings.Join(ids, ",") + "]"
}

// quotedRepeat returns s, repeated, in quotes.
func quotedRepeat(s string, times int) string { return `"` + strings.Repeat(s, times) + `"` }

// needed are the members without which a field contradicts their absence.
var needed = map[string][][2]string{
	"stream_options": {{"stream", "true"}}, "stream_interval": {{"stream", "true"}}, "truncation_side": {{"truncate_prompt_tokens", "9"}},
	"logprob_token_ids": {{"logprobs", "1"}},
}

// bodyWith returns a valid body, except that a field has the given value.
func bodyWith(field, value string) string {
	members := [][2]string{{"model", `"llama-8b"`}, {"prompt", `"a"`}}
	members = append(members, needed[field]...)
	if i := slices.IndexFunc(members, func(m [2]string) bool { return m[0] == field }); i >= 0 {
		members[i][1] = value
	} else {
		members = append(members, [2]string{field, value})
	}
	var all []string
	for _, m := range members {
		all = append(all, fmt.Sprintf("%q: %s", m[0], m[1]))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func TestValidValuesAreAccepted(t *testing.T) {
	for _, row := range fieldTable {
		for _, value := range row.accepted {
			if _, err := validate.Completion([]byte(bodyWith(row.field, value)), defaultLimits); err != nil {
				t.Errorf("%s %s: %v", row.field, value, result(err))
			}
		}
	}
}

// The messages are compared with a golden file, because people act on them. They name the field, the value and the
// valid values.
func TestInvalidValuesAreRefusedWithAnExplanation(t *testing.T) {
	var got strings.Builder
	for _, row := range fieldTable {
		for _, value := range row.refused {
			_, err := validate.Completion([]byte(bodyWith(row.field, value)), defaultLimits)
			if err == nil {
				t.Errorf("%s %s: accepted", row.field, value)
				continue
			}
			e := apierr.From(err)
			if e.Code != apierr.InvalidRequest || e.Param != row.field || !strings.Contains(e.Message, "got ") || !strings.Contains(e.Message, "; expected ") {
				t.Errorf("%s %s: %s", row.field, value, result(err))
			}
			fmt.Fprintf(&got, "%s %s\n\t%s\n", row.field, apierr.Clip(value), e.Message)
		}
	}
	checkGolden(t, "testdata/refusals.golden", got.String())
}

// result returns the result of Completion on one line: the code, the offset or the field, and the message.
func result(err error) string {
	var e *apierr.Error
	switch {
	case err == nil:
		return "accepted"
	case !errors.As(err, &e):
		return "not an API error: " + err.Error()
	case e.Code == apierr.BadJSON:
		return fmt.Sprintf("bad_json at %v: %s", e.Extras[0].Value, e.Message)
	default:
		return fmt.Sprintf("%s %s: %s", e.Code, e.Param, e.Message)
	}
}

// checkGolden compares got with a golden file, or rewrites the file if -update is set.
func checkGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", file, diff)
	}
}

func TestFieldTableIsComplete(t *testing.T) {
	want := "model prompt max_tokens temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed n best_of " +
		"stop logprobs prompt_logprobs echo stream stream_options logit_bias user prompt_cache_key " +
		"min_tokens ignore_eos include_stop_str_in_output skip_special_tokens spaces_between_special_tokens add_special_tokens stop_token_ids " +
		"allowed_token_ids bad_words truncate_prompt_tokens return_tokens_as_token_ids return_token_ids cache_salt " +
		"stream_interval repetition_detection truncation_side logprob_token_ids return_weight_versions vllm_xargs response_format structured_outputs"
	var got []string
	for _, row := range fieldTable {
		got = append(got, row.field)
	}
	if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
		t.Error(diff)
	}
	names := strings.Fields(want)
	slices.Sort(names)
	if diff := cmp.Diff(names, validate.FieldNames()); diff != "" {
		t.Errorf("the fields that are accepted (-want +got):\n%s", diff)
	}
}

func TestFieldsOutsideTheContractAreUnknown(t *testing.T) {
	for _, name := range []string{"Prompt", "MODEL", "", "x"} {
		_, err := validate.Completion([]byte(bodyWith(name, "1")), defaultLimits)
		if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != name || !strings.HasPrefix(e.Message, fmt.Sprintf("unknown field %q", name)) {
			t.Errorf("%s: %s", name, result(err))
		}
	}
}

// vLLM has these fields, so no message may call them unknown, ineffective or misspelt.
func TestFieldsOfVLLMThatAreNotTakenAreNamedAsSuch(t *testing.T) {
	var got strings.Builder
	for _, name := range []string{
		"logits_processors", "kv_transfer_params", "priority", "request_id", "use_beam_search", "suffix",
		"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern", "prompt_embeds",
		"ec_transfer_params", "session_id", "length_penalty", "thinking_token_budget", "return_prompt_text",
		"routed_experts_prompt_start", "return_token_offsets", "watermarking", "return_mm_kwargs", "mm_payload",
	} {
		_, err := validate.Completion([]byte(bodyWith(name, "1")), defaultLimits)
		e := apierr.From(err)
		if err == nil || e.Code != apierr.InvalidRequest || e.Param != name || len(e.Extras) > 0 ||
			!strings.HasPrefix(e.Message, fmt.Sprintf("field %q: vLLM has it, but this gateway does not support it; ", name)) {
			t.Errorf("%s: %s", name, result(err))
		}
		fmt.Fprintln(&got, e.Message)
	}
	checkGolden(t, "testdata/untaken.golden", got.String())
}

// A field of the other endpoint is named with what the endpoint has in its place.
func TestFieldsOfTheOtherEndpointAreNamedWithTheirCounterpart(t *testing.T) {
	for name, want := range map[string]string{
		"max_completion_tokens": "max_tokens", "messages": "POST /v1/chat/completions", "top_logprobs": "logprobs", "safety_identifier": "user",
		"tools": "structured_outputs", "tool_choice": "structured_outputs", "parallel_tool_calls": "structured_outputs", "functions": "structured_outputs",
		"function_call": "structured_outputs", "chat_template_kwargs": "chat", "chat_template": "chat", "add_generation_prompt": "chat",
		"continue_final_message": "chat", "reasoning_effort": "chat", "include_reasoning": "chat", "store": "no field of a completion",
		"service_tier": "no field of a completion", "modalities": "no field of a completion", "audio": "no field of a completion", "metadata": "no field of a completion",
	} {
		_, err := validate.Completion([]byte(bodyWith(name, "1")), defaultLimits)
		if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != name || !strings.HasPrefix(e.Message, name+": ") || !strings.Contains(e.Message, want) {
			t.Errorf("%s: %s", name, result(err))
		}
	}
}

func TestNoMessageClaimsThatAFieldHasNoEffect(t *testing.T) {
	for _, name := range []string{"suffix", "priority", "temprature", "max_completion_tokens", "anything"} {
		_, err := validate.Completion([]byte(bodyWith(name, "1")), defaultLimits)
		if e := apierr.From(err); strings.Contains(e.Message, "effect") {
			t.Errorf("%s: %s", name, e.Message)
		}
	}
}

func TestMisspeltFieldGetsASuggestion(t *testing.T) {
	for got, want := range map[string]string{
		"temprature":             "temperature",
		"Temperature":            "temperature",
		"temperatrue":            "temperature",
		"temp":                   "",
		"max_token":              "max_tokens",
		"maxtokens":              "max_tokens",
		"max_new_tokens":         "",
		"topp":                   "top_p",
		"topk":                   "top_k",
		"top-p":                  "top_p",
		"bestof":                 "best_of",
		"logprob":                "logprobs",
		"stops":                  "stop",
		"sede":                   "seed",
		"usr":                    "user",
		"N":                      "",
		"m":                      "",
		"":                       "",
		"steam":                  "stream",
		"stream_option":          "stream_options",
		"presence_penality":      "presence_penalty",
		"promt":                  "prompt",
		"modell":                 "model",
		"min_tokens_":            "min_tokens",
		"max_tokns":              "max_tokens",
		"min_tokns":              "min_tokens",
		"top_a":                  "",
		"skip_special_token":     "skip_special_tokens",
		"tempr\\u0061ture":       "temperature",
		"suffix":                 "",
		quotedRepeat("x", 1<<10): "",
		"temprature\\u0000\\n":   "",
	} {
		got = strings.Trim(got, `"`)
		_, err := validate.Completion([]byte(`{"model": "m", "prompt": "a", "`+got+`": 1}`), defaultLimits)
		e := apierr.From(err)
		suggestion := ""
		for _, x := range e.Extras {
			if x.Name == "suggestion" {
				suggestion = fmt.Sprint(x.Value)
			}
		}
		if suggestion != want || strings.Contains(e.Message, "did you mean") != (want != "") {
			t.Errorf("%q: suggested %q, want %q (%s)", got, suggestion, want, e.Message)
		}
	}
	_, err := validate.Completion([]byte(`{"temprature": 1}`), defaultLimits)
	if diff := cmp.Diff(`unknown field "temprature", did you mean "temperature"?`, apierr.From(err).Message); diff != "" {
		t.Error(diff)
	}
}
