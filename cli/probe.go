package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"basegate/fleet"
)

// capability is something that vLLM's completions can do and that another server may lack.
type capability struct {
	name   string
	fields map[string]any // beside model, prompt and max_tokens
	has    func(completion gjson.Result) bool
	effect string // of its lack, for the operator
}

// probePrompt is the prompt of the probes; it is long enough to be recognised in an echo.
const probePrompt = "The cat sat on"

var capabilities = []capability{
	{
		"usage", nil,
		func(c gjson.Result) bool {
			return c.Get("usage.prompt_tokens").Int() > 0 && c.Get("usage.completion_tokens").Int() > 0
		},
		"requests are charged by /tokenize, or by bounds if that is missing too",
	},
	{
		"usage in streams",
		map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true}},
		func(c gjson.Result) bool { return c.Get("usage.completion_tokens").Int() > 0 },
		"streams are charged by /tokenize, or by their events if that is missing too",
	},
	{
		"logprobs",
		map[string]any{"logprobs": 1},
		func(c gjson.Result) bool { return c.Get("choices.0.logprobs.token_logprobs.0").Type == gjson.Number },
		"logprobs are missing or have another form, and best_of is refused",
	},
	{
		"prompt_logprobs",
		map[string]any{"prompt_logprobs": 1},
		func(c gjson.Result) bool { return c.Get("choices.0.prompt_logprobs").IsArray() },
		"the field is ignored",
	},
	{
		"echo",
		map[string]any{"echo": true},
		func(c gjson.Result) bool { return strings.HasPrefix(c.Get("choices.0.text").Str, probePrompt) },
		"the field is ignored",
	},
	{
		"n",
		map[string]any{"n": 2, "temperature": 1},
		func(c gjson.Result) bool { return c.Get("choices.#").Int() == 2 },
		"fewer choices than n are returned",
	},
	{
		"usage of n",
		map[string]any{"n": 2, "temperature": 1},
		func(c gjson.Result) bool { return c.Get("usage.completion_tokens").Int() >= 2 },
		"only one of the choices is charged, so n passes budgets",
	},
	{
		"several prompts",
		map[string]any{"prompt": []string{probePrompt, probePrompt}},
		func(c gjson.Result) bool { return c.Get("choices.#").Int() == 2 },
		"fewer choices than prompts are returned",
	},
	{
		"token ids as prompt",
		map[string]any{"prompt": []int{1, 2, 3}},
		func(c gjson.Result) bool { return c.Get("choices.#").Int() == 1 },
		"such prompts fail",
	},
	{
		"return_token_ids",
		map[string]any{"return_token_ids": true},
		func(c gjson.Result) bool { return c.Get("choices.0.token_ids").IsArray() },
		"the field is ignored (in vLLM since 0.10.1)",
	},
}

// probeCapabilities sends a completion of one token for each capability, and reports those that the backend lacks and the
// tokens that this has cost.
func probeCapabilities(ctx context.Context, part, checkpoint string, b *fleet.Backend) []finding {
	var findings []finding
	var spent int64
	for _, c := range capabilities {
		body := map[string]any{"model": checkpoint, "prompt": probePrompt, "max_tokens": 1, "temperature": 0}
		maps.Copy(body, c.fields)
		text, err := json.Marshal(body)
		if err == nil && !b.Serves(text) {
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: such requests%s", c.name, fleet.ToAnotherBackend)})
			continue
		}
		var completion gjson.Result
		if err == nil {
			completion, err = probeCompletion(ctx, b, text, body["stream"] != nil)
		}
		spent += completion.Get("usage.prompt_tokens").Int() + completion.Get("usage.completion_tokens").Int()
		switch {
		case err != nil:
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: %s (%v)", c.name, c.effect, err)})
		case !c.has(completion):
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: %s", c.name, c.effect)})
		}
	}
	detail := fmt.Sprintf("probed %d capabilities, %d missing; %d tokens spent by the server's usage", len(capabilities), len(findings), spent)
	return append(findings, finding{part, checkOK, detail})
}

// probeCompletion returns the completion, or of a stream the last event that has usage.
func probeCompletion(ctx context.Context, b *fleet.Backend, body []byte, stream bool) (gjson.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	response, err := b.Post(ctx, "/v1/completions", body)
	switch {
	case err != nil:
		return gjson.Result{}, err
	case response.Status != http.StatusOK:
		return gjson.Result{}, fmt.Errorf("status %d", response.Status)
	case !stream:
		return gjson.ParseBytes(response.Body), nil
	}
	var last gjson.Result
	for line := range bytes.Lines(response.Body) {
		if data, found := bytes.CutPrefix(line, []byte("data: ")); found {
			if event := gjson.ParseBytes(data); event.Get("usage").IsObject() {
				last = event
			}
		}
	}
	return last, nil
}
