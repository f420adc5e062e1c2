package mockvllm_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// postTo posts JSON to a mock and returns its status and body.
func postTo(t *testing.T, mock *mockvllm.Process, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mock.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestChatTemplatesDecideTheCountOfTheirPrompts(t *testing.T) {
	for _, template := range []string{mockvllm.TemplateNone, mockvllm.TemplateChatML, mockvllm.TemplateLlama} {
		mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{ChatTemplate: template})
		if err != nil {
			t.Fatal(err)
		}
		defer mock.Close()
		for _, messages := range []string{`[{"role":"user","content":"a"}]`, `[{"role":"system","content":"b"},{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"type":"function","function":{"name":"f"}}]`} {
			status, chat := postTo(t, mock, "/v1/chat/completions", `{"max_tokens":3,"messages":`+messages+`}`)
			counted, tokens := postTo(t, mock, "/tokenize", `{"messages":`+messages+`}`)
			if template == mockvllm.TemplateNone {
				if status != 400 || counted != 400 || !strings.Contains(chat, "default chat template is no longer allowed") {
					t.Errorf("without a template: %d %s, /tokenize %d %s", status, chat, counted, tokens)
				}
				continue
			}
			if used := gjson.Get(chat, "usage.prompt_tokens").Int(); status != 200 || used == 0 || used != gjson.Get(tokens, "count").Int() {
				t.Errorf("%s: %s: %d %s, /tokenize %s", template, messages, status, chat, tokens)
			}
		}
	}
}

func TestChatNamesReasoningAsItsVersionDoes(t *testing.T) {
	for version, field := range map[string]string{"0.11.0": "reasoning_content", "0.32.0": "reasoning"} {
		mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{ChatTemplate: mockvllm.TemplateChatML, Reasoning: true, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		defer mock.Close()
		const body = `{"max_tokens":20,"ignore_eos":true,"seed":1,"messages":[{"role":"user","content":"a"}]`
		_, plain := postTo(t, mock, "/v1/chat/completions", body+`}`)
		_, stream := postTo(t, mock, "/v1/chat/completions", body+`,"stream":true}`)
		var reasoning, content string
		for line := range strings.Lines(stream) {
			delta := gjson.Get(strings.TrimPrefix(line, "data: "), "choices.0.delta")
			reasoning, content = reasoning+delta.Get(field).Str, content+delta.Get("content").Str
		}
		message := gjson.Get(plain, "choices.0.message")
		if reasoning == "" || reasoning != message.Get(field).Str || content == "" || content != message.Get("content").Str {
			t.Errorf("%s: %s\n%s", version, plain, stream)
		}
		if _, off := postTo(t, mock, "/v1/chat/completions", body+`,"chat_template_kwargs":{"enable_thinking":false}}`); gjson.Get(off, "choices.0.message."+field).Str != "" {
			t.Errorf("%s: reasoning though it is disabled: %s", version, off)
		}
	}
}
