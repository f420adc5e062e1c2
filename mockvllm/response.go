package mockvllm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// object holds the members of a JSON object by name. Its form says which are written, and in what order.
type object map[string]any

// form is a list of names, separated by spaces. A name with ? is left out if the object does not have it, and one with !
// if its value is null; of others null is written, or what follows = in the form.
type form string

func (f form) encode(o object) json.RawMessage {
	dst := []byte{'{'}
	for word := range strings.FieldsSeq(string(f)) {
		word, otherwise, _ := strings.Cut(word, "=")
		name := strings.TrimRight(word, "?!")
		v, present := o[name]
		if strings.HasSuffix(word, "?") && !present || strings.HasSuffix(word, "!") && v == nil {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		if v == nil && otherwise != "" {
			dst = append(dst, otherwise...)
		} else {
			dst = appendValue(dst, v)
		}
	}
	return append(dst, '}')
}

func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return appendString(dst, v)
	case float64:
		return appendFloat(dst, math.Max(v, -9999)) // vLLM limits log-probabilities to what JSON can represent
	case []int:
		return appendInts(dst, v)
	case json.RawMessage:
		return append(dst, v...)
	case []any:
		dst = append(dst, '[')
		for i, item := range v {
			dst = appendValue(appendComma(dst, i), item)
		}
		return append(dst, ']')
	case nil:
		return append(dst, "null"...)
	}
	return fmt.Append(dst, v)
}

func appendComma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}

// responseEncoder encodes responses in the form of one version.
type responseEncoder struct {
	spec        *versionSpec
	model       *languageModel
	job         *job
	fingerprint any // null in some versions
}

func (s *Server) encoder(j *job) *responseEncoder {
	e := &responseEncoder{spec: s.spec, model: s.model, job: j}
	if s.spec.Fingerprint { // as vLLM's, with its version
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(j.model)) // hash.Hash never returns an error
		e.fingerprint = fmt.Sprintf("vllm-%s-%08x", s.version, sum.Sum32())
	}
	return e
}

// head returns the members before the choices.
func (e *responseEncoder) head(kindOfChat string) object {
	o := object{"id": e.job.id, "object": "text_completion", "created": e.job.created, "model": e.job.model}
	if e.job.request.chat != nil {
		o["object"] = kindOfChat
	}
	return o
}

func usage(f form, prompt, completion int) json.RawMessage {
	return f.encode(object{"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion})
}

// completion encodes the body of a plain response.
func (e *responseEncoder) completion(g *generation) []byte {
	o := e.head("chat.completion")
	var choices []any
	for _, seq := range g.sequences {
		choices = append(choices, e.choice(g, seq))
	}
	o["choices"], o["system_fingerprint"] = choices, e.fingerprint
	o["usage"] = usage(e.spec.Usage, e.job.promptTokens(), g.generated)
	if e.job.request.chat == nil {
		return e.spec.Completion.encode(o)
	}
	o["prompt_token_ids"] = e.tokenIDs(e.job.tokens[0])
	return e.spec.Chat.encode(o)
}

func (e *responseEncoder) choice(g *generation, seq *sequence) json.RawMessage {
	r := e.job.request
	o := object{"index": seq.index, "token_ids": e.tokenIDs(seq.output())}
	e.addFinish(o, seq)
	if r.chat != nil {
		o["message"] = e.message(seq)
		o["logprobs"] = e.chatLogprobs(seq.logprobs)
		return e.spec.ChatChoice.encode(o)
	}
	text, scores := seq.text, seq.logprobs
	if r.Echo {
		text, scores = e.withPrompt(g, seq)
	}
	o["text"], o["prompt_token_ids"] = text, e.tokenIDs(e.job.tokens[seq.prompt])
	if r.Logprobs != nil {
		o["logprobs"] = e.logprobs(scores, 0)
	}
	if g.promptLogprobs != nil {
		o["prompt_logprobs"] = e.promptLogprobs(g.promptLogprobs[seq.prompt])
	}
	return e.spec.Choice.encode(o)
}

// addFinish adds how and why an output ended, as far as it has.
func (e *responseEncoder) addFinish(o object, seq *sequence) {
	o["finish_reason"], o["stop_reason"] = nil, nil
	if !seq.finished() || seq.hideFinish {
		return
	}
	o["finish_reason"] = seq.finish
	if c := e.job.request.chat; c != nil && c.tool != "" && !c.named && seq.finish == finishStop {
		o["finish_reason"] = "tool_calls"
	}
	if seq.stopText != nil {
		o["stop_reason"] = *seq.stopText
	} else if seq.stopID != nil {
		o["stop_reason"] = *seq.stopID
	}
	if e.job.request.ReturnWeightVersions { // the name of the weights never changes here
		o["weight_versions"] = json.RawMessage(fmt.Sprintf(`[{"version":"default","start":0,"end":%d}]`, len(seq.output())))
	}
}

func (e *responseEncoder) tokenIDs(tokens []int) any {
	if !e.job.request.ReturnTokenIDs {
		return nil
	}
	return tokens
}

// withPrompt returns the choice's text and log-probabilities with the prompt prepended, for echo. With max_tokens 0 it
// returns the prompt alone, although the engine generated a token.
func (e *responseEncoder) withPrompt(g *generation, seq *sequence) (string, []tokenLogprobs) {
	prompt := e.job.texts[seq.prompt]
	if e.job.request.ReturnTokenIDs && !e.spec.V0 {
		prompt = "" // as in vLLM
	}
	var scores []tokenLogprobs
	if g.promptLogprobs != nil {
		scores = append(scores, g.promptLogprobs[seq.prompt]...)
	}
	if e.job.request.scoresOnly() {
		return prompt, scores
	}
	return prompt + seq.text, append(scores, seq.logprobs...)
}

// tokenText returns the token's name among log-probabilities. A part of a character is U+FFFD.
func (e *responseEncoder) tokenText(id int) string {
	if e.job.request.TokensAsIDs {
		return "token_id:" + strconv.Itoa(id)
	}
	return e.model.decode([]int{id})
}

// logprobs returns the logprobs object, four parallel lists. text_offset counts the characters of token names, starting
// at offset.
func (e *responseEncoder) logprobs(scores []tokenLogprobs, offset int) json.RawMessage {
	offsets, values, tokens, top := []int{}, []any{}, []any{}, []any{}
	for _, p := range scores {
		name := e.tokenText(p.id)
		offsets, tokens = append(offsets, offset), append(tokens, name)
		offset += utf8.RuneCountInString(name)
		if p.first {
			values, top = append(values, nil), append(top, nil)
		} else {
			values, top = append(values, p.logprob), append(top, e.topLogprobs(p))
		}
	}
	return e.spec.Logprobs.encode(object{"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": top})
}

// topLogprobs returns the most likely tokens at one position. vLLM keys them by text in a Python dict: of tokens with
// equal text the first one's place and the last one's value remain.
func (e *responseEncoder) topLogprobs(p tokenLogprobs) json.RawMessage {
	var names []string
	values := make(map[string]float64)
	for _, c := range p.entries() {
		name := e.tokenText(c.id)
		if _, repeated := values[name]; !repeated {
			names = append(names, name)
		}
		values[name] = c.weight
	}
	dst := []byte{'{'}
	for i, name := range names {
		dst = appendValue(append(appendString(appendComma(dst, i), name), ':'), values[name])
	}
	return append(dst, '}')
}

// entries returns the token itself, then the most likely others: the order of vLLM's dict.
func (p tokenLogprobs) entries() []candidate {
	all := []candidate{{p.id, p.logprob}}
	for _, c := range p.top {
		if c.id != p.id {
			all = append(all, c)
		}
	}
	return all
}

func (e *responseEncoder) promptLogprobs(scores []tokenLogprobs) []any {
	var all []any
	for _, p := range scores {
		if p.first {
			all = append(all, nil)
			continue
		}
		dst := []byte{'{'}
		for i, c := range p.entries() {
			dst = fmt.Appendf(appendComma(dst, i), `"%d":`, c.id)
			dst = append(dst, form("logprob rank decoded_token").encode(object{
				"logprob": c.weight, "rank": p.rankOf(c), "decoded_token": e.model.decode([]int{c.id}),
			})...)
		}
		all = append(all, json.RawMessage(append(dst, '}')))
	}
	return all
}

func (p tokenLogprobs) rankOf(c candidate) int {
	for i, other := range p.top {
		if other.id == c.id && c.id != p.id {
			return i + 1
		}
	}
	return p.rank
}

// event encodes the stream event with what the sequence gained since its last one, and marks that as sent.
func (e *responseEncoder) event(g *generation, seq *sequence) []byte {
	r := e.job.request
	end, first := seq.sendable(), seq.sentEvents == 0
	text, scores := seq.text[seq.sentBytes:end], seq.logprobs[min(seq.sentTokens, len(seq.logprobs)):]
	gained := utf8.RuneCountInString(text)
	o, choice := e.head("chat.completion.chunk"), object{"index": seq.index, "token_ids": e.tokenIDs(seq.output()[seq.sentTokens:])}
	e.addFinish(choice, seq)
	counted, choiceForm, eventForm := e.spec.RunningUsage, e.spec.EventChoice, e.spec.Event
	if r.chat != nil {
		counted, choiceForm, eventForm = e.spec.ChatRunning, e.spec.ChatEventChoice, e.spec.ChatEvent
		choice["delta"], choice["logprobs"] = e.delta(seq, text), e.chatLogprobs(scores)
		if !seq.finished() {
			delete(choice, "stop_reason")
		} else if _, told := choice["weight_versions"]; !told {
			choice["weight_versions"] = nil
		}
	} else {
		if r.Echo && first {
			text, scores = e.withPrompt(g, &sequence{prompt: seq.prompt, text: text, logprobs: scores})
			if e.spec.Rust {
				scores = nil
			}
			gained = e.width(text, scores)
		}
		choice["text"], choice["prompt_token_ids"] = text, nil
		if r.Logprobs != nil && (len(scores) > 0 || !e.spec.Rust) {
			choice["logprobs"] = e.logprobs(scores, seq.sentChars)
		}
		if first && r.Echo && !e.spec.Rust {
			choice["prompt_token_ids"] = e.job.tokens[seq.prompt] // vLLM does so whether or not the request asks for ids
		} else if first {
			choice["prompt_token_ids"] = e.tokenIDs(e.job.tokens[seq.prompt])
		}
	}
	o["choices"] = []any{choiceForm.encode(choice)}
	if r.continuousUsage() {
		o["usage"] = usage(counted, len(e.job.tokens[seq.prompt]), len(seq.output()))
	}
	if e.fingerprint != nil && !r.StreamOptions.IncludeUsage && choice["finish_reason"] != nil {
		o["system_fingerprint"] = e.fingerprint
	}
	seq.sentBytes, seq.sentChars, seq.sentTokens = end, seq.sentChars+gained, len(seq.output())
	seq.sentEvents++
	return encodeEvent(eventForm, o)
}

func encodeEvent(f form, o object) []byte {
	return fmt.Appendf(nil, "data: %s\n\n", f.encode(o))
}

// opening encodes the event before the first token: a role, or what the Rust frontend tells of the prompt. It is nil if
// there is none.
func (e *responseEncoder) opening(g *generation, seq *sequence) []byte {
	r := e.job.request
	switch {
	case seq.sentEvents > 0:
		return nil
	case r.chat != nil:
		return e.roleEvent(seq)
	case !e.spec.Rust || !r.Echo && !r.ReturnTokenIDs:
		return nil
	}
	empty := &sequence{index: seq.index, prompt: seq.prompt, job: seq.job, history: e.job.tokens[seq.prompt], promptLen: seq.promptLen}
	event := e.event(g, empty)
	seq.sentEvents, seq.sentChars = empty.sentEvents, empty.sentChars
	return event
}

// width returns how far an echoed text advances text_offset: by its characters, or by those of its tokens if they are
// listed, among them begin-of-text.
func (e *responseEncoder) width(echo string, scores []tokenLogprobs) int {
	if e.job.request.Logprobs == nil {
		return utf8.RuneCountInString(echo)
	}
	width := 0
	for _, p := range scores {
		width += utf8.RuneCountInString(e.tokenText(p.id))
	}
	return width
}

// usageEvent encodes the additional last event of include_usage.
func (e *responseEncoder) usageEvent(g *generation) []byte {
	o := e.head("chat.completion.chunk")
	o["choices"], o["system_fingerprint"] = []any{}, e.fingerprint
	o["usage"] = usage(e.spec.LastUsage, e.job.promptTokens(), g.generated)
	return encodeEvent(e.spec.LastEvent, o)
}
