package mockvllm

import (
	"encoding/json"
	"slices"

	"github.com/tidwall/gjson"
)

type chatRequest struct {
	*completionRequest // logprobs and max_tokens are set from the fields below
	conversation

	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
	Logprobs            bool `json:"logprobs"`
	TopLogprobs         *int `json:"top_logprobs"`

	tool      string // the function that the response calls; empty if it is text
	named     bool   // tool_choice names it
	callIDs   []string
	reasoning int // tokens at the beginning of the output that are reasoning
}

// reasoningTokens is how many tokens a model that reasons spends on it.
const reasoningTokens = 6

// parseChat decodes a chat completion, and renders its prompt.
func (s *Server) parseChat(body gjson.Result) (*completionRequest, *failure) {
	r := newRequest()
	c := &chatRequest{completionRequest: r, conversation: newConversation()}
	r.chat, r.AddSpecial = c, false // the template has the special tokens
	fields := known(body, s.spec.chatFields)
	if failure := s.spec.decode(fields, body, c); failure != nil {
		return nil, failure
	}
	r.constraint = constraintOf(fields)
	tools := body.Get("tools")
	switch {
	case c.TopLogprobs != nil && *c.TopLogprobs != 0 && !c.Logprobs:
		return nil, invalidParam("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	case tools.IsArray() && len(c.Tools) == 0:
		return nil, invalidParam("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
	}
	if failure := s.chooseTool(c, body.Get("tool_choice")); failure != nil {
		return nil, failure
	}
	text, failure := s.render(c.conversation)
	if failure != nil {
		return nil, failure
	}
	r.prompts = []prompt{{text: text, isText: true}}
	if c.Logprobs {
		r.Logprobs = new(int)
		if c.TopLogprobs != nil {
			r.Logprobs = c.TopLogprobs
		}
	}
	r.MaxTokens = max(1, s.options.MaxModelLen-len(s.model.encode(text, false))) // what the context leaves
	for _, given := range []*int{c.MaxTokens, c.MaxCompletionTokens} {
		if given != nil {
			r.MaxTokens = *given
		}
	}
	if s.options.Reasoning && !c.DisablesThinking() && c.tool == "" && r.constraint == nil {
		c.reasoning = reasoningTokens
	}
	return r, nil
}

// chooseTool decides which tool the response calls. Without a choice, the mock calls the first tool if the last message
// is a user's, and writes text otherwise, so that a round trip ends.
func (s *Server) chooseTool(c *chatRequest, choice gjson.Result) *failure {
	wanted := choice.Get("function.name").Str
	byUser := len(c.Messages) > 0 && c.Messages[len(c.Messages)-1].Role == "user"
	if len(c.Tools) == 0 || choice.Str == "none" || choice.Str != "required" && wanted == "" && !byUser {
		return nil
	}
	at := slices.IndexFunc(c.Tools, func(tool json.RawMessage) bool {
		return wanted == "" || gjson.GetBytes(tool, "function.name").Str == wanted
	})
	if at < 0 {
		return invalidParam("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
	}
	function := gjson.GetBytes(c.Tools[at], "function")
	c.tool, c.named = function.Get("name").Str, wanted != ""
	schema := function.Get("parameters")
	if !schema.IsObject() {
		schema = gjson.Parse(anyObject)
	}
	c.constraint = &constraint{"json", schema}
	for range c.N {
		c.callIDs = append(c.callIDs, "chatcmpl-tool-"+s.spec.randomID())
	}
	return nil
}

// addText adds a text, which begins at from in the output, to a message or a delta, as reasoning and content.
func (seq *sequence) addText(to object, text string, from int) {
	reasoning := text[:min(max(seq.reasoning-from, 0), len(text))]
	if reasoning != "" {
		to["reasoning"], to["reasoning_content"] = reasoning, reasoning
	}
	if content := text[len(reasoning):]; content != "" || reasoning == "" {
		to["content"] = content
	}
}

func (g *generation) message(seq *sequence) json.RawMessage {
	o := object{"role": "assistant"}
	if g.request.chat.tool != "" {
		o["tool_calls"] = []any{g.toolCall(seq, seq.text, true, "id type function")}
	} else {
		seq.addText(o, seq.text, 0)
	}
	return g.spec.Message.encode(o)
}

// toolCall returns a tool call, or a part of one in an event. The first part has the name.
func (g *generation) toolCall(seq *sequence, arguments string, begins bool, f form) json.RawMessage {
	c := g.request.chat
	function := object{"arguments": arguments}
	o := object{"index": 0}
	if begins {
		o["id"], o["type"], function["name"] = c.callIDs[seq.index], "function", c.tool
	}
	o["function"] = form("name? arguments").encode(function)
	return f.encode(o)
}

// delta returns what an event adds to the message.
func (g *generation) delta(seq *sequence, text string) json.RawMessage {
	o := object{}
	begins := seq.sentEvents == 0
	switch {
	case text == "" && g.spec.Rust:
	case g.request.chat.tool != "" && (text != "" || begins):
		o["tool_calls"] = []any{g.toolCall(seq, text, begins, "id? type? index function")}
	default:
		seq.addText(o, text, seq.sentBytes)
	}
	return g.spec.Delta.encode(o)
}

// chatLogprobs returns the log-probabilities of tokens in the form of a chat completion.
func (g *generation) chatLogprobs(scores []tokenLogprobs) any {
	if g.request.Logprobs == nil || len(scores) == 0 && g.spec.Rust {
		return nil
	}
	one := func(c candidate, top any) json.RawMessage {
		text := g.tokenText(c.id)
		bytes := make([]int, 0, len(text))
		for _, b := range []byte(text) {
			bytes = append(bytes, int(b))
		}
		return form("token logprob bytes top_logprobs!").encode(object{"token": text, "logprob": c.weight, "bytes": bytes, "top_logprobs": top})
	}
	content := []any{}
	for _, p := range scores {
		top := []any{}
		all := p.entries()
		for _, c := range all[:min(len(all), g.topLogprobs)] {
			top = append(top, one(c, nil))
		}
		content = append(content, one(candidate{p.id, p.logprob}, top))
	}
	return form("content").encode(object{"content": content})
}

func (g *generation) roleEvent(seq *sequence) []byte {
	delta := object{"role": "assistant"}
	if !g.spec.Rust {
		delta["content"] = ""
	}
	o := g.head("chat.completion.chunk")
	o["choices"] = []any{g.spec.ChatEventChoice.encode(object{"index": seq.index, "delta": g.spec.Delta.encode(delta)})}
	o["prompt_token_ids"] = g.tokenIDs(g.tokens[0])
	if g.request.continuousUsage() {
		o["usage"] = usage(g.spec.ChatRunning, len(g.tokens[0]), 0, nil)
	}
	return encodeEvent(g.spec.RoleEvent, o)
}
