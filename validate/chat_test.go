package validate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apierr "basegate/errors"
	"basegate/validate"
)

const oneMessage = `[{"role": "user", "content": "a"}]`

// aCall is a message with a tool call, and its answer.
const (
	aCall   = `{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}`
	anAsk   = `{"role": "user", "content": "a"}`
	aResult = `{"role": "tool", "tool_call_id": "c1", "content": "ok"}`
	aTool   = `{"type": "function", "function": {"name": "f"}}`
)

// chatBody returns a chat completion with a field.
func chatBody(field, value string) string {
	rest := ""
	switch field {
	case "messages":
		return `{"model": "llama-8b", "messages": ` + value + `}`
	case "model":
		return `{"model": ` + value + `, "messages": ` + oneMessage + `}`
	case "top_logprobs", "logprob_token_ids":
		rest = `, "logprobs": true`
	case "tool_choice":
		rest = `, "tools": [` + aTool + `]`
	case "continue_final_message":
		rest = `, "add_generation_prompt": false`
	case "min_tokens":
		rest = `, "max_tokens": 16`
	case "stream_options", "stream_interval":
		rest = `, "stream": true`
	}
	return fmt.Sprintf(`{"model": "llama-8b", "messages": %s, %q: %s%s}`, oneMessage, field, value, rest)
}

// chatTable lists valid and invalid values for each field that a chat completion has in a form of its own.
var chatTable = []struct {
	field    string
	accepted []string
	refused  []string
}{
	{
		"messages",
		[]string{
			oneMessage, `[{"content": "a", "role": "user"}]`, `[{"role": "user", "content": ""}]`, `[{"role": "us\u0065r", "content": "a"}]`,
			`[{"role": "system", "content": "a"}, {"role": "developer", "content": "a"}, {"role": "user", "content": "a", "name": "x"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}]}]`,
			`[{"role": "user", "content": "a", "name": null}]`, `[{"role": "assistant", "content": "a"}]`,
			`[` + anAsk + `, ` + aCall + `, ` + aResult + `]`,
			`[` + aCall + `, {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "c1", "name": "f"}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "", "parsed_arguments": {"a": [1]}}}]}]`,
			`[{"role": "assistant", "content": "a", "refusal": null, "annotations": [], "audio": null, "function_call": null, "tool_calls": [], "parsed": {"x": 1}, "reasoning": "r", "reasoning_content": null, "later": null}]`,
			`[{"role": "assistant", "content": "a", "tool_calls": null, "annotations": null, "refusal": "", "audio": { }}]`,
			`[{"role": "assistant", "content": "a", "parsed_arguments": {"x": 1}, "later": null, "even_later": null}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "parsed_arguments": 1, "custom": null, "type": "function", "function": {"name": "f", "arguments": "", "later": null}}]}]`,
			`[{"parsed": {}, "tool_calls": [{"index": 0, "function": {"parsed_arguments": {}, "name": "f", "arguments": ""}, "id": "c", "type": "function"}], "role": "assistant"}]`,
			`[{"role": "assistant", "content": null}]`, `[{"role": "assistant"}]`, `[{"role": "assistant", "content": null, "tool_calls": []}]`,
			`[{"role": "assistant", "content": null, "refusal": null, "annotations": null, "audio": null, "function_call": null, "tool_calls": [], "reasoning": "r"}]`,
			`[{"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "provider_specific_fields": {"a": [1]}}], "function_call": null, "provider_specific_fields": {"refusal": null}}, {"role": "tool", "tool_call_id": "c", "content": "12"}]`,
			`[{"role": "assistant", "content": "a", "tool_call_id": null}]`, `[{"role": "assistant", "content": "a", "reasoning_details": [{"a": 1}], "reasoning_items": 1, "thinking_blocks": "x", "id": "m1"}]`,
			`[{"role": "user", "content": "a", "later": null}]`, `[{"role": "user", "content": "a", "tool_calls": []}]`, `[{"tool_calls": [], "role": "system", "content": "a", "refusal": null, "id": null}]`,
			`[{"role": "user", "content": "a", "tool_calls": null, "tool_call_id": null, "function_call": null, "parsed": null}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": null}, {"image_url": null, "text": "b", "type": "text"}]}]`,
			`[` + aCall + `, {"role": "tool", "tool_call_id": "c1", "content": "a", "tool_calls": [], "name": null}]`,
			`[{"role": "assistant", "tool_calls": [{"index": null, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "parsed_arguments": null}}]}]`,
		},
		[]string{
			`null`, `1`, `"a"`, `{}`, `[]`, `[null]`, `["a"]`, `[1]`, `[[]]`, `[{}]`, `[{"role": "user"}]`, `[{"content": "a"}]`,
			`[{"role": "user", "content": null}]`, `[{"role": "user", "content": 1}]`, `[{"role": "user", "content": true}]`, `[{"role": "user", "content": {}}]`,
			`[{"role": "user", "content": []}]`, `[{"role": "user", "content": ["a"]}]`, `[{"role": "user", "content": [{}]}]`,
			`[{"role": "user", "content": [{"type": "text"}]}]`, `[{"role": "user", "content": [{"text": "a"}]}]`, `[{"role": "user", "content": [{"type": "text", "text": 1}]}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "text": "b"}]}]`,
			`[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]`,
			`[{"role": "user", "content": [{"image_url": {"url": "https://example.org/a.png"}, "type": "image_url"}]}]`,
			`[{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]`,
			`[{"role": null, "content": "a"}]`, `[{"role": 1, "content": "a"}]`, `[{"role": "function", "content": "a"}]`, `[{"role": "User", "content": "a"}]`, `[{"role": "", "content": "a"}]`,
			`[{"role": "user", "content": "a", "role": "user"}]`, `[{"role": "user", "content": "a", "conten\u0074": "b"}]`,
			`[{"role": "user", "content": "a", "extra": 1}]`, `[{"role": "assistant", "content": "a", "extra": 1}]`,
			`[{"role": "user", "content": "a", "name": 1}]`, `[{"role": "user", "content": "a", "name": ""}]`,
			`[{"role": "user", "content": "a", "tool_call_id": "c"}]`, `[{"role": "user", "content": "a", "refusal": []}]`, `[{"role": "user", "content": "a", "id": "m1"}]`,
			`[{"role": "user", "content": "a", "parsed": {}}]`, `[{"role": "system", "content": "a", "provider_specific_fields": {}}]`, `[{"role": "assistant", "content": []}]`,
			`[{"role": "user", "content": "a", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "user", "content": [{"type": "text", "text": null}]}]`, `[{"role": "user", "content": [{"type": null, "text": "a"}]}]`, `[{"role": "user", "content": [null]}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "x": null, "x": null}]}]`, `[{"role": "user", "content": null, "content": "a"}]`,
			`[{"role": "assistant", "tool_calls": [null]}]`, `[{"role": "assistant", "tool_calls": [{"id": null, "type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": null}]}]`, `[{"role": "assistant", "content": "a", "provider_specific_fields": {"a": 1, "a": 2}}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": null}}]}]`,
			`[{"role": "assistant", "content": "a", "refusal": "no"}]`, `[{"role": "assistant", "content": "a", "annotations": [1]}]`,
			`[{"role": "assistant", "content": "a", "annotations": 0}]`, `[{"role": "assistant", "content": "a", "audio": 12}]`, `[{"role": "assistant", "content": "a", "audio": true}]`,
			`[{"role": "assistant", "content": "a", "audio": {"id": "x"}}]`, `[{"role": "assistant", "content": "a", "function_call": {"name": "f", "arguments": ""}}]`,
			`[{"role": "assistant", "content": "a", "reasoning": 1}]`, `[{"role": "assistant", "content": "a", "tool_calls": {}}]`, `[{"role": "assistant", "content": "a", "tool_calls": [1]}]`,
			`[{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[]"}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{} {}"}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "extra": 1, "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "id": "d", "type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "content": "a", "later": null, "later": null}]`, `[{"role": "assistant", "content": "a", "parsed": {"x": [{"y": 1, "y": 2}]}}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "later": null, "later": null, "type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
			`[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "", "parsed_arguments": {"y": 1, "y": 2}}}]}]`,
			`[` + aResult + `]`, `[` + aResult + `, ` + aCall + `]`, `[` + aCall + `, {"role": "tool", "tool_call_id": "c2", "content": "a"}]`,
			`[` + aCall + `, {"role": "tool", "content": "a"}]`, `[` + aCall + `, {"role": "tool", "tool_call_id": null, "content": "a"}]`,
			`[` + aCall + `, {"role": "tool", "tool_call_id": "", "content": "a"}]`,
			`[` + aCall + `, {"role": "tool", "tool_call_id": "c1"}]`,
		},
	},
	{
		"max_completion_tokens",
		[]string{`1`, `4096`, `9223372036854775807`, `null`},
		[]string{`0`, `-1`, `true`, `"16"`, `16.0`, `1e2`, `9223372036854775808`, `[16]`, `{}`},
	},
	{"logprobs", []string{`true`, `false`, `null`}, []string{`0`, `1`, `5`, `"true"`, `[]`, `{}`}},
	{"top_logprobs", []string{`0`, `20`, `null`}, []string{`-1`, `21`, `true`, `"5"`, `5.0`, `[]`, `{}`}},
	{
		"tools",
		[]string{
			`[` + aTool + `]`, `[` + aTool + `, ` + aTool + `]`, `null`, `[{"function": {"description": null, "parameters": null, "strict": null, "name": "f"}, "type": "function"}]`, `[]`, `[ ]`,
			`[{"type": "function", "cache_control": null, "function": {"later": null, "name": "f", "parameters": {"default": null}}}]`,
			`[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": true}}, {"type": "function", "function": {"name": "g"}}]`,
		},
		[]string{
			`{}`, `1`, `"f"`, `[1]`, `[null]`, `[{}]`, `[{"type": "function"}]`, `[{"type": "function", "function": null}]`, `[{"type": null, "function": {"name": "f"}}]`,
			`[{"type": "function", "function": {"name": null}}]`, `[{"type": "function", "x": null, "x": null, "function": {"name": "f"}}]`, `[{"function": {"name": "f"}}]`, `[{"type": "web_search", "function": {"name": "f"}}]`,
			`[{"type": "function", "function": {}}]`, `[{"type": "function", "function": {"name": ""}}]`, `[{"type": "function", "function": {"name": 1}}]`,
			`[{"type": "function", "function": {"name": "f", "parameters": "{}"}}]`, `[{"type": "function", "function": {"name": "f", "strict": 1}}]`,
			`[{"type": "function", "function": {"name": "f", "extra": 1}}]`, `[{"type": "function", "extra": 1, "function": {"name": "f"}}]`,
			`[{"type": "function", "function": {"name": "f", "parameters": {"a": 1, "a": 2}}}]`,
		},
	},
	{
		"tool_choice",
		[]string{`"none"`, `"auto"`, `"required"`, `{"type": "function", "function": {"name": "f"}}`, `{"type": "function", "x": null, "function": {"y": null, "name": "f"}}`, `null`},
		[]string{`"any"`, `"f"`, `1`, `true`, `[]`, `{}`, `{"type": "function"}`, `{"function": {"name": "f"}}`, `{"type": "function", "function": {"name": "g"}}`, `{"type": "function", "function": {"name": 1}}`, `{"type": "function", "function": {"name": "f", "x": 1}}`},
	},
	{"parallel_tool_calls", []string{`true`, `false`, `null`}, []string{`0`, `"true"`, `[]`, `{}`}},
	{"add_generation_prompt", []string{`true`, `false`, `null`}, []string{`0`, `"true"`, `[]`, `{}`}},
	{"continue_final_message", []string{`true`, `false`, `null`}, []string{`0`, `"true"`, `[]`, `{}`}},
	{
		"chat_template_kwargs",
		[]string{`{}`, `{"enable_thinking": false, "a": 1, "b": "c", "d": null}`, `{"a": [], "b": {}, "c": [1, null, "x"]}`, `{"a": {"b": {"c": {}}}}`, `{"a": [[["x"]]], "b": {"tools": 1}}`, `null`},
		[]string{`[]`, `1`, `"a"`, `{"a": {"b": {"c": {"d": {}}}}}`, `{"a": [[[[]]]]}`, `{"a": {"x": 1, "x": 2}}`, `{"chat_template": "x"}`, `{"tokenize": true}`, `{"tools": null}`, `{"a": 1, "a": 2}`},
	},
	{"reasoning_effort", []string{`"none"`, `"minimal"`, `"low"`, `"medium"`, `"high"`, `null`}, []string{`"xhigh"`, `"High"`, `""`, `1`, `true`, `["low"]`, `{}`}},
	{"include_reasoning", booleans, notBooleans},
	{"safety_identifier", []string{`""`, `"x"`, quotedRepeat("k", 512), `null`}, []string{`1`, `true`, `[]`, `{}`, quotedRepeat("k", 513)}},
	{"store", []string{`false`, `null`}, []string{`true`, `0`, `"false"`, `[]`, `{}`}},
	{"service_tier", []string{`"auto"`, `"default"`, `null`}, []string{`"flex"`, `"priority"`, `""`, `1`, `true`, `["auto"]`, `{}`}},
	{"modalities", []string{`["text"]`, `["te\u0078t"]`, `null`}, []string{`[]`, `["audio"]`, `["text", "audio"]`, `["text", "text"]`, `"text"`, `{"0": "text"}`, `1`, `[["text"]]`}},
}

// sharedFields are the fields that a chat completion has as a completion has them.
var sharedFields = []string{
	"model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "n",
	"stop", "stream", "stream_options", "logit_bias", "user", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
	"spaces_between_special_tokens", "stop_token_ids", "allowed_token_ids", "bad_words", "return_tokens_as_token_ids", "return_token_ids",
	"cache_salt", "response_format", "structured_outputs", "min_tokens", "prompt_cache_key", "stream_interval", "repetition_detection",
	"return_weight_versions", "vllm_xargs", "logprob_token_ids",
}

// chatRow is the valid and invalid values of a field of a chat completion.
type chatRow struct {
	field             string
	accepted, refused []string
}

// chatRows returns the rows of all fields of a chat completion.
func chatRows() []chatRow {
	var rows []chatRow
	for _, row := range chatTable {
		rows = append(rows, chatRow(row))
	}
	for _, row := range fieldTable {
		if slices.Contains(sharedFields, row.field) {
			rows = append(rows, chatRow{row.field, row.accepted, row.refused})
		}
	}
	return rows
}

func TestChatTablesAreComplete(t *testing.T) {
	var tested []string
	for _, row := range chatRows() {
		tested = append(tested, row.field)
	}
	slices.Sort(tested)
	if diff := cmp.Diff(slices.Sorted(slices.Values(validate.ChatFieldNames())), tested); diff != "" {
		t.Errorf("fields (-validated +tested):\n%s", diff)
	}
}

// A field is validated alike before the others and behind them, and its name is known if it is escaped.
func TestChatFieldIsJudgedAlikeAtEveryPosition(t *testing.T) {
	for _, row := range chatRows() {
		for accepted, values := range map[bool][]string{true: row.accepted, false: row.refused} {
			for _, value := range values {
				for name, body := range map[string]string{"in front": movedToFront(t, chatBody(row.field, value), row.field), "escaped": escapedName(chatBody(row.field, value), row.field)} {
					_, err := validate.Chat([]byte(body), defaultLimits)
					if (err == nil) != accepted {
						t.Errorf("%s, %s: %s: got %v, want accepted %t", row.field, name, value, err, accepted)
					}
				}
			}
		}
	}
}

// movedToFront moves the last member of that name to the front of an object.
func movedToFront(t *testing.T, body, field string) string {
	t.Helper()
	members, err := parseMembers([]byte(body))
	if err != nil {
		return body // a value that is no JSON, or has a name twice
	}
	var first string
	var rest []string
	for _, m := range members {
		text := m.name + ":" + m.value
		if m.decodedName() == field {
			first = text
		} else {
			rest = append(rest, text)
		}
	}
	return "{" + strings.Join(append([]string{first}, rest...), ",") + "}"
}

// escapedName writes the first letter of a field's name as an escape.
func escapedName(body, field string) string {
	return strings.Replace(body, strconv.Quote(field), fmt.Sprintf(`"\u%04x%s"`, field[0], field[1:]), 1)
}

func TestChatFieldSentTwiceIsRefusedByItsName(t *testing.T) {
	for _, row := range chatRows() {
		body := chatBody(row.field, row.accepted[0])
		body = body[:len(body)-1] + fmt.Sprintf(", %q: %s}", row.field, row.accepted[0])
		_, err := validate.Chat([]byte(body), defaultLimits)
		if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != row.field || !strings.Contains(e.Message, row.field) {
			t.Errorf("%s twice: got %v, want invalid_request of it", row.field, err)
		}
	}
}

func TestEveryChatFieldIsJudged(t *testing.T) {
	for _, row := range chatRows() {
		for _, value := range row.accepted {
			if r, err := validate.Chat([]byte(chatBody(row.field, value)), defaultLimits); err != nil {
				t.Errorf("%s: %s is refused: %v", row.field, value, err)
			} else if !json.Valid(r.Upstream(validate.Edits{Model: "m"}).Append(nil)) {
				t.Errorf("%s: %s: the body for a backend is no JSON", row.field, value)
			}
		}
		for _, value := range row.refused {
			_, err := validate.Chat([]byte(chatBody(row.field, value)), defaultLimits)
			e, ok := errors.AsType[*apierr.Error](err)
			if !ok || e.Code != apierr.InvalidRequest || !strings.Contains(e.Message, e.Param) || e.Param != row.field && !repeatsName(value, e.Param) {
				t.Errorf("%s: %s: got %v, want invalid_request with the field in its message", row.field, value, err)
			}
		}
	}
}

// repeatsName reports whether a value repeats a name within it, which is then the parameter of the error.
func repeatsName(value, name string) bool {
	return strings.Count(strings.ReplaceAll(value, `\u0074`, "t"), strconv.Quote(name)) > 1
}

func TestChatRefusesFieldsByName(t *testing.T) {
	for field, want := range map[string]string{
		"functions": "tools", "function_call": "tool_choice", "audio": "text", "metadata": "user",
		"prompt": "messages", "best_of": "does not have it", "prompt_logprobs": "/v1/completions", "chat_template": "template",
		"return_prompt_text": "vLLM has it", "thinking_token_budget": "vLLM has it", "suffix": "does not have it", "truncation_side": "not truncated", "guided_json": "structured_outputs", "temprature": `did you mean "temperature"`, "message": `did you mean "messages"`,
		"truncate_prompt_tokens": "not truncated", "add_special_tokens": "template", "kv_transfer_params": "vLLM has it",
	} {
		_, err := validate.Chat([]byte(chatBody(field, "null")), defaultLimits)
		e, ok := errors.AsType[*apierr.Error](err)
		if !ok || e.Code != apierr.InvalidRequest || e.Param != field || !strings.Contains(e.Message, want) {
			t.Errorf("%s: got %v, want invalid_request of it with %q", field, err, want)
		}
	}
}

func TestChatConflicts(t *testing.T) {
	for _, c := range []struct{ rest, param string }{
		{`"max_tokens": 5, "max_completion_tokens": 5`, "max_tokens"},
		{`"stream_options": {}`, "stream_options"},
		{`"stream_interval": 2`, "stream_interval"},
		{`"tool_choice": "auto", "tools": []`, "tool_choice"},
		{`"min_tokens": 6, "max_completion_tokens": 5`, "min_tokens"},
		{`"min_tokens": 4097`, "min_tokens"},
		{`"top_logprobs": 1`, "top_logprobs"},
		{`"top_logprobs": 0, "logprobs": false`, "top_logprobs"},
		{`"logprob_token_ids": [1]`, "logprob_token_ids"},
		{`"logprob_token_ids": [1], "logprobs": false`, "logprob_token_ids"},
		{`"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}`, "structured_outputs"},
		{`"tool_choice": "auto"`, "tool_choice"},
		{`"tool_choice": "required", "tools": null`, "tool_choice"},
		{`"tool_choice": {"type": "function", "function": {"name": "f"}}`, "tool_choice"},
		{`"continue_final_message": true`, "continue_final_message"},
		{`"continue_final_message": true, "add_generation_prompt": true`, "continue_final_message"},
		{`"messages": ` + oneMessage, "messages"},
	} {
		_, err := validate.Chat([]byte(`{"model": "llama-8b", "messages": `+oneMessage+`, `+c.rest+`}`), defaultLimits)
		if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != c.param {
			t.Errorf("%s: got %v, want invalid_request of %s", c.rest, err, c.param)
		}
	}
	for _, body := range []string{`{"model": "m"}`, `{"messages": ` + oneMessage + `}`} {
		if _, err := validate.Chat([]byte(body), defaultLimits); err == nil || !strings.Contains(apierr.From(err).Message, "missing") {
			t.Errorf("%s: got %v, want that a field is missing", body, err)
		}
	}
}

// Clients that want no tool in some turn send "none" there without tools, and vLLM takes it.
func TestChatWithoutToolsMayChooseNone(t *testing.T) {
	for _, rest := range []string{`"tool_choice": "none"`, `"tools": null, "tool_choice": "none"`, `"tools": [], "tool_choice": "none"`, `"tool_choice": "none", "tools": [` + aTool + `]`} {
		if _, err := validate.Chat([]byte(`{"model": "llama-8b", "messages": `+oneMessage+`, `+rest+`}`), defaultLimits); err != nil {
			t.Errorf("%s: got %v, want it accepted", rest, err)
		}
	}
}

func TestChatSendsOnWhatTheTemplateNeeds(t *testing.T) {
	const body = `{"model":"x","messages":[ {"refusal":null, "parsed":{"a":1}, "role":"assistant" , "annotations":[],"content":"\u0041", "audio":null, "parsed_arguments": [1] },
		{"role":"assistant","tool_calls":[{"index":0,"custom":null,"id":"c","type":"function","function":{"name":"f","arguments":"{}","parsed_arguments":{},"later":null},"parsed_arguments":{}}],"content":null}], "tools":[{"x":null,"type":"function", "function": {"name":"f" , "parameters" : {"a":null},"strict":null}}], "response_format": {"json_schema":null ,"type":"text"}}`
	r, err := validate.Chat([]byte(body), defaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	const messages = `[ {"role":"assistant","content":"\u0041" },
		{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}]`
	const tools = `[{"type":"function", "function": {"name":"f" , "parameters" : {"a":null}}}]`
	want := `{"model":"m","messages":` + messages + `, "tools":` + tools + `, "response_format": {"type":"text"},"max_tokens":7}`
	if got := string(r.Upstream(validate.Edits{Model: "m", MaxTokens: 7}).Append(nil)); got != want {
		t.Errorf("upstream (-want +got):\n%s", cmp.Diff(want, got))
	}
	want = `{"model":"m","messages":` + messages + `,"tools":` + tools + `}`
	if got := string(r.TokenizeBody("m").Append(nil)); got != want {
		t.Errorf("tokenize (-want +got):\n%s", cmp.Diff(want, got))
	}
}

// A member may be removed in front of one in which others are removed, at every depth.
func TestChatRemovesMembersInFrontOfOnesThatAreChanged(t *testing.T) {
	const called = `{"parsed_arguments": {}, "name": "f", "arguments": "{}"}`
	for _, call := range []string{
		`{"index": 0, "id": "c", "type": "function", "function": ` + called + `}`,
		`{"index": 0, "later": null, "function": ` + called + `, "id": "c", "type": "function"}`,
	} {
		for _, front := range []string{`"parsed": {}, `, `"refusal": null, "annotations": [], `} {
			body := chatBody("messages", `[`+anAsk+`, {`+front+`"tool_calls": [`+call+`, `+call+`], "audio": null, "role": "assistant"}]`)
			r, err := validate.Chat([]byte(body), defaultLimits)
			if err != nil {
				t.Errorf("%s: %v", body, err)
				continue
			}
			want := strings.NewReplacer(front, "", `"index": 0, `, "", `"later": null, `, "", `"parsed_arguments": {}, `, "", `, "audio": null`, "", `"llama-8b"`, `"m"`)
			if diff := cmp.Diff(want.Replace(body), string(r.Upstream(validate.Edits{Model: "m"}).Append(nil))); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", body, diff)
			}
		}
	}
}

// The template has the effort as an argument, so a count has to have it too.
func TestTokenizeHasTheReasoningEffortAmongTheArguments(t *testing.T) {
	for members, want := range map[string]string{
		``: ``,
		`, "chat_template_kwargs": { "a" : [1] }`:                                        `,"chat_template_kwargs":{ "a" : [1] }`,
		`, "reasoning_effort": "low"`:                                                    `,"chat_template_kwargs":{"reasoning_effort":"low"}`,
		`, "reasoning_effort": "low", "chat_template_kwargs": { }`:                       `,"chat_template_kwargs":{"reasoning_effort":"low" }`,
		`, "chat_template_kwargs": {"a": 1}, "reasoning_effort": "none"`:                 `,"chat_template_kwargs":{"reasoning_effort":"none","a": 1}`,
		`, "chat_template_kwargs": {"reasoning_effort": "x"}, "reasoning_effort": "low"`: `,"chat_template_kwargs":{"reasoning_effort": "x"}`,
		`, "chat_template_kwargs": null, "reasoning_effort": null`:                       ``,
	} {
		want = `{"model":"m","messages":` + oneMessage + want + `}`
		if diff := cmp.Diff(want, string(parseChat(t, members).TokenizeBody("m").Append(nil))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", members, diff)
		}
	}
}

func TestChatLimitsItsWork(t *testing.T) {
	many := func(one string, n int) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	calls := func(n int) string {
		return `{"role": "assistant", "tool_calls": [` + many(`{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}`, n) + `]}`
	}
	nulls := func(n int) (members string) {
		for i := range n {
			members += fmt.Sprintf(`, "x%d": null`, i)
		}
		return members
	}
	deep := strings.Repeat(`{\"a\":`, 33) + "1" + strings.Repeat("}", 33)
	for name, c := range map[string]struct {
		messages string
		accepted bool
	}{
		"2048 messages":              {many(anAsk, 2048), true},
		"2049 messages":              {many(anAsk, 2049), false},
		"128 calls":                  {calls(128), true},
		"129 calls":                  {calls(129), false},
		"2048 calls in all messages": {many(calls(128), 16), true},
		"2049 calls in all messages": {many(calls(128), 16) + "," + calls(1), false},
		"deep arguments":             {`{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "` + deep + `"}}]}`, false},
		"long arguments":             {`{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"` + strings.Repeat("a", 1<<20) + `\"}"}}]}`, false},
		"65 unknown members":         {`{"role": "assistant", "content": "a"` + nulls(65) + `}`, false},
		"64 unknown members":         {`{"role": "assistant", "content": "a"` + nulls(64) + `}`, true},
		"a long name":                {`{"role": "user", "content": "a", "name": "` + strings.Repeat("a", 513) + `"}`, false},
	} {
		if _, err := validate.Chat([]byte(chatBody("messages", "["+c.messages+"]")), defaultLimits); (err == nil) != c.accepted {
			t.Errorf("%s: got %v, want accepted %v", name, err, c.accepted)
		}
	}
	for n, accepted := range map[int]bool{128: true, 129: false} {
		if _, err := validate.Chat([]byte(chatBody("tools", "["+many(aTool, n)+"]")), defaultLimits); (err == nil) != accepted {
			t.Errorf("%d tools: got %v, want accepted %v", n, err, accepted)
		}
	}
}

// FuzzChat compares the body for a backend with the client's, both parsed by encoding/json.
func FuzzChat(f *testing.F) {
	for _, row := range chatTable {
		for _, value := range slices.Concat(row.accepted, row.refused) {
			f.Add([]byte(chatBody(row.field, value)))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		original := bytes.Clone(body)
		r, err := validate.Chat(body, defaultLimits)
		if !bytes.Equal(original, body) {
			t.Fatal("Chat modified the body")
		}
		if err != nil {
			if e := apierr.From(err); e.Message == "" || e.Code != apierr.InvalidRequest && e.Code != apierr.BadJSON {
				t.Fatalf("%v: %v", e.Code, err)
			}
			return
		}
		var sent, received map[string]any
		if err := json.Unmarshal(body, &sent); err != nil {
			t.Fatalf("accepted, but encoding/json refuses it: %v", err)
		}
		out := r.Upstream(validate.Edits{Model: "m"})
		checkReads(t, out)
		if err := json.Unmarshal(out.Append(nil), &received); err != nil {
			t.Fatalf("%q: %v", out.Append(nil), err)
		}
		sent["model"] = "m"
		for name, value := range sent {
			if slices.Contains([]string{"prompt_cache_key", "safety_identifier", "store", "service_tier", "modalities"}, name) || value == nil {
				delete(sent, name)
			}
		}
		cleanMessages(sent)
		cleanObjects(sent)
		delete(sent, "stream_options") // which gains include_usage
		delete(received, "stream_options")
		if diff := cmp.Diff(sent, received); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if roles, _ := r.MessagesOf(); sumOf(roles[:]) != len(sent["messages"].([]any)) {
			t.Fatalf("got the roles %v of %d messages", roles, len(sent["messages"].([]any)))
		}
		var counted map[string]any
		if err := json.Unmarshal(r.TokenizeBody("m").Append(nil), &counted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sent["messages"], counted["messages"]); diff != "" {
			t.Fatalf("/tokenize (-want +got):\n%s", diff)
		}
	})
}

func sumOf(numbers []int) (sum int) {
	for _, n := range numbers {
		sum += n
	}
	return sum
}

// cleanMessages removes what the gateway does not send on: members that are null, and what SDKs add.
func cleanMessages(body map[string]any) {
	for _, m := range body["messages"].([]any) {
		message := m.(map[string]any)
		deleteNulls(message)
		for _, name := range []string{
			"refusal", "annotations", "audio", "function_call", "parsed", "parsed_arguments", "provider_specific_fields", "reasoning_details",
			"reasoning_items", "thinking_blocks", "id",
		} {
			delete(message, name)
		}
		parts, _ := message["content"].([]any)
		for _, part := range parts {
			deleteNulls(part.(map[string]any))
		}
		calls, _ := message["tool_calls"].([]any)
		if len(calls) == 0 {
			delete(message, "tool_calls")
		}
		for _, c := range calls {
			call := c.(map[string]any)
			delete(call, "index")
			delete(call, "provider_specific_fields")
			for _, o := range []map[string]any{call, call["function"].(map[string]any)} {
				delete(o, "parsed_arguments")
				deleteNulls(o)
			}
		}
	}
}

func deleteNulls(o map[string]any) {
	maps.DeleteFunc(o, func(_ string, value any) bool { return value == nil })
}

// cleanObjects removes the null members of the other objects of a chat completion, but not those of schemas.
func cleanObjects(body map[string]any) {
	tools, _ := body["tools"].([]any)
	if len(tools) == 0 {
		delete(body, "tools")
	}
	objects := append(slices.Clone(tools), body["tool_choice"], body["response_format"], body["structured_outputs"], body["repetition_detection"], body["vllm_xargs"])
	for _, value := range objects {
		o, _ := value.(map[string]any)
		deleteNulls(o)
		for _, name := range []string{"function", "json_schema"} {
			inner, _ := o[name].(map[string]any)
			deleteNulls(inner)
		}
	}
}
