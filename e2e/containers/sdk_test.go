//go:build containers

package containers_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"basegate/mockvllm"
)

// The official SDKs need no change but the base URL and the key: the Python and Node tests of e2e/sdk run against gateways
// in containers.
func TestOfficialSDKsWorkWithContainers(t *testing.T) {
	env := newEnvironment(t)
	models := map[string][]*service{}
	for _, id := range []string{"llama-8b", "llama-405b", "trinity-base", chatModel} {
		args := []string{"--model", checkpoints[id], "--first-delay", "50ms", "--token-delay", "15ms"}
		if id == chatModel {
			args = append(args, "--chat-template", mockvllm.TemplateLlama)
		}
		models[id] = []*service{env.mock("mock-"+id, args...)}
	}
	g := env.gateway("dialects: {lamini: true}\nlimits: {children: true}\n", models)
	breaks := env.mock("breaks")
	reasons := env.mock("reasons", "--model", checkpoints[chatModel], "--chat-template", mockvllm.TemplateChatML, "--reasoning")
	faulty := env.serve(env.writeConfig("breaker: {consecutive_failures: 1000}\nreceipts: {enabled: true}\ndialects: {lamini: true, eternalai: true}\n",
		map[string][]*service{"faulty": {breaks}, chatModel: {reasons}}), "faulty")
	faulty.createKey()

	run := exec.CommandContext(t.Context(), "../sdk/run")
	run.Env = append(os.Environ(),
		"OPENAI_BASE_URL="+g.url+"/v1", "OPENAI_API_KEY="+g.secret,
		"FAULTY_BASE_URL="+faulty.url+"/v1", "FAULTY_API_KEY="+faulty.secret, "FAULTY_MOCK="+breaks.url)
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("e2e/sdk/run: %v\n%s", err, out)
	}
}

func TestGoSDKWorksWithContainers(t *testing.T) {
	env := newEnvironment(t)
	g := env.gateway("", map[string][]*service{"m": {env.mock("vllm")}})
	sdk := openai.NewClient(option.WithBaseURL(g.url+"/v1"), option.WithAPIKey(g.secret), option.WithMaxRetries(0))
	params := openai.CompletionNewParams{
		Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of France is")},
		MaxTokens: openai.Int(8), Temperature: openai.Float(0),
	}
	whole, err := sdk.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	stream, text := sdk.Completions.NewStreaming(t.Context(), params), ""
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			text += choice.Text
		}
	}
	if err := stream.Err(); err != nil || text != whole.Choices[0].Text || text == "" {
		t.Errorf("%v: streamed %q, plain %q", err, text, whole.Choices[0].Text)
	}
}
