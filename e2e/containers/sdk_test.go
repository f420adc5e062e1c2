//go:build containers

package containers_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// Whoever has used OpenAI's SDK changes the address and the key, and nothing else: the suites of e2e/sdk, in Python and
// in Node, against gateways that are containers.
func TestTheOfficialSDKsWorkAgainstContainers(t *testing.T) {
	s := newSite(t)
	models := map[string][]*box{}
	for _, id := range []string{"llama-8b", "llama-405b", "trinity-base"} {
		models[id] = []*box{s.mock("mock-"+id, "--model", checkpoints[id], "--first-delay", "50ms", "--token-delay", "15ms")}
	}
	g := s.gateway("", models)
	breaks := s.mock("breaks")
	faulty := s.serve(s.configure("breaker: {consecutive_failures: 1000}\n", map[string][]*box{"faulty": {breaks}}), "faulty")
	faulty.makeKey()

	run := exec.CommandContext(t.Context(), "../sdk/run")
	run.Env = append(os.Environ(),
		"OPENAI_BASE_URL="+g.url+"/v1", "OPENAI_API_KEY="+g.secret,
		"FAULTY_BASE_URL="+faulty.url+"/v1", "FAULTY_API_KEY="+faulty.secret, "FAULTY_MOCK="+breaks.url)
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("e2e/sdk/run: %v\n%s", err, out)
	}
}

func TestTheGoSDKWorksAgainstContainers(t *testing.T) {
	s := newSite(t)
	g := s.gateway("", map[string][]*box{"m": {s.mock("vllm")}})
	sdk := openai.NewClient(option.WithBaseURL(g.url+"/v1"), option.WithAPIKey(g.secret), option.WithMaxRetries(0))
	ask := openai.CompletionNewParams{
		Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of France is")},
		MaxTokens: openai.Int(8), Temperature: openai.Float(0),
	}
	whole, err := sdk.Completions.New(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	stream, text := sdk.Completions.NewStreaming(t.Context(), ask), ""
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			text += choice.Text
		}
	}
	if err := stream.Err(); err != nil || text != whole.Choices[0].Text || text == "" {
		t.Errorf("%v: streamed %q, plain %q", err, text, whole.Choices[0].Text)
	}
}
