package parity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// request is a case in one of its two modes.
type request struct {
	Case

	stream  bool
	prompt  prompt
	members string       // of the body, after model and prompt
	asJSON  gjson.Result // the body
}

// defaultMaxTokens is the contract's default of max_tokens.
const defaultMaxTokens = 16

func newRequest(c Case, stream bool, prompts map[string]prompt, ids []int64) *request {
	p := prompts[cmp.Or(c.Prompt, "text")]
	members := strings.NewReplacer("$A", fmt.Sprint(ids[0]), "$B", fmt.Sprint(ids[len(ids)-1])).Replace(c.Fields)
	if stream {
		members += `, "stream": true`
	}
	r := &request{Case: c, stream: stream, prompt: p, members: members}
	r.asJSON = gjson.Parse(r.body("m", members))
	return r
}

// body returns the request for a model, with its members or others.
func (r *request) body(model, members string) string {
	return fmt.Sprintf(`{"model": %s, "prompt": %s, %s}`, encode(model), r.prompt.raw, members)
}

// worstCase returns the most tokens that the request can use: its prompts, and max_tokens of every completion.
func (r *request) worstCase() int64 {
	body := r.asJSON
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
	body := r.asJSON
	requested := body.Get("logprobs").Type == gjson.Number || body.Get("best_of").Int() > max(1, body.Get("n").Int())
	return body.Get("prompt_logprobs").Type == gjson.Number || body.Get("echo").Bool() && requested
}

// unboundedAsWritten reports whether the body must not be sent to a backend as it is: older versions of vLLM generate up
// to the whole context if max_tokens is null.
func (r *request) unboundedAsWritten() bool {
	v := r.asJSON.Get("max_tokens")
	return v.Exists() && v.Type == gjson.Null
}

// specialTokens bounds the special tokens that a tokenizer adds to a prompt.
const specialTokens = 4

// prompt is a built-in prompt. Reports name it and never show it.
type prompt struct {
	raw       string // as JSON
	count     int64  // of prompts
	maxTokens int64  // upper bound of the tokens of all of them
}

const (
	shortText   = "The capital of France is"
	otherText   = "Once upon a time"
	escapesText = `"P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148, \"na\u00efve\" \ud83d\ude42\n\t\\ 🦊\u0001"`
	longText    = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "
	longRepeats = 8
)

// builtinPrompts returns the prompts by name. ids are the token ids of shortText.
func builtinPrompts(ids []int64) map[string]prompt {
	half := max(1, len(ids)/2)
	return map[string]prompt{
		"text":       textPrompt(shortText),
		"texts":      textPrompt(shortText, otherText),
		"long":       textPrompt(strings.Repeat(longText, longRepeats)),
		"empty":      textPrompt(""),
		"escapes":    {escapesText, 1, int64(len(escapesText)) + specialTokens}, // escapes are longer than what they stand for
		"ids":        {encode(ids), 1, int64(len(ids))},
		"id arrays":  {encode([][]int64{ids, ids[:half]}), 2, int64(len(ids) + half)},
		"unknown id": {"[2147483647]", 1, 1},
	}
}

// textPrompt returns a prompt of one text, or of several as an array. A byte-level tokenizer makes at most one token of a byte.
func textPrompt(texts ...string) prompt {
	p := prompt{raw: encode(texts), count: int64(len(texts))}
	if len(texts) == 1 {
		p.raw = encode(texts[0])
	}
	for _, text := range texts {
		p.maxTokens += int64(len(text)) + specialTokens
	}
	return p
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and integers can always be encoded
	}
	return string(text)
}
