//go:build real

package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

const (
	chatPath = "/v1/chat/completions"
	// defaultTokens is the chat_default_max_tokens of the gateways here.
	defaultTokens = 50
	// chatContext is the max_model_len of the gateways here, in tokens.
	chatContext = 1000

	weatherTool = `"tools": [{"type": "function", "function": {"name": "weather", "strict": true, "parameters": ` +
		`{"type": "object", "properties": {"city": {"enum": ["Prague", "Brno"]}}, "required": ["city"], "additionalProperties": false}}}]`
	toolResult = `{"role": "user", "content": "Prague?"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "call-1", ` +
		`"type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Prague\"}"}}]}, ` +
		`{"role": "tool", "tool_call_id": "call-1", "content": "sunny"}`
)

// startChatGateway starts a gateway whose model chats, in front of the server that has a template.
func startChatGateway(t *testing.T) (*gateway, *vllm) {
	t.Helper()
	server := backends(t)[0]
	g := startGatewayOf(t, "", fmt.Sprintf("chat: true, completions: true, chat_default_max_tokens: %d, max_model_len: %d, ", defaultTokens, chatContext),
		fmt.Sprintf("{name: %s, url: %q, gpu: cpu}", server.name, server.url))
	g.waitStatus("warm")
	return g, server
}

// direct sends a request to the server itself.
func (s *vllm) direct(t *testing.T, path, body string) response {
	t.Helper()
	return readAll(t, openPath(t.Context(), t, s.url+path, "", body))
}

// volatile is what differs between two responses of vLLM to the same request. Which event has the fingerprint depends on
// whether usage was asked for, which the gateway always does.
var volatile = regexp.MustCompile(`"created":\d+|chatcmpl-[-_0-9A-Za-z]+|,"system_fingerprint":"[^"]*"`)

// stable returns a response without what is volatile. Of a stream it returns the distinct lines without their texts, and
// then the texts: how many tokens vLLM puts into an event depends on the load of the machine.
func stable(t *testing.T, body string) []string {
	t.Helper()
	body = volatile.ReplaceAllString(body, "")
	if !strings.HasPrefix(body, "data: ") {
		return []string{body}
	}
	var texts streamTexts
	var lines []string
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if event, ok := strings.CutPrefix(line, "data: {"); ok {
			if line = texts.cut(t, "{"+strings.ReplaceAll(event, ",,", ",")); line == "" {
				continue
			}
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	logprobs, err := json.Marshal(texts.logprobs)
	must(t, err)
	return append(lines, texts.content, texts.arguments, string(logprobs))
}

// streamTexts are what the events of a stream add up to.
type streamTexts struct {
	content, arguments string
	logprobs           []any
}

// cut adds the texts of an event, and returns the event without them, or "" if it has only them: vLLM may put them all into the
// event that finishes.
func (s *streamTexts) cut(t *testing.T, event string) string {
	t.Helper()
	var members map[string]any
	must(t, json.Unmarshal([]byte(event), &members))
	only := len(members["choices"].([]any)) > 0
	for _, c := range members["choices"].([]any) {
		choice := c.(map[string]any)
		if logprobs, ok := choice["logprobs"].(map[string]any); ok {
			s.logprobs = append(s.logprobs, logprobs["content"].([]any)...)
		}
		choice["logprobs"] = nil
		delta := choice["delta"].(map[string]any)
		s.content += cutText(delta, "content")
		calls, _ := delta["tool_calls"].([]any)
		for _, call := range calls {
			s.arguments += cutText(call.(map[string]any)["function"].(map[string]any), "arguments")
		}
		only = only && len(delta) == 0 && choice["finish_reason"] == nil
	}
	if only {
		return ""
	}
	rest, err := json.Marshal(members)
	must(t, err)
	return string(rest)
}

// cutText removes a member and returns its text, which is empty if it is null or missing.
func cutText(from map[string]any, name string) string {
	text, _ := from[name].(string)
	delete(from, name)
	return text
}

// chatRequests are the members of requests that the tests send, beside the model and the seed.
var chatRequests = []string{
	`"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 9`,
	`"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Příliš žluťoučký 🙂"}], "max_tokens": 5, "temperature": 0`,
	`"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": "a"}], "max_tokens": 5`,
	`"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "logprobs": true, "top_logprobs": 3`,
	`"messages": [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}], "max_tokens": 4, "add_generation_prompt": false, "continue_final_message": true`,
	`"messages": [{"role": "user", "content": "Yes?"}], "max_tokens": 20, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": {"enum": ["yes", "no"]}}}`,
	`"messages": [{"role": "user", "content": "Prague?"}], "max_tokens": 200, "tool_choice": "required", ` + weatherTool,
	`"messages": [{"role": "user", "content": "Prague?"}], "max_tokens": 200, "tool_choice": {"type": "function", "function": {"name": "weather"}}, ` + weatherTool,
	`"messages": [` + toolResult + `], "max_tokens": 7, ` + weatherTool,
	`"messages": [` + toolResult + `], "max_tokens": 7`,
}

// TestChatIsThatOfVLLM compares responses and streams with those of the server itself, and the ledger with vLLM's usage and
// with what /tokenize counts.
func TestChatIsThatOfVLLM(t *testing.T) {
	g, server := startChatGateway(t)
	type tokens struct{ Prompt, Completion int64 }
	names, want := map[string]string{}, map[string]tokens{} // by request id
	for _, members := range chatRequests {
		var counted map[string]json.RawMessage
		must(t, json.Unmarshal([]byte("{"+members+"}"), &counted))
		for _, stream := range []string{"", `, "stream": true, "stream_options": {"include_usage": true}`, `, "stream": true`} {
			body := fmt.Sprintf(`{"model": %%q, "seed": 5, %s%s}`, members, stream)
			got := g.post(chatPath, fmt.Sprintf(body, modelID))
			direct := server.direct(t, chatPath, fmt.Sprintf(body, checkpoint))
			if d := cmp.Diff(stable(t, direct.body), stable(t, got.body)); d != "" || got.status != http.StatusOK {
				t.Errorf("%s%s: status %d (-vLLM +gateway):\n%s", members, stream, got.status, d)
				continue
			}
			if stream == `, "stream": true` { // without usage: that of the same stream with it holds
				continue
			}
			usage := gjson.Get(got.body[strings.LastIndex(got.body, `{"id"`):], "usage")
			if stream == "" {
				usage = gjson.Get(got.body, "usage")
			}
			id := got.header.Get("X-Request-Id")
			names[id], want[id] = members+stream, tokens{usage.Get("prompt_tokens").Int(), usage.Get("completion_tokens").Int()}
			if count := server.countMessages(t, counted); count != want[id].Prompt {
				t.Errorf("%s: /tokenize counts %d tokens of the prompt, the usage has %d", members, count, want[id].Prompt)
			}
		}
	}
	rows := g.ledger()
	for id, tokens := range want {
		if row := rows[id]; row.Prompt != tokens.Prompt || row.Completion != tokens.Completion || tokens.Prompt == 0 || tokens.Completion == 0 {
			t.Errorf("%s: the ledger has %+v, vLLM counted %+v", names[id], row, tokens)
		}
	}
}

// countMessages returns what the server's /tokenize counts of the messages and tools of a request.
func (s *vllm) countMessages(t *testing.T, members map[string]json.RawMessage) int64 {
	t.Helper()
	request := map[string]any{"model": checkpoint}
	for _, name := range []string{"messages", "tools", "add_generation_prompt", "continue_final_message"} {
		if value, ok := members[name]; ok {
			request[name] = value
		}
	}
	body, err := json.Marshal(request)
	must(t, err)
	got := s.direct(t, "/tokenize", string(body))
	if got.status != http.StatusOK {
		t.Fatalf("/tokenize: %d %s", got.status, got.body)
	}
	return gjson.Get(got.body, "count").Int()
}

func TestChatAnswersInTheFormOfASchema(t *testing.T) {
	g, _ := startChatGateway(t)
	got := g.post(chatPath, fmt.Sprintf(`{"model": %q, "seed": 5, %s}`, modelID, chatRequests[5]))
	if text := gjson.Get(got.body, "choices.0.message.content").Str; text != `"yes"` && text != `"no"` {
		t.Errorf("got %d %s, want yes or no as JSON", got.status, got.body)
	}
}

// TestChatWithoutALimit sends conversations that are short, that leave less than the default, and that do not fit.
func TestChatWithoutALimit(t *testing.T) {
	g, server := startChatGateway(t)
	messages := func(words int) map[string]json.RawMessage {
		return map[string]json.RawMessage{"messages": json.RawMessage(fmt.Sprintf(`[{"role": "user", "content": %q}]`, strings.Repeat("word ", words)))}
	}
	perHundred := server.countMessages(t, messages(200)) - server.countMessages(t, messages(100))
	overhead := server.countMessages(t, messages(100)) - perHundred
	nearlyFull := int((chatContext - 20 - overhead) * 100 / perHundred)
	for words, want := range map[int]int64{
		3:          defaultTokens,
		nearlyFull: chatContext - server.countMessages(t, messages(nearlyFull)),
	} {
		got := g.post(chatPath, fmt.Sprintf(`{"model": %q, "messages": %s, "seed": 5, %s}`, modelID, messages(words)["messages"], noEOS))
		if n := gjson.Get(got.body, "usage.completion_tokens").Int(); n != want || gjson.Get(got.body, "choices.0.finish_reason").Str != "length" {
			t.Errorf("%d words: got %d, %d completion tokens of %.300s, want %d", words, got.status, n, got.body, want)
		}
	}
	before := server.metric(t, "vllm:request_success_total", "")
	got := g.post(chatPath, fmt.Sprintf(`{"model": %q, "messages": %s}`, modelID, messages(nearlyFull + 1000)["messages"]))
	if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.code").Str != "context_length_exceeded" || gjson.Get(got.body, "error.param").Str != "messages" {
		t.Errorf("too long: got %d %s, want 400 context_length_exceeded about messages", got.status, got.body)
	}
	if after := server.metric(t, "vllm:request_success_total", ""); after != before {
		t.Errorf("vLLM served %v requests for the conversation that does not fit", after-before)
	}
}

// The second server has no template.
func TestServerWithoutATemplateIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("needs two servers")
	}
	server := backends(t)[1]
	g := startGatewayOf(t, "", "chat: true, completions: true, ", fmt.Sprintf("{name: %s, url: %q, gpu: cpu}", server.name, server.url))
	g.waitStatus("warm")
	if stdout, _, err := g.try("check"); err == nil || !strings.Contains(stdout, "has no chat template") {
		t.Errorf("basegate check: error %v, want one, and the template named:\n%s", err, stdout)
	}
	got := g.post(chatPath, fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": "a"}]}`, modelID))
	if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.code").Str != "chat_completions_unsupported" {
		t.Errorf("got %d %s, want 400 chat_completions_unsupported", got.status, got.body)
	}
}
