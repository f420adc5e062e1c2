package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tidwall/gjson"

	"basegate/budget/usage"
	"basegate/fleet"
)

// capability is something that vLLM's completions can do and that another server may lack.
type capability struct {
	name   string
	fields string // beside model, prompt, max_tokens and temperature, as JSON
	path   string // of a number in the completion, for gjson
	least  int64  // what the number is if the backend can do it
	effect string // of its lack, for the operator
}

// in reports whether a completion shows the capability.
func (c capability) in(completion gjson.Result) bool { return completion.Get(c.path).Int() >= c.least }

// probePrompt is the prompt of the probes; it is long enough to be recognised in an echo.
const probePrompt = "The cat sat on"

var capabilities = []capability{
	{
		"usage", `{}`, `[usage.prompt_tokens,usage.completion_tokens].#(>0)#|#`, 2,
		"requests are charged by /tokenize, or by bounds if that is missing too",
	},
	{
		"usage in streams", `{"stream": true, "stream_options": {"include_usage": true}}`, `usage.completion_tokens`, 1,
		"streams are charged by /tokenize, or by their events if that is missing too",
	},
	{
		"logprobs", `{"logprobs": 1}`, `choices.0.logprobs.token_logprobs.#(<=0)#|#`, 1,
		"logprobs are missing or have another form, and best_of is refused",
	},
	{"prompt_logprobs", `{"prompt_logprobs": 1}`, `choices.0.prompt_logprobs.#`, 1, "the field is ignored"},
	{"echo", `{"echo": true}`, `choices.#(text%"` + probePrompt + `*")#|#`, 1, "the field is ignored"},
	{"n", `{"n": 2, "temperature": 1}`, `choices.#`, 2, "fewer choices than n are returned"},
	{
		"usage of n", `{"n": 2, "temperature": 1}`, `usage.completion_tokens`, 2,
		"only one of the choices is charged, so n passes budgets",
	},
	{
		"several prompts", `{"prompt": ["` + probePrompt + `", "` + probePrompt + `"]}`, `choices.#`, 2,
		"fewer choices than prompts are returned",
	},
	{"token ids as prompt", `{"prompt": [1, 2, 3]}`, `choices.#`, 1, "such prompts fail"},
	{
		"return_token_ids", `{"return_token_ids": true}`, `choices.0.token_ids.#`, 1,
		"the field is ignored (in vLLM since 0.10.1)",
	},
}

// probeCapabilities sends a completion of one token for each capability, and reports those that the backend lacks and the
// tokens that this has cost.
func probeCapabilities(ctx context.Context, part, checkpoint string, b *fleet.Backend) []finding {
	var findings []finding
	var spent int64
	var reports usage.Reporting
	for _, c := range capabilities {
		body := map[string]any{"model": checkpoint, "prompt": probePrompt, "max_tokens": 1, "temperature": 0}
		err := json.Unmarshal([]byte(c.fields), &body) // which keeps the other fields
		var text []byte
		if err == nil {
			text, err = json.Marshal(body)
		}
		if err == nil && !b.Serves(text) {
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: such requests%s", c.name, fleet.ToAnotherBackend)})
			continue
		}
		var completion gjson.Result
		if err == nil {
			completion, err = probeCompletion(ctx, b, text, body["stream"] != nil)
		}
		spent += completion.Get("usage.prompt_tokens").Int() + completion.Get("usage.completion_tokens").Int()
		reports.CachedTokens = reports.CachedTokens || completion.Get("usage.prompt_tokens_details.cached_tokens").Exists()
		reports.Metrics = reports.Metrics || completion.Get("metrics").IsObject()
		switch {
		case err != nil:
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: %s (%v)", c.name, c.effect, err)})
		case !c.in(completion):
			findings = append(findings, finding{part, checkWarning, fmt.Sprintf("lacks %s: %s", c.name, c.effect)})
		}
	}
	detail := fmt.Sprintf("probed %d capabilities, %d missing; %d tokens spent by the server's usage", len(capabilities), len(findings), spent)
	return append(append(findings, finding{part, checkOK, detail}), missingReports(part, reports)...)
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
