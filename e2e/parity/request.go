package parity

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// request is a case in one of its two modes.
type request struct {
	Case

	stream  bool
	prompt  prompt
	members string // of the body, after model and prompt
}

// defaultMaxTokens is the contract's default of max_tokens.
const defaultMaxTokens = 16

func newRequest(c Case, stream bool, prompts map[string]prompt, ids []int64) (*request, error) {
	name := c.Prompt
	if name == "" {
		name = "text"
	}
	p, ok := prompts[name]
	if !ok {
		return nil, fmt.Errorf("case %q: there is no prompt %q", c.Name, name)
	}
	members := strings.NewReplacer("$A", fmt.Sprint(ids[0]), "$B", fmt.Sprint(ids[len(ids)-1])).Replace(c.Fields)
	if stream {
		members += `, "stream": true`
	}
	r := &request{Case: c, stream: stream, prompt: p, members: members}
	if !gjson.Valid(r.body("m")) {
		return nil, fmt.Errorf("case %q: its fields are not JSON", c.Name)
	}
	return r, nil
}

// body returns the request for a model.
func (r *request) body(model string) string { return r.bodyWith(model, r.members) }

func (r *request) bodyWith(model, members string) string {
	return fmt.Sprintf(`{"model": %s, "prompt": %s, %s}`, encode(model), r.prompt.raw, members)
}

// worstCase returns the most tokens that the request can use: its prompts, and max_tokens of every completion.
func (r *request) worstCase() int64 {
	body := gjson.Parse(r.body("m"))
	completions := max(1, body.Get("n").Int(), body.Get("best_of").Int())
	maxTokens := int64(defaultMaxTokens)
	if v := body.Get("max_tokens"); v.Exists() && v.Type != gjson.Null {
		maxTokens = max(1, v.Int())
	}
	return r.prompt.maxTokens + r.prompt.count*completions*maxTokens
}

// scored reports whether log-probabilities of the prompt's own tokens are computed. The emulation of best_of requests them
// too.
func (r *request) scored() bool {
	body := gjson.Parse(r.body("m"))
	requested := body.Get("logprobs").Type == gjson.Number || body.Get("best_of").Int() > max(1, body.Get("n").Int())
	return body.Get("prompt_logprobs").Type == gjson.Number || body.Get("echo").Bool() && requested
}

// unboundedAsWritten reports whether the body must not be sent to a backend as it is: older versions of vLLM generate up
// to the whole context if max_tokens is null.
func (r *request) unboundedAsWritten() bool {
	v := gjson.Get(r.body("m"), "max_tokens")
	return v.Exists() && v.Type == gjson.Null
}
