package mockvllm

import (
	"fmt"
	"slices"
	"strings"
)

// chatRequest is what only a chat completion has.
type chatRequest struct {
	conversation *conversation
	maxTokensSet bool
	tool         string // the function that the response calls; empty if it is text
	named        bool   // tool_choice names it
	reasoning    int    // tokens at the beginning of the output that are reasoning
	callIDs      []string
}

// reasoningTokens is how many tokens a model that reasons spends on it.
const reasoningTokens = 6

// parseChat coerces the fields of a chat completion, and renders its prompt.
func (s *Server) parseChat(body value) (*completionRequest, *failure) {
	if body.kind != objectKind {
		return s.spec.parseCompletion(body) // the error is the same
	}
	r := &completionRequest{n: 1, sampling: sampling{temperature: 1, topP: 1, repetition: 1}, chat: &chatRequest{}}
	f := &fieldReader{body: known(body, s.spec.chatFields), whole: body}
	if s.spec.modelRequired {
		f.require("model")
	}
	readField(f, "model", true, asString, &r.model)
	r.chat.conversation = s.spec.conversation(f)
	s.spec.readChatOutput(f, r)
	if len(f.errs) > 0 {
		return nil, s.spec.schemaFailure(f.errs)
	}
	if failure := s.spec.checkChat(body, r); failure != nil {
		return nil, failure
	}
	if failure := s.readToolChoice(body, r); failure != nil {
		return nil, failure
	}
	prompt, failure := s.render(r.chat.conversation)
	if failure != nil {
		return nil, failure
	}
	r.prompts = append(r.prompts, renderedPrompt(prompt))
	if !r.chat.maxTokensSet { // what the context leaves
		r.maxTokens = max(1, s.maxModelLen-len(s.model.encode(prompt, false)))
	}
	if s.options.Reasoning && !r.chat.conversation.disablesThinking && r.chat.tool == "" && r.constraint() == nil {
		r.chat.reasoning = reasoningTokens
	}
	return r, nil
}

// renderedPrompt is a text prompt to which the tokenizer adds no special tokens, because the template has.
func renderedPrompt(text string) prompt { return prompt{text: text, isText: true} }

// readChatOutput reads the fields about the output.
func (s *versionSpec) readChatOutput(f *fieldReader, r *completionRequest) {
	f.integer("n", true, &r.n)
	r.chat.maxTokensSet = f.integer("max_tokens", true, &r.maxTokens)
	if f.integer("max_completion_tokens", true, &r.maxTokens) {
		r.chat.maxTokensSet = true
	}
	logprobs, top := false, 0
	f.boolean("logprobs", true, &logprobs)
	f.integer("top_logprobs", true, &top)
	if logprobs {
		r.logprobs = &top
	}
	s.readSharedFields(f, r)
}

// checkChat makes vLLM's checks of fields against each other.
func (*versionSpec) checkChat(body value, r *completionRequest) *failure {
	given := func(name string) bool {
		v, present := body.member(name)
		return present && v.kind != nullKind
	}
	if param, message := r.constraintProblem(); message != "" {
		return invalidParam(param, "%s", message)
	}
	top, _ := body.member("top_logprobs")
	switch {
	case r.hasStreamOptions && !r.stream:
		return invalidParam("stream_options", "Stream options can only be defined when `stream=True`.")
	case top.kind == numberKind && top.text != "0" && r.logprobs == nil:
		return invalidParam("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	case given("tools") && len(r.chat.conversation.tools) == 0:
		return invalidParam("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
	case given("tool_choice") && !given("tools"):
		if choice, _ := body.member("tool_choice"); choice.text != "none" {
			return invalidParam("tool_choice", "When using `tool_choice`, `tools` must be set.")
		}
	}
	return nil
}

// readToolChoice decides which tool the response calls. Without a choice, the mock calls the first tool if the last message
// is a user's, and writes text otherwise, so that a round trip ends.
func (s *Server) readToolChoice(body value, r *completionRequest) *failure {
	c := r.chat.conversation
	if len(c.tools) == 0 {
		return nil
	}
	choice, _ := body.member("tool_choice")
	wanted := ""
	switch {
	case choice.kind == objectKind:
		function, _ := choice.member("function")
		name, _ := function.member("name")
		wanted, r.chat.named = name.text, true
	case choice.text == "none":
		return nil
	case choice.text != "required" && (len(c.messages) == 0 || c.messages[len(c.messages)-1].role != "user"):
		return nil
	}
	for _, tool := range c.tools {
		function, _ := tool.member("function")
		name, _ := function.member("name")
		if wanted != "" && name.text != wanted {
			continue
		}
		parameters, _ := function.member("parameters")
		if parameters.kind != objectKind {
			parameters = value{kind: objectKind, members: []member{{"type", value{kind: stringKind, text: "object"}}}}
		}
		r.chat.tool, r.constraints = name.text, []constraint{{kind: constraintJSON, schema: parameters}}
		for range r.n {
			r.chat.callIDs = append(r.chat.callIDs, "chatcmpl-tool-"+s.spec.randomID())
		}
		return nil
	}
	return invalidParam("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
}

// encodeChat encodes a conversation for /tokenize.
func (s *Server) encodeChat(f *fieldReader) ([]int, *failure) {
	c := s.spec.conversation(f)
	if !s.spec.tokenizesTools {
		c.tools = nil
	}
	if len(f.errs) > 0 {
		return nil, s.spec.schemaFailure(f.errs)
	}
	prompt, failure := s.render(c)
	if failure != nil {
		return nil, failure
	}
	special := false
	f.boolean("add_special_tokens", false, &special)
	return s.model.encode(prompt, special), nil
}

// finishOf returns the finish reason of an output.
func (e *responseEncoder) finishOf(seq *sequence) string {
	if c := e.job.request.chat; c != nil && c.tool != "" && !c.named && seq.finish == finishStop {
		return "tool_calls"
	}
	return seq.finish
}

// splitReasoning returns the parts of a text whose first tokens are reasoning. bytes is where the text begins in the output.
func (e *responseEncoder) splitReasoning(seq *sequence, text string, from int) (reasoning, content string) {
	end := seq.reasoningEnd(e)
	cut := min(max(end-from, 0), len(text))
	return text[:cut], text[cut:]
}

// reasoningEnd returns the offset in the output's text at which the reasoning ends.
func (seq *sequence) reasoningEnd(e *responseEncoder) int {
	tokens := seq.output()
	n := e.job.request.chat.reasoning
	if n == 0 {
		return 0
	}
	if len(tokens) < n {
		return len(seq.text)
	}
	d := decoder{tokenizer: e.model.tokenizer, skipSpecial: true}
	var text strings.Builder
	for _, id := range tokens[:n] {
		text.WriteString(d.next(id))
	}
	return min(text.Len(), len(seq.text))
}

// appendChatChoice appends a choice of a plain chat completion.
func (e *responseEncoder) appendChatChoice(dst []byte, seq *sequence) []byte {
	c := e.job.request.chat
	reasoning, content := e.splitReasoning(seq, seq.text, 0)
	dst = fmt.Appendf(dst, `{"index":%d,"message":{"role":"assistant","content":`, seq.index)
	if c.tool != "" || (content == "" && reasoning != "") {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, content)
	}
	dst = append(dst, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	switch {
	case c.tool != "":
		dst = append(dst, `,"tool_calls":[`...)
		dst = append(e.appendToolCall(dst, seq, seq.text, true, false), ']')
	case e.spec.emptyToolCalls:
		dst = append(dst, `,"tool_calls":[]`...)
	}
	dst = append(dst, `,"`+e.spec.reasoningField+`":`...)
	if reasoning == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, reasoning)
	}
	dst = append(dst, `},"logprobs":`...)
	dst = e.appendChatLogprobs(dst, seq.logprobs)
	dst = e.appendFinish(dst, seq)
	if e.spec.tokenIDs {
		dst = e.appendTokenIDs(append(dst, `,"token_ids":`...), seq.output())
	}
	if e.spec.routedExperts {
		dst = append(dst, `,"routed_experts":null`...)
	}
	return append(e.appendWeightVersions(dst, seq), '}')
}

// appendToolCall appends a tool call, or a part of one in an event. begins says that id and name belong to it.
func (e *responseEncoder) appendToolCall(dst []byte, seq *sequence, arguments string, begins, inEvent bool) []byte {
	c := e.job.request.chat
	dst = append(dst, '{')
	if begins {
		dst = appendString(append(dst, `"id":`...), c.callIDs[seq.index])
		dst = append(dst, `,"type":"function",`...)
	}
	if inEvent {
		dst = append(dst, `"index":0,`...)
	}
	dst = append(dst, `"function":{`...)
	if begins {
		dst = append(appendString(append(dst, `"name":`...), c.tool), ',')
	}
	return append(appendString(append(dst, `"arguments":`...), arguments), "}}"...)
}

// appendChatLogprobs appends the log-probabilities of tokens in the form of a chat completion.
func (e *responseEncoder) appendChatLogprobs(dst []byte, scores []tokenLogprobs) []byte {
	if e.job.request.logprobs == nil || len(scores) == 0 && e.spec.rust {
		return append(dst, "null"...)
	}
	dst = append(dst, `{"content":[`...)
	one := func(c candidate) {
		text := e.tokenText(c.id)
		dst = appendString(append(dst, `{"token":`...), text)
		dst = appendFloat(append(dst, `,"logprob":`...), clampLogprob(c.weight))
		bytes := make([]int, 0, len(text))
		for _, b := range []byte(text) {
			bytes = append(bytes, int(b))
		}
		dst = appendInts(append(dst, `,"bytes":`...), bytes)
	}
	for i, p := range scores {
		dst = appendComma(dst, i)
		one(candidate{p.id, p.logprob})
		dst = append(dst, `,"top_logprobs":[`...)
		top := slices.Clone(p.entries())
		for j, c := range top[:min(len(top), e.job.topLogprobs)] {
			dst = appendComma(dst, j)
			one(c)
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}"...)
}

// roleEvent encodes the first event of a choice.
func (e *responseEncoder) roleEvent(seq *sequence) []byte {
	dst := append(e.appendEventHead([]byte("data: ")), `,"choices":[{"index":`...)
	delta := `{"role":"assistant","content":""}`
	if e.spec.rust {
		delta = `{"role":"assistant"}`
	}
	dst = fmt.Appendf(dst, `%d,"delta":%s,"logprobs":null,"finish_reason":null}]`, seq.index, delta)
	dst = e.appendRunningUsage(dst, 0)
	if e.spec.tokenIDs {
		dst = e.appendTokenIDs(append(dst, `,"prompt_token_ids":`...), e.job.tokens[0])
	}
	if e.spec.promptText {
		dst = append(dst, `,"prompt_text":null`...)
	}
	return e.endEvent(dst)
}

// appendRunningUsage appends the usage so far to an event of a chat completion, if it is asked for.
func (e *responseEncoder) appendRunningUsage(dst []byte, completion int) []byte {
	if r := e.job.request; !r.includeUsage || !r.continuousUsage {
		return dst
	}
	dst = e.appendTokenCounts(append(dst, `,"usage":`...), len(e.job.tokens[0]), completion)
	if e.spec.usageCompletion {
		dst = append(dst[:len(dst)-1], `,"completion_tokens_details":null}`...)
	}
	return dst
}

// chatEvent encodes the event with what the sequence gained since its last one, and marks that as sent.
func (e *responseEncoder) chatEvent(seq *sequence, fingerprinted bool) []byte {
	end := seq.sendable()
	text, scores := seq.text[seq.sentBytes:end], seq.logprobs[min(seq.sentTokens, len(seq.logprobs)):]
	dst := append(e.appendEventHead([]byte("data: ")), `,"choices":[{"index":`...)
	dst = fmt.Appendf(dst, `%d,"delta":`, seq.index)
	dst = e.appendDelta(dst, seq, text)
	dst = e.appendChatLogprobs(append(dst, `,"logprobs":`...), scores)
	if seq.finished() {
		dst = e.appendFinish(dst, seq)
	} else {
		dst = append(dst, `,"finish_reason":null`...)
	}
	if e.spec.tokenIDs {
		dst = e.appendTokenIDs(append(dst, `,"token_ids":`...), seq.output()[seq.sentTokens:])
	}
	if seq.finished() {
		dst = e.appendWeightVersions(dst, seq)
	}
	dst = append(dst, `}]`...)
	dst = e.appendRunningUsage(dst, len(seq.output()))
	if fingerprinted && seq.finished() && !seq.hideFinish {
		dst = appendString(append(dst, `,"system_fingerprint":`...), e.fingerprint)
	}
	dst = e.appendTransferParams(dst)
	seq.sentBytes, seq.sentTokens = end, len(seq.output())
	seq.sentEvents++
	return e.endEvent(dst)
}

// appendDelta appends what an event adds to the message.
func (e *responseEncoder) appendDelta(dst []byte, seq *sequence, text string) []byte {
	if e.job.request.chat.tool != "" {
		begins := seq.sentEvents == 0
		switch {
		case text == "" && e.spec.rust:
			return append(dst, "{}"...)
		case text == "" && !begins:
			return append(dst, `{"content":""}`...)
		}
		dst = append(dst, `{"tool_calls":[`...)
		return append(e.appendToolCall(dst, seq, text, begins, true), "]}"...)
	}
	reasoning, content := e.splitReasoning(seq, text, seq.sentBytes)
	if dst = append(dst, '{'); text == "" && e.spec.rust {
		return append(dst, '}')
	}
	if reasoning != "" {
		dst = appendString(append(dst, `"`+e.spec.reasoningField+`":`...), reasoning)
		if content == "" {
			return append(dst, '}')
		}
		dst = append(dst, ',')
	}
	return append(appendString(append(dst, `"content":`...), content), '}')
}
