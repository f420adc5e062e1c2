package mockvllm

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// responseEncoder encodes responses in the wire format of one version.
type responseEncoder struct {
	spec        *versionSpec
	model       *languageModel
	job         *job
	fingerprint string
}

// fingerprintOf imitates vLLM's system_fingerprint, which contains its version.
func fingerprintOf(version, model string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(model)) // hash.Hash never returns an error
	return fmt.Sprintf("vllm-%s-%08x", version, sum.Sum32())
}

// completion encodes the body of a plain response.
func (e *responseEncoder) completion(g *generation) []byte {
	dst := e.appendHead(nil, "text_completion", "chat.completion")
	dst = append(dst, `,"choices":[`...)
	completionTokens := 0
	for i, seq := range g.returned() {
		if i > 0 {
			dst = append(dst, ',')
		}
		if e.job.request.chat != nil {
			dst = e.appendChatChoice(dst, seq)
		} else {
			dst = e.appendChoice(dst, g, seq)
		}
		completionTokens += len(seq.output())
	}
	dst = append(dst, ']')
	if e.spec.transferParams {
		dst = append(dst, `,"service_tier":null,"system_fingerprint":`...)
		if e.spec.fingerprint {
			dst = appendString(dst, e.fingerprint)
		} else {
			dst = append(dst, "null"...)
		}
	}
	dst = append(dst, `,"usage":`...)
	dst = e.appendUsage(dst, e.job.promptTokens(), completionTokens)
	if e.job.request.chat != nil {
		dst = append(dst, `,"prompt_logprobs":null`...)
		if e.spec.tokenIDs {
			dst = e.appendTokenIDs(append(dst, `,"prompt_token_ids":`...), e.job.tokens[0])
		}
		if e.spec.promptText {
			dst = append(dst, `,"prompt_text":null`...)
		}
	}
	if e.spec.transferParams {
		dst = append(dst, `,"kv_transfer_params":null`...)
	}
	if e.spec.ecParams {
		dst = append(dst, `,"ec_transfer_params":null,"metrics":null`...)
	}
	if dst = append(dst, '}'); e.spec.rust {
		return rustBody(dst, e.job.request.chat != nil)
	}
	return dst
}

// promptTokens counts each prompt once, however many outputs it has.
func (j *job) promptTokens() int {
	total := 0
	for _, tokens := range j.tokens {
		total += len(tokens)
	}
	return total
}

// appendEventHead appends the head of an event.
func (e *responseEncoder) appendEventHead(dst []byte) []byte {
	return e.appendHead(dst, "text_completion", "chat.completion.chunk")
}

// appendHead appends the members before the choices. The name of the object depends on the endpoint.
func (e *responseEncoder) appendHead(dst []byte, ofCompletion, ofChat string) []byte {
	object := ofCompletion
	if e.job.request.chat != nil {
		object = ofChat
	}
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, e.job.id)
	dst = fmt.Appendf(dst, `,"object":%q,"created":%d,"model":`, object, e.job.created)
	return appendString(dst, e.job.model)
}

// appendUsage appends the usage object with all its members, including null ones.
func (e *responseEncoder) appendUsage(dst []byte, prompt, completion int) []byte {
	dst = e.appendTokenCounts(dst, prompt, completion)
	dst = append(dst[:len(dst)-1], `,"prompt_tokens_details":null`...)
	if e.spec.usageCompletion {
		dst = append(dst, `,"completion_tokens_details":null`...)
	}
	return append(dst, '}')
}

func (*responseEncoder) appendTokenCounts(dst []byte, prompt, completion int) []byte {
	return fmt.Appendf(dst, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`,
		prompt, prompt+completion, completion)
}

func (e *responseEncoder) appendChoice(dst []byte, g *generation, seq *sequence) []byte {
	r := e.job.request
	text := seq.text
	scores := seq.logprobs
	if r.echo {
		text, scores = e.withPrompt(g, seq)
	}
	dst = fmt.Appendf(dst, `{"index":%d,"text":`, seq.index)
	dst = appendString(dst, text)
	dst = append(dst, `,"logprobs":`...)
	if r.logprobs == nil {
		dst = append(dst, "null"...)
	} else {
		dst = e.appendLogprobs(dst, scores, 0)
	}
	dst = e.appendFinish(dst, seq)
	if e.spec.tokenIDs {
		dst = e.appendTokenIDs(append(dst, `,"token_ids":`...), seq.output())
	}
	dst = append(dst, `,"prompt_logprobs":`...)
	if g.promptLogprobs == nil {
		dst = append(dst, "null"...)
	} else {
		dst = e.appendPromptLogprobs(dst, g.promptLogprobs[seq.prompt])
	}
	if e.spec.tokenIDs {
		dst = e.appendTokenIDs(append(dst, `,"prompt_token_ids":`...), e.job.tokens[seq.prompt])
	}
	if e.spec.routedExperts {
		dst = append(dst, `,"routed_experts":null`...)
	}
	return append(e.appendWeightVersions(dst, seq), '}')
}

// withPrompt returns the choice's text and log-probabilities with the prompt prepended, for echo. With max_tokens 0 it
// returns the prompt alone, although the engine generated a token.
func (e *responseEncoder) withPrompt(g *generation, seq *sequence) (string, []tokenLogprobs) {
	prompt := e.promptText(seq)
	var scores []tokenLogprobs
	if g.promptLogprobs != nil {
		scores = append(scores, g.promptLogprobs[seq.prompt]...)
	}
	if e.job.request.maxTokens == 0 && !e.job.request.maxTokensNull {
		return prompt, scores
	}
	return prompt + seq.text, append(scores, seq.logprobs...)
}

// promptText returns the prompt as echo shows it; with return_token_ids vLLM shows an empty text.
func (e *responseEncoder) promptText(seq *sequence) string {
	if e.job.request.returnTokenIDs && e.spec.tokenIDs {
		return ""
	}
	return e.job.texts[seq.prompt]
}

// appendFinish appends finish_reason and stop_reason.
func (e *responseEncoder) appendFinish(dst []byte, seq *sequence) []byte {
	dst = append(dst, `,"finish_reason":`...)
	if seq.finished() && !seq.hideFinish {
		dst = appendString(dst, e.finishOf(seq))
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"stop_reason":`...)
	switch {
	case seq.hideFinish:
	case seq.stopText != nil:
		return appendString(dst, *seq.stopText)
	case seq.stopID != nil:
		return strconv.AppendInt(dst, int64(*seq.stopID), 10)
	}
	return append(dst, "null"...)
}

func (e *responseEncoder) appendTokenIDs(dst []byte, tokens []int) []byte {
	if !e.job.request.returnTokenIDs {
		return append(dst, "null"...)
	}
	return appendInts(dst, tokens)
}

// tokenText returns the token's name among log-probabilities. A part of a character is U+FFFD.
func (e *responseEncoder) tokenText(id int) string {
	if e.job.request.tokensAsIDs {
		return "token_id:" + strconv.Itoa(id)
	}
	return e.model.decode([]int{id})
}

// clampLogprob limits a log-probability to what JSON can represent, as vLLM does.
func clampLogprob(logprob float64) float64 { return math.Max(logprob, -9999) }

// appendLogprobs appends the logprobs object, four parallel lists. text_offset counts the characters of token names,
// starting at offset.
func (e *responseEncoder) appendLogprobs(dst []byte, scores []tokenLogprobs, offset int) []byte {
	dst = append(dst, `{"text_offset":[`...)
	for i, p := range scores {
		dst = strconv.AppendInt(appendComma(dst, i), int64(offset), 10)
		offset += utf8.RuneCountInString(e.tokenText(p.id))
	}
	dst = append(dst, `],"token_logprobs":[`...)
	for i, p := range scores {
		dst = appendComma(dst, i)
		if p.first {
			dst = append(dst, "null"...)
		} else {
			dst = appendFloat(dst, clampLogprob(p.logprob))
		}
	}
	dst = append(dst, `],"tokens":[`...)
	for i, p := range scores {
		dst = appendString(appendComma(dst, i), e.tokenText(p.id))
	}
	dst = append(dst, `],"top_logprobs":[`...)
	for i, p := range scores {
		dst = e.appendTopLogprobs(appendComma(dst, i), p)
	}
	return append(dst, "]}"...)
}

func appendComma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}

// appendTopLogprobs appends the most likely tokens at one position. vLLM keys them by text in a Python dict: of tokens
// with equal text the first one's place and the last one's value remain.
func (e *responseEncoder) appendTopLogprobs(dst []byte, p tokenLogprobs) []byte {
	if p.first {
		return append(dst, "null"...)
	}
	var names []string
	values := make(map[string]float64)
	for _, c := range e.entries(p) {
		name := e.tokenText(c.id)
		if _, repeated := values[name]; !repeated {
			names = append(names, name)
		}
		values[name] = c.weight
	}
	dst = append(dst, '{')
	for i, name := range names {
		dst = append(appendString(appendComma(dst, i), name), ':')
		dst = appendFloat(dst, clampLogprob(values[name]))
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

// entries is the order of the version: that of the Rust frontend is random.
func (e *responseEncoder) entries(p tokenLogprobs) []candidate {
	all := p.entries()
	if e.spec.rust {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) //nolint:gosec // not security-relevant
	}
	return all
}

func (e *responseEncoder) appendPromptLogprobs(dst []byte, scores []tokenLogprobs) []byte {
	dst = append(dst, '[')
	for i, p := range scores {
		dst = appendComma(dst, i)
		if p.first {
			dst = append(dst, "null"...)
			continue
		}
		dst = append(dst, '{')
		for j, c := range e.entries(p) {
			dst = fmt.Appendf(appendComma(dst, j), `"%d":{"logprob":`, c.id)
			dst = appendFloat(dst, clampLogprob(c.weight))
			dst = fmt.Appendf(dst, `,"rank":%d,"decoded_token":`, p.rankOf(c))
			dst = appendString(dst, e.model.decode([]int{c.id}))
			dst = append(dst, '}')
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
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
func (e *responseEncoder) event(g *generation, seq *sequence, fingerprinted bool) []byte {
	r := e.job.request
	if r.chat != nil {
		return e.chatEvent(seq, fingerprinted)
	}
	first := seq.sentEvents == 0
	end := seq.sendable()
	text, scores, offset := seq.text[seq.sentBytes:end], seq.logprobs[min(seq.sentTokens, len(seq.logprobs)):], seq.sentChars
	gained := utf8.RuneCountInString(text)
	if r.echo && first {
		echo, all := e.withPrompt(g, &sequence{prompt: seq.prompt, text: text, logprobs: scores})
		if e.spec.rust {
			all = nil
		}
		if e.spec.echoOffsets || r.maxTokens == 0 {
			gained = e.width(echo, all)
		}
		text, scores = echo, all
	}
	dst := append(e.appendEventHead([]byte("data: ")), `,"choices":[`...)
	dst = fmt.Appendf(dst, `{"index":%d,"text":`, seq.index)
	dst = appendString(dst, text)
	dst = append(dst, `,"logprobs":`...)
	if r.logprobs == nil || len(scores) == 0 && e.spec.rust {
		dst = append(dst, "null"...)
	} else {
		dst = e.appendLogprobs(dst, scores, offset)
	}
	dst = e.appendFinish(dst, seq)
	dst = e.appendWeightVersions(e.appendEventTokenIDs(dst, seq, first), seq)
	dst = append(dst, `}]`...)
	dst = e.appendEventUsage(dst, seq)
	if fingerprinted && seq.finished() && !seq.hideFinish {
		dst = appendString(append(dst, `,"system_fingerprint":`...), e.fingerprint)
	}
	dst = e.appendTransferParams(dst)
	seq.sentBytes, seq.sentChars, seq.sentTokens = end, seq.sentChars+gained, len(seq.output())
	seq.sentEvents++
	return e.endEvent(dst)
}

// appendTransferParams appends what each event of newer versions has.
func (e *responseEncoder) appendTransferParams(dst []byte) []byte {
	if !e.spec.weightVersions {
		return dst
	}
	return append(dst, `,"kv_transfer_params":null`...)
}

// appendWeightVersions appends which weights sampled the output. Their name never changes here.
func (e *responseEncoder) appendWeightVersions(dst []byte, seq *sequence) []byte {
	switch {
	case !e.spec.weightVersions:
		return dst
	case !e.job.request.weightVersions || !seq.finished():
		return append(dst, `,"weight_versions":null`...)
	}
	return fmt.Appendf(dst, `,"weight_versions":[{"version":"default","start":0,"end":%d}]`, len(seq.output()))
}

// endEvent ends an event that begins with "data: ".
func (e *responseEncoder) endEvent(dst []byte) []byte {
	if dst = append(dst, '}'); e.spec.rust {
		dst = append(dst[:len("data: ")], rustObject(gjson.ParseBytes(dst[len("data: "):]), rustEvent, rustEventChoice, true)...)
	}
	return append(dst, "\n\n"...)
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
	case !e.spec.rust || !r.echo && !r.returnTokenIDs:
		return nil
	}
	empty := &sequence{index: seq.index, prompt: seq.prompt, job: seq.job, history: e.job.tokens[seq.prompt], promptLen: seq.promptLen}
	event := e.event(g, empty, false)
	seq.sentEvents, seq.sentChars = empty.sentEvents, empty.sentChars
	return event
}

// width returns how far an echoed text advances text_offset: by its characters, or by those of its tokens if they are
// listed, among them begin-of-text.
func (e *responseEncoder) width(echo string, scores []tokenLogprobs) int {
	if !e.spec.echoOffsets || e.job.request.logprobs == nil {
		return utf8.RuneCountInString(echo)
	}
	width := 0
	for _, p := range scores {
		width += utf8.RuneCountInString(e.tokenText(p.id))
	}
	return width
}

func (e *responseEncoder) appendEventTokenIDs(dst []byte, seq *sequence, first bool) []byte {
	if !e.spec.tokenIDs {
		return dst
	}
	dst = append(dst, `,"prompt_token_ids":`...)
	switch {
	case first && e.job.request.echo && !e.spec.rust:
		dst = appendInts(dst, e.job.tokens[seq.prompt]) // vLLM does so whether or not the request asks for ids
	case first:
		dst = e.appendTokenIDs(dst, e.job.tokens[seq.prompt])
	default:
		dst = append(dst, "null"...)
	}
	return e.appendTokenIDs(append(dst, `,"token_ids":`...), seq.output()[seq.sentTokens:])
}

// appendEventUsage appends the running usage of one choice. If there is none, versions before 0.20 write null.
func (e *responseEncoder) appendEventUsage(dst []byte, seq *sequence) []byte {
	r := e.job.request
	prompt, completion := len(e.job.tokens[seq.prompt]), len(seq.output())
	switch {
	case r.includeUsage && r.continuousUsage && e.spec.nullUsageInEvents:
		return e.appendUsage(append(dst, `,"usage":`...), prompt, completion)
	case r.includeUsage && r.continuousUsage:
		return e.appendTokenCounts(append(dst, `,"usage":`...), prompt, completion)
	case e.spec.nullUsageInEvents:
		return append(dst, `,"usage":null`...)
	}
	return dst
}

// usageEvent encodes the additional last event of include_usage, without null members.
func (e *responseEncoder) usageEvent(g *generation) []byte {
	completion := 0
	for _, seq := range g.sequences {
		completion += len(seq.output())
	}
	dst := append(e.appendEventHead([]byte("data: ")), `,"choices":[],"usage":`...)
	dst = e.appendTokenCounts(dst, e.job.promptTokens(), completion)
	if e.spec.fingerprint {
		dst = appendString(append(dst, `,"system_fingerprint":`...), e.fingerprint)
	}
	return e.endEvent(dst)
}
