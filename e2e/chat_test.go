//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"

	"basegate/mockvllm"
)

// klusterAlias is an alias as kluster.ai names models.
const klusterAlias = "klusterai/Meta-Llama-3.1-8B-Instruct-Turbo"

// startChatGateway starts a mock that chats and a gateway with two models of it: chat, which has a kluster-like alias, and
// base, which does not chat.
func startChatGateway(t *testing.T, options mockvllm.Options) (*gateway, *mockvllm.Process) {
	t.Helper()
	if options.ChatTemplate == "" {
		options.ChatTemplate = mockvllm.TemplateChatML
	}
	mock := startMock(t, options)
	return newEnvironment(t, settings{probeTimeout: loadedProbe, models: fmt.Sprintf(
		`{id: chat, aliases: [%s], checkpoint: %s, chat: true, backends: [{url: %q}]}, {id: base, checkpoint: %s, backends: [{url: %q}]}`,
		klusterAlias, checkpoint, mock.URL(), checkpoint, mock.URL())}).serve(), mock
}

func chatParams(change func(*openai.ChatCompletionNewParams)) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{
		Model: "chat", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("The capital of France is")},
		MaxCompletionTokens: openai.Int(60), Seed: openai.Int(7),
	}
	if change != nil {
		change(&p)
	}
	return p
}

func TestGoSDKChat(t *testing.T) {
	g, _ := startChatGateway(t, mockvllm.Options{})
	c, _ := g.sdk()
	got, err := c.Chat.Completions.New(t.Context(), chatParams(func(p *openai.ChatCompletionNewParams) {
		p.Model, p.Logprobs, p.TopLogprobs, p.MaxCompletionTokens = klusterAlias, openai.Bool(true), openai.Int(3), openai.Int(8)
	}))
	must(t, err)
	choice := got.Choices[0]
	if choice.Message.Content == "" || choice.Message.Role != "assistant" || got.Usage.CompletionTokens == 0 || len(choice.Logprobs.Content) != int(got.Usage.CompletionTokens) {
		t.Errorf("%s", got.RawJSON())
	}
	for _, token := range choice.Logprobs.Content {
		if len(token.TopLogprobs) != 3 {
			t.Errorf("%d top_logprobs of %q, want 3", len(token.TopLogprobs), token.Token)
		}
	}
	row := g.usageRows()[0]
	if row.Prompt != got.Usage.PromptTokens || row.Completion != got.Usage.CompletionTokens || row.State != "settled" {
		t.Errorf("the ledger has %+v, the response %+v", row, got.Usage)
	}
}

func TestGoSDKChatStream(t *testing.T) {
	g, _ := startChatGateway(t, mockvllm.Options{})
	c, _ := g.sdk()
	whole, err := c.Chat.Completions.New(t.Context(), chatParams(nil))
	must(t, err)
	stream := c.Chat.Completions.NewStreaming(t.Context(), chatParams(func(p *openai.ChatCompletionNewParams) {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}))
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		sum.AddChunk(stream.Current())
	}
	must(t, stream.Err())
	if sum.Choices[0].Message.Content != whole.Choices[0].Message.Content || sum.Usage.TotalTokens != whole.Usage.TotalTokens {
		t.Errorf("the stream gives %+v, the response %s", sum.ChatCompletion, whole.RawJSON())
	}
}

// The message of the SDK's response is sent back as it is, with the result of its tool call.
func TestGoSDKToolRoundTrip(t *testing.T) {
	for _, template := range []string{mockvllm.TemplateChatML, mockvllm.TemplateLlama} {
		g, _ := startChatGateway(t, mockvllm.Options{ChatTemplate: template})
		c, _ := g.sdk()
		params := chatParams(func(p *openai.ChatCompletionNewParams) {
			p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
				Name: "weather", Description: openai.String("The weather of a city."), Strict: openai.Bool(true),
				Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}},
			})}
		})
		got, err := c.Chat.Completions.New(t.Context(), params)
		must(t, err)
		message := got.Choices[0].Message
		if got.Choices[0].FinishReason != "tool_calls" || len(message.ToolCalls) != 1 || message.ToolCalls[0].Function.Name != "weather" {
			t.Fatalf("%s", got.RawJSON())
		}
		var arguments struct{ City *string }
		if err := json.Unmarshal([]byte(message.ToolCalls[0].Function.Arguments), &arguments); err != nil || arguments.City == nil {
			t.Errorf("arguments %q: %v", message.ToolCalls[0].Function.Arguments, err)
		}
		params.Messages = append(params.Messages, message.ToParam(), openai.ToolMessage("sunny", message.ToolCalls[0].ID))
		again, err := c.Chat.Completions.New(t.Context(), params)
		must(t, err)
		if again.Choices[0].Message.Content == "" || again.Choices[0].FinishReason == "tool_calls" {
			t.Errorf("%s", again.RawJSON())
		}
	}
}

func TestGoSDKResponseFormat(t *testing.T) {
	schema := map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}, "people": map[string]any{"type": "integer"}},
		"required": []string{"name", "people"}, "additionalProperties": false,
	}
	for _, version := range []string{"0.10.0", "0.32.0"} {
		g, _ := startChatGateway(t, mockvllm.Options{Version: version})
		c, _ := g.sdk()
		got, err := c.Chat.Completions.New(t.Context(), chatParams(func(p *openai.ChatCompletionNewParams) {
			p.MaxCompletionTokens = openai.Int(200)
			p.ResponseFormat.OfJSONSchema = &openai.ResponseFormatJSONSchemaParam{
				JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "city", Schema: schema, Strict: openai.Bool(true)},
			}
		}))
		must(t, err)
		var city struct {
			Name   *string
			People *int
		}
		if err := json.Unmarshal([]byte(got.Choices[0].Message.Content), &city); err != nil || city.Name == nil || city.People == nil {
			t.Errorf("%s: %v: %s", version, err, got.RawJSON())
		}
	}
}

func TestBatchOfChatLines(t *testing.T) {
	g, mock := startChatGateway(t, mockvllm.Options{})
	var file strings.Builder
	ids := map[string]bool{}
	line := func(id, body string) {
		ids[id] = true
		fmt.Fprintf(&file, `{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":%s}`+"\n", id, body)
	}
	for i := range 30 {
		line(fmt.Sprint("line ", i), fmt.Sprintf(`{"model":"chat","messages":[{"role":"user","content":"Once upon %d"}],"max_completion_tokens":4,"seed":%d}`, i, i))
	}
	line("tools", `{"model":"chat","messages":[{"role":"user","content":"a"}],"max_tokens":60,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"}`)
	mock.InjectFault(mockvllm.Fault{Kind: "nested", Path: "/v1/chat/completions", Times: 3})
	b := g.waitForBatch(g.secret, g.createBatchOf(g.secret, "/v1/chat/completions", file.String()), "completed")
	output, failures := g.checkResults(g.secret, b, ids)
	if len(failures) > 0 {
		t.Errorf("lines have failed: %v", failures)
	}
	for id, result := range output {
		if result.Get("response.body.object").Str != "chat.completion" {
			t.Errorf("%s: %s", id, result.Raw)
		}
	}
	if reason := output["tools"].Get("response.body.choices.0.finish_reason").Str; reason != "tool_calls" {
		t.Errorf("the line with tools has the finish reason %q", reason)
	}
	var completion int64
	for _, row := range g.usageRows() {
		completion += row.Completion
	}
	if got := b.Get("usage.output_tokens").Int(); got != completion || got == 0 {
		t.Errorf("the batch's usage has %d output tokens, the ledger %d", got, completion)
	}
	bad := g.createBatchOf(g.secret, "/v1/chat/completions", `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"base","messages":[]}}`+"\n")
	failed := g.waitForBatch(g.secret, bad, "failed")
	if code := failed.Get("errors.data.0.code").Str; code != "chat_completions_unsupported" {
		t.Errorf("a line of a base model: %s", failed.Raw)
	}
}
