package mockvllm

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"unicode/utf8"
)

// A writer spells answers in one version's shape.
type writer struct {
	shape       *shape
	model       *languageModel
	job         *job
	fingerprint string
}

// fingerprintOf imitates vLLM's, which gives away its version.
func fingerprintOf(version, model string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(model)) // a hash takes everything
	return fmt.Sprintf("vllm-%s-%08x", version, sum.Sum32())
}

// completion is a plain answer's body.
func (w *writer) completion(g *generation) []byte {
	to := w.head(nil)
	to = append(to, `,"choices":[`...)
	completionTokens := 0
	for i, q := range g.chosen() {
		if i > 0 {
			to = append(to, ',')
		}
		to = w.choice(to, g, q)
		completionTokens += len(q.output())
	}
	to = append(to, ']')
	if w.shape.transferParams {
		to = append(to, `,"service_tier":null,"system_fingerprint":`...)
		if w.shape.fingerprint {
			to = appendString(to, w.fingerprint)
		} else {
			to = append(to, "null"...)
		}
	}
	to = append(to, `,"usage":`...)
	to = w.usage(to, w.job.promptTokens(), completionTokens)
	if w.shape.transferParams {
		to = append(to, `,"kv_transfer_params":null`...)
	}
	if w.shape.ecParams {
		to = append(to, `,"ec_transfer_params":null,"metrics":null`...)
	}
	return append(to, '}')
}

// promptTokens counts each prompt once, however many outputs it has.
func (j *job) promptTokens() int {
	total := 0
	for _, tokens := range j.tokens {
		total += len(tokens)
	}
	return total
}

func (w *writer) head(to []byte) []byte {
	to = append(to, `{"id":`...)
	to = appendString(to, w.job.id)
	to = fmt.Appendf(to, `,"object":"text_completion","created":%d,"model":`, w.job.created)
	return appendString(to, w.job.model)
}

// usage is the object with all its members, null ones too.
func (w *writer) usage(to []byte, prompt, completion int) []byte {
	to = w.bareUsage(to, prompt, completion)
	to = append(to[:len(to)-1], `,"prompt_tokens_details":null`...)
	if w.shape.usageCompletion {
		to = append(to, `,"completion_tokens_details":null`...)
	}
	return append(to, '}')
}

func (*writer) bareUsage(to []byte, prompt, completion int) []byte {
	return fmt.Appendf(to, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`,
		prompt, prompt+completion, completion)
}

func (w *writer) choice(to []byte, g *generation, q *sequence) []byte {
	r := w.job.request
	text := q.text
	scores := q.scores
	if r.echo {
		text, scores = w.echoed(g, q)
	}
	to = fmt.Appendf(to, `{"index":%d,"text":`, q.index)
	to = appendString(to, text)
	to = append(to, `,"logprobs":`...)
	if r.logprobs == nil {
		to = append(to, "null"...)
	} else {
		to = w.logprobs(to, scores, 0)
	}
	to = w.ending(to, q)
	if w.shape.tokenIDs {
		to = w.ids(append(to, `,"token_ids":`...), q.output())
	}
	to = append(to, `,"prompt_logprobs":`...)
	if g.promptScores == nil {
		to = append(to, "null"...)
	} else {
		to = w.promptLogprobs(to, g.promptScores[q.prompt])
	}
	if w.shape.tokenIDs {
		to = w.ids(append(to, `,"prompt_token_ids":`...), w.job.tokens[q.prompt])
	}
	if w.shape.routedExperts {
		to = append(to, `,"routed_experts":null`...)
	}
	return append(to, '}')
}

// echoed is the choice's text and log-probabilities with the prompt before them. max_tokens 0 shows the prompt alone,
// though the engine generated a token.
func (w *writer) echoed(g *generation, q *sequence) (string, []position) {
	prompt := w.echo(q)
	var scores []position
	if g.promptScores != nil {
		scores = append(scores, g.promptScores[q.prompt]...)
	}
	if w.job.request.maxTokens == 0 && !w.job.request.maxTokensNull {
		return prompt, scores
	}
	return prompt + q.text, append(scores, q.scores...)
}

// echo is the prompt's text as echo shows it; with return_token_ids vLLM shows none.
func (w *writer) echo(q *sequence) string {
	if w.job.request.tokenIDs && w.shape.tokenIDs {
		return ""
	}
	return w.job.texts[q.prompt]
}

// ending writes finish_reason and stop_reason.
func (*writer) ending(to []byte, q *sequence) []byte {
	to = append(to, `,"finish_reason":`...)
	if q.finished() && !q.mute {
		to = appendString(to, q.finish)
	} else {
		to = append(to, "null"...)
	}
	to = append(to, `,"stop_reason":`...)
	switch {
	case q.mute:
	case q.stopText != nil:
		return appendString(to, *q.stopText)
	case q.stopID != nil:
		return strconv.AppendInt(to, int64(*q.stopID), 10)
	}
	return append(to, "null"...)
}

func (w *writer) ids(to []byte, tokens []int) []byte {
	if !w.job.request.tokenIDs {
		return append(to, "null"...)
	}
	return appendInts(to, tokens)
}

// tokenText is how a token is named among log-probabilities: a part of a character is U+FFFD.
func (w *writer) tokenText(id int) string {
	if w.job.request.tokensAsIDs {
		return "token_id:" + strconv.Itoa(id)
	}
	return w.model.decode([]int{id})
}

// clamped keeps a log-probability within what JSON can hold, as vLLM does.
func clamped(logprob float64) float64 { return math.Max(logprob, -9999) }

// logprobs writes four parallel lists. Offsets count the characters of token names, from offset on.
func (w *writer) logprobs(to []byte, scores []position, offset int) []byte {
	to = append(to, `{"text_offset":[`...)
	for i, p := range scores {
		to = strconv.AppendInt(comma(to, i), int64(offset), 10)
		offset += utf8.RuneCountInString(w.tokenText(p.id))
	}
	to = append(to, `],"token_logprobs":[`...)
	for i, p := range scores {
		to = comma(to, i)
		if p.first {
			to = append(to, "null"...)
		} else {
			to = appendFloat(to, clamped(p.logprob))
		}
	}
	to = append(to, `],"tokens":[`...)
	for i, p := range scores {
		to = appendString(comma(to, i), w.tokenText(p.id))
	}
	to = append(to, `],"top_logprobs":[`...)
	for i, p := range scores {
		to = w.top(comma(to, i), p)
	}
	return append(to, "]}"...)
}

func comma(to []byte, i int) []byte {
	if i == 0 {
		return to
	}
	return append(to, ',')
}

// top writes one position's likeliest tokens. vLLM keys them by text: of tokens with equal text the last one's number
// stands, in the first one's place.
func (w *writer) top(to []byte, p position) []byte {
	if p.first {
		return append(to, "null"...)
	}
	var names []string
	numbers := make(map[string]float64)
	for _, c := range p.withChosen() {
		name := w.tokenText(c.id)
		if _, repeated := numbers[name]; !repeated {
			names = append(names, name)
		}
		numbers[name] = c.weight
	}
	to = append(to, '{')
	for i, name := range names {
		to = append(appendString(comma(to, i), name), ':')
		to = appendFloat(to, clamped(numbers[name]))
	}
	return append(to, '}')
}

// withChosen is the token itself, then the likeliest others: the order of vLLM's dict.
func (p position) withChosen() []candidate {
	all := []candidate{{p.id, p.logprob}}
	for _, c := range p.top {
		if c.id != p.id {
			all = append(all, c)
		}
	}
	return all
}

func (w *writer) promptLogprobs(to []byte, scores []position) []byte {
	to = append(to, '[')
	for i, p := range scores {
		to = comma(to, i)
		if p.first {
			to = append(to, "null"...)
			continue
		}
		to = append(to, '{')
		for j, c := range p.withChosen() {
			to = fmt.Appendf(comma(to, j), `"%d":{"logprob":`, c.id)
			to = appendFloat(to, clamped(c.weight))
			to = fmt.Appendf(to, `,"rank":%d,"decoded_token":`, p.rankOf(c))
			to = appendString(to, w.model.decode([]int{c.id}))
			to = append(to, '}')
		}
		to = append(to, '}')
	}
	return append(to, ']')
}

func (p position) rankOf(c candidate) int {
	for i, other := range p.top {
		if other.id == c.id && c.id != p.id {
			return i + 1
		}
	}
	return p.rank
}

// chunk is the event with what the sequence has gained since its last one.
func (w *writer) chunk(g *generation, q *sequence, fingerprinted bool) []byte {
	r := w.job.request
	first := q.sentEvents == 0
	end := q.ready()
	text, scores, offset := q.text[q.sentBytes:end], q.scores[min(q.sentTokens, len(q.scores)):], q.sentChars
	gained := utf8.RuneCountInString(text)
	if r.echo && first {
		echo, all := w.echoed(g, &sequence{prompt: q.prompt, text: text, scores: scores})
		if w.shape.echoOffsets || r.maxTokens == 0 {
			gained = utf8.RuneCountInString(echo)
		}
		text, scores = echo, all
	}
	to := append(w.head([]byte("data: ")), `,"choices":[`...)
	to = fmt.Appendf(to, `{"index":%d,"text":`, q.index)
	to = appendString(to, text)
	to = append(to, `,"logprobs":`...)
	if r.logprobs == nil {
		to = append(to, "null"...)
	} else {
		to = w.logprobs(to, scores, offset)
	}
	to = w.ending(to, q)
	to = w.chunkIDs(to, q, first)
	to = append(to, `}]`...)
	to = w.chunkUsage(to, q)
	if fingerprinted && q.finished() && !q.mute {
		to = appendString(append(to, `,"system_fingerprint":`...), w.fingerprint)
	}
	q.sentBytes, q.sentChars, q.sentTokens = end, q.sentChars+gained, len(q.output())
	q.sentEvents++
	return append(to, "}\n\n"...)
}

func (w *writer) chunkIDs(to []byte, q *sequence, first bool) []byte {
	if !w.shape.tokenIDs {
		return to
	}
	to = append(to, `,"prompt_token_ids":`...)
	if first {
		to = w.ids(to, w.job.tokens[q.prompt])
	} else {
		to = append(to, "null"...)
	}
	return w.ids(append(to, `,"token_ids":`...), q.output()[q.sentTokens:])
}

// chunkUsage is the running usage of one choice; versions before 0.20 write null where there is none.
func (w *writer) chunkUsage(to []byte, q *sequence) []byte {
	r := w.job.request
	prompt, completion := len(w.job.tokens[q.prompt]), len(q.output())
	switch {
	case r.includeUsage && r.runningUsage && w.shape.usageNull:
		return w.usage(append(to, `,"usage":`...), prompt, completion)
	case r.includeUsage && r.runningUsage:
		return w.bareUsage(append(to, `,"usage":`...), prompt, completion)
	case w.shape.usageNull:
		return append(to, `,"usage":null`...)
	}
	return to
}

// usageChunk is the extra last event of include_usage; null members are left out of it.
func (w *writer) usageChunk(g *generation) []byte {
	completion := 0
	for _, q := range g.sequences {
		completion += len(q.output())
	}
	to := append(w.head([]byte("data: ")), `,"choices":[],"usage":`...)
	to = w.bareUsage(to, w.job.promptTokens(), completion)
	if w.shape.fingerprint {
		to = appendString(append(to, `,"system_fingerprint":`...), w.fingerprint)
	}
	return append(to, "}\n\n"...)
}
