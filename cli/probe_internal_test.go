package cli

import (
	"testing"

	"github.com/tidwall/gjson"
)

func TestCapabilitiesAreSeenInTheCompletion(t *testing.T) {
	for name, completions := range map[string]struct{ has, lacks string }{
		"usage":            {`{"usage":{"prompt_tokens":4,"completion_tokens":1}}`, `{"usage":{"prompt_tokens":0,"completion_tokens":1}}`},
		"usage in streams": {`{"usage":{"completion_tokens":1}}`, `{"usage":{}}`},
		"logprobs": {
			`{"choices":[{"logprobs":{"token_logprobs":[-0.5]}}]}`, `{"choices":[{"logprobs":{"content":[{"logprob":-0.5}],"token_logprobs":[null]}}]}`,
		},
		"prompt_logprobs":     {`{"choices":[{"prompt_logprobs":[null,{"1":{}}]}]}`, `{"choices":[{"prompt_logprobs":null}]}`},
		"echo":                {`{"choices":[{"text":"The cat sat on the"}]}`, `{"choices":[{"text":" the. The cat sat on"}]}`},
		"n":                   {`{"choices":[{},{}]}`, `{"choices":[{}]}`},
		"usage of n":          {`{"usage":{"completion_tokens":2}}`, `{"usage":{"completion_tokens":1}}`},
		"several prompts":     {`{"choices":[{},{}]}`, `{"choices":[{}]}`},
		"token ids as prompt": {`{"choices":[{}]}`, `{"choices":[]}`},
		"return_token_ids":    {`{"choices":[{"token_ids":[7]}]}`, `{"choices":[{"token_ids":null}]}`},
	} {
		for _, c := range capabilities {
			if c.name != name {
				continue
			}
			if !c.in(gjson.Parse(completions.has)) || c.in(gjson.Parse(completions.lacks)) || c.in(gjson.Result{}) {
				t.Errorf("%s: want it in %s only, not in %s, and not in nothing", name, completions.has, completions.lacks)
			}
		}
	}
	if len(capabilities) != 10 {
		t.Errorf("there are %d capabilities, want the 10 that are tested", len(capabilities))
	}
}
