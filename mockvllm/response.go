package mockvllm

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
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

// head returns the members before the choices.
func (g *generation) head(kindOfChat string) object {
	o := object{"id": g.id, "object": "text_completion", "created": g.created, "model": g.served}
	if g.request.chat != nil {
		o["object"] = kindOfChat
	}
	return o
}

func usage(f form, prompt, completion int, details any) json.RawMessage {
	return f.encode(object{
		"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, "prompt_tokens_details": details,
	})
}

// promptDetails returns prompt_tokens_details; nil without the flag, and in older versions if no token was cached.
func (g *generation) promptDetails() any {
	if !g.report.tokens || g.report.cached == 0 && g.spec.PromptDetails == "cached_tokens" {
		return nil
	}
	return g.spec.PromptDetails.encode(object{"cached_tokens": g.report.cached, "created_cache_tokens": g.report.created})
}

// metrics returns the engine's times, nil without the flag or for several outputs. Those that are undefined are null in a plain
// response, and missing in a stream.
func (g *generation) metrics(f form) any {
	r := &g.report
	if !r.times || len(g.sequences) != 1 || r.first.IsZero() {
		return nil
	}
	milliseconds := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	took := r.last.Sub(r.first)
	o := object{
		"time_to_first_token_ms": milliseconds(r.first.Sub(r.scheduled)), "generation_time_ms": milliseconds(took),
		"queue_time_ms": milliseconds(r.scheduled.Sub(r.arrived)), "mean_itl_ms": nil, "tokens_per_second": nil,
	}
	if g.generated > 1 {
		o["mean_itl_ms"] = milliseconds(took) / float64(g.generated-1)
	}
	if whole := r.last.Sub(r.scheduled).Seconds(); whole > 0 {
		o["tokens_per_second"] = float64(g.generated) / whole
	}
	return f.encode(o)
}

func (g *generation) completion() []byte {
	o := g.head("chat.completion")
	var choices []any
	for _, seq := range g.sequences {
		choices = append(choices, g.choice(seq))
	}
	o["choices"], o["system_fingerprint"] = choices, g.fingerprint
	o["usage"] = usage(g.spec.Usage, g.promptTokens(), g.generated, g.promptDetails())
	o["metrics"] = g.metrics("time_to_first_token_ms generation_time_ms queue_time_ms mean_itl_ms tokens_per_second")
	if g.request.chat == nil {
		return g.spec.Completion.encode(o)
	}
	o["prompt_token_ids"] = g.tokenIDs(g.tokens[0])
	return g.spec.Chat.encode(o)
}

func (g *generation) choice(seq *sequence) json.RawMessage {
	r := g.request
	o := object{"index": seq.index, "token_ids": g.tokenIDs(seq.output())}
	g.addFinish(o, seq)
	if r.chat != nil {
		o["message"] = g.message(seq)
		o["logprobs"] = g.chatLogprobs(seq.logprobs)
		return g.spec.ChatChoice.encode(o)
	}
	text, scores := seq.text, seq.logprobs
	if r.Echo {
		text, scores = g.withPrompt(seq)
	}
	o["text"], o["prompt_token_ids"] = text, g.tokenIDs(g.tokens[seq.prompt])
	if r.Logprobs != nil {
		o["logprobs"], _ = g.logprobs(scores, 0)
	}
	if g.promptLogprobs != nil {
		o["prompt_logprobs"] = g.encodePrompt(g.promptLogprobs[seq.prompt])
	}
	return g.spec.Choice.encode(o)
}

// addFinish adds how and why an output ended, as far as it has.
func (g *generation) addFinish(o object, seq *sequence) {
	o["finish_reason"], o["stop_reason"] = nil, nil
	if !seq.finished() || seq.hideFinish {
		return
	}
	o["finish_reason"], o["stop_reason"] = seq.finish, seq.stopReason
	if c := g.request.chat; c != nil && c.tool != "" && !c.named && seq.finish == finishStop {
		o["finish_reason"] = "tool_calls"
	}
	if g.request.ReturnWeightVersions { // the name of the weights never changes here
		o["weight_versions"] = json.RawMessage(fmt.Sprintf(`[{"version":"default","start":0,"end":%d}]`, len(seq.output())))
	}
}

func (g *generation) tokenIDs(tokens []int) any {
	if !g.request.ReturnTokenIDs {
		return nil
	}
	return tokens
}

// withPrompt returns the choice's text and log-probabilities with the prompt prepended, for echo. With max_tokens 0 it
// returns the prompt alone, although the engine generated a token.
func (g *generation) withPrompt(seq *sequence) (string, []tokenLogprobs) {
	prompt := g.texts[seq.prompt]
	if g.request.ReturnTokenIDs && !g.spec.V0 {
		prompt = "" // as in vLLM
	}
	var scores []tokenLogprobs
	if g.promptLogprobs != nil {
		scores = append(scores, g.promptLogprobs[seq.prompt]...)
	}
	if g.request.scoresOnly() {
		return prompt, scores
	}
	return prompt + seq.text, append(scores, seq.logprobs...)
}

// tokenText returns the token's name among log-probabilities. A part of a character is U+FFFD.
func (g *generation) tokenText(id int) string {
	if g.request.TokensAsIDs {
		return "token_id:" + strconv.Itoa(id)
	}
	return g.model.decode([]int{id})
}

// logprobs returns the logprobs object, four parallel lists. text_offset counts the characters of token names, starting
// at offset; the next one is returned too.
func (g *generation) logprobs(scores []tokenLogprobs, offset int) (o json.RawMessage, next int) {
	offsets, values, tokens, top := []int{}, []any{}, []any{}, []any{}
	for _, p := range scores {
		name := g.tokenText(p.id)
		offsets, tokens = append(offsets, offset), append(tokens, name)
		offset += utf8.RuneCountInString(name)
		if p.first {
			values, top = append(values, nil), append(top, nil)
		} else {
			values, top = append(values, p.logprob), append(top, g.encodeTop(p))
		}
	}
	return g.spec.Logprobs.encode(object{"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": top}), offset
}

// encodeTop encodes the most likely tokens at one position. vLLM keys them by text, so of tokens with equal text one remains.
func (g *generation) encodeTop(p tokenLogprobs) json.RawMessage {
	dst, seen := []byte{'{'}, map[string]bool{}
	for _, c := range p.entries() {
		if name := g.tokenText(c.id); !seen[name] {
			dst = appendValue(append(appendString(appendComma(dst, len(seen)), name), ':'), c.weight)
			seen[name] = true
		}
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

func (g *generation) encodePrompt(scores []tokenLogprobs) []any {
	var all []any
	for _, p := range scores {
		if p.first {
			all = append(all, nil)
			continue
		}
		dst := []byte{'{'}
		for i, c := range p.entries() {
			rank := p.rank
			if i > 0 {
				rank = 1 + slices.IndexFunc(p.top, func(top candidate) bool { return top.id == c.id })
			}
			dst = fmt.Appendf(appendComma(dst, i), `"%d":`, c.id)
			dst = append(dst, form("logprob rank decoded_token").encode(object{
				"logprob": c.weight, "rank": rank, "decoded_token": g.model.decode([]int{c.id}),
			})...)
		}
		all = append(all, json.RawMessage(append(dst, '}')))
	}
	return all
}

// event encodes the stream event with what the sequence gained since its last one, and marks that as sent.
func (g *generation) event(seq *sequence) []byte {
	r := g.request
	end, first := seq.sendable(), seq.sentEvents == 0
	text, scores := seq.text[seq.sentBytes:end], seq.logprobs[min(seq.sentTokens, len(seq.logprobs)):]
	o, choice := g.head("chat.completion.chunk"), object{"index": seq.index, "token_ids": g.tokenIDs(seq.output()[seq.sentTokens:])}
	g.addFinish(choice, seq)
	counted, choiceForm, eventForm := g.spec.RunningUsage, g.spec.EventChoice, g.spec.Event
	if r.chat != nil {
		counted, choiceForm, eventForm = g.spec.ChatRunning, g.spec.ChatEventChoice, g.spec.ChatEvent
		choice["delta"], choice["logprobs"] = g.delta(seq, text), g.chatLogprobs(scores)
		if !seq.finished() {
			delete(choice, "stop_reason")
		} else if _, told := choice["weight_versions"]; !told {
			choice["weight_versions"] = nil
		}
	} else {
		if r.Echo && first {
			text, scores = g.withPrompt(&sequence{prompt: seq.prompt, text: text, logprobs: scores})
			if g.spec.Rust {
				scores = nil
			}
		}
		choice["text"], choice["prompt_token_ids"] = text, nil
		if r.Logprobs != nil && (len(scores) > 0 || !g.spec.Rust) {
			choice["logprobs"], seq.nextOffset = g.logprobs(scores, seq.nextOffset)
		}
		if first && r.Echo && !g.spec.Rust {
			choice["prompt_token_ids"] = g.tokens[seq.prompt] // vLLM does so whether or not the request asks for ids
		} else if first {
			choice["prompt_token_ids"] = g.tokenIDs(g.tokens[seq.prompt])
		}
	}
	o["choices"] = []any{choiceForm.encode(choice)}
	if r.continuousUsage() {
		o["usage"] = usage(counted, len(g.tokens[seq.prompt]), len(seq.output()), nil)
	}
	if g.fingerprint != nil && !r.StreamOptions.IncludeUsage && choice["finish_reason"] != nil {
		o["system_fingerprint"] = g.fingerprint
	}
	seq.sentBytes, seq.sentTokens = end, len(seq.output())
	seq.sentEvents++
	return encodeEvent(eventForm, o)
}

func encodeEvent(f form, o object) []byte {
	return fmt.Appendf(nil, "data: %s\n\n", f.encode(o))
}

// opening encodes the event before the first token: a role, or what the Rust frontend tells of the prompt. It is nil if
// there is none.
func (g *generation) opening(seq *sequence) []byte {
	r := g.request
	switch {
	case seq.sentEvents > 0:
		return nil
	case r.chat != nil:
		return g.roleEvent(seq)
	case !g.spec.Rust || !r.Echo && !r.ReturnTokenIDs:
		return nil
	}
	empty := &sequence{generation: g, index: seq.index, prompt: seq.prompt, history: g.tokens[seq.prompt], promptLen: seq.promptLen}
	event := g.event(empty)
	seq.sentEvents, seq.nextOffset = empty.sentEvents, empty.nextOffset
	return event
}

// usageEvent encodes the additional last event of include_usage.
func (g *generation) usageEvent() []byte {
	o := g.head("chat.completion.chunk")
	o["choices"], o["system_fingerprint"] = []any{}, g.fingerprint
	o["usage"] = usage(g.spec.LastUsage, g.promptTokens(), g.generated, g.promptDetails())
	o["metrics"] = g.metrics("time_to_first_token_ms generation_time_ms queue_time_ms mean_itl_ms! tokens_per_second!")
	return encodeEvent(g.spec.LastEvent, o)
}
