package mockvllm

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Values of finish_reason.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
)

// tokenLogprobs is the model's scoring of one token: its log-probability and rank, and those of the most likely
// tokens.
type tokenLogprobs struct {
	id      int
	logprob float64
	rank    int
	top     []candidate // the weight is the log-probability
	first   bool        // a prompt's first token, which has no log-probability
}

// generation is the engine's work on one request: prompts as tokens, limits resolved, and all outputs of all prompts. Each
// step adds one token to each output.
type generation struct {
	spec        *versionSpec
	model       *languageModel
	request     *completionRequest
	id          string
	created     int64
	served      string   // name of the model in responses
	adapter     *adapter // nil: the base model
	fingerprint any      // null in some versions

	tokens            [][]int  // of the prompts
	texts             []string // the prompts as echo prepends them
	maxTokens         int
	maxLen            int     // in tokens, prompt and output together
	topLogprobs       int     // number of most likely tokens listed per output token, or noLogprobs
	topPromptLogprobs int     // the same per prompt token
	banned            [][]int // sequences that may not occur in the output

	spoiled        func() bool // another running request has logprob_token_ids
	sequences      []*sequence
	probabilities  []float64
	promptLogprobs [][]tokenLogprobs // by prompt; nil unless requested
	generated      int
	report         engineReport
}

// engineReport is what responses tell of the engine's work.
type engineReport struct {
	tokens, times                   bool      // whether they do
	cached, created                 int       // tokens of the prompts: found in the prefix cache, and added to it
	arrived, scheduled, first, last time.Time // at the engine; of the first and the last token
}

// noLogprobs means that no log-probabilities are requested; 0 requests the token's own.
const noLogprobs = -1

// sequence is one output being generated.
type sequence struct {
	generation *generation
	index      int // among the response's choices
	prompt     int // index of its prompt
	history    []int
	logprobs   []tokenLogprobs
	promptLen  int // tokens of history that belong to the prompt
	sampler    *sampler
	decoder    decoder
	text       string
	reasoning  int   // bytes of text that are reasoning
	script     []int // tokens that a constraint prescribes, the last one end-of-text; nil without one
	finish     string
	stopReason any  // the stop string or the stop token that ended the output
	hideFinish bool // a no_finish fault suppresses finish_reason

	sentBytes  int // bytes of text already sent
	sentTokens int
	sentEvents int
	sentFinish bool // the event with finish_reason is sent
	nextOffset int  // text_offset of the next token
}

func (seq *sequence) output() []int { return seq.history[seq.promptLen:] }

func (seq *sequence) finished() bool { return seq.finish != "" }

// promptTokens counts each prompt once, however many outputs it has.
func (g *generation) promptTokens() int { return len(slices.Concat(g.tokens...)) }

// begin makes the outputs, which are empty.
func (g *generation) begin() {
	g.probabilities = make([]float64, g.model.size())
	for number, tokens := range g.tokens {
		for child := range g.request.N {
			seq := &sequence{
				generation: g, index: number*g.request.N + child, prompt: number, promptLen: len(tokens),
				history: append(make([]int, 0, len(tokens)+min(g.maxTokens, 4096)), tokens...),
				sampler: newSampler(g.request.sampling, tokens, child, g.model.size()),
				decoder: decoder{tokenizer: g.model.tokenizer, skipSpecial: g.request.SkipSpecial},
			}
			if g.request.constraint != nil {
				text, _ := g.request.constraint.generate() // checkInEngine has tried it
				seq.script = append(g.model.encode(text, false), g.model.eos)
			}
			g.sequences = append(g.sequences, seq)
		}
	}
}

func (g *generation) draw(seq *sequence) int {
	if seq.script != nil {
		return seq.script[min(len(seq.output()), len(seq.script)-1)]
	}
	return seq.sampler.draw(g.probabilities, g.bannedTokens(seq))
}

// scorePrompts computes the log-probability of every prompt token if the request asks for them.
func (g *generation) scorePrompts(ctx context.Context) error {
	if g.topPromptLogprobs == noLogprobs {
		return nil
	}
	for _, tokens := range g.tokens {
		scores := []tokenLogprobs{{id: tokens[0], first: true}}
		for at := 1; at < len(tokens); at++ {
			if at%256 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			g.predict(tokens[:at])
			scores = append(scores, g.logprobsOf(tokens[at], g.topPromptLogprobs))
		}
		g.promptLogprobs = append(g.promptLogprobs, scores)
	}
	return nil
}

// logprobsOf scores a token by the current probabilities and adds the top most likely tokens.
func (g *generation) logprobsOf(id, top int) tokenLogprobs {
	p := tokenLogprobs{id: id, logprob: toFloat32(math.Log(g.probabilities[id]))}
	for _, other := range g.probabilities {
		if other >= g.probabilities[id] {
			p.rank++
		}
	}
	all := make([]candidate, len(g.probabilities))
	for other, probability := range g.probabilities {
		all[other] = candidate{other, probability}
	}
	p.top = mostLikely(all, top)
	for i := range p.top {
		p.top[i].weight = toFloat32(math.Log(p.top[i].weight))
	}
	return p
}

// choose makes the most likely tokens those that logprob_token_ids names. In vLLM's V1 engine, such a request spoils those of all
// others in the same step.
func (g *generation) choose(p tokenLogprobs) tokenLogprobs {
	switch {
	case len(g.request.LogprobIDs) > 0:
		p.top = nil
		for _, id := range g.request.LogprobIDs {
			p.top = append(p.top, candidate{id, toFloat32(math.Log(g.probabilities[id]))})
		}
	case g.spoiled():
		p.top = []candidate{{0, math.Inf(-1)}}
	}
	return p
}

// toFloat32 rounds to the 32 bits of a GPU's logits, and so to the digits that vLLM prints.
func toFloat32(value float64) float64 { return float64(float32(value)) }

// step draws the next token of every unfinished output. It reports whether any output remains unfinished.
func (g *generation) step() bool {
	unfinished := false
	for _, seq := range g.sequences {
		if seq.finished() {
			continue
		}
		g.predict(seq.history)
		id := g.draw(seq)
		if g.topLogprobs != noLogprobs {
			seq.logprobs = append(seq.logprobs, g.choose(g.logprobsOf(id, g.topLogprobs)))
		}
		seq.history = append(seq.history, id)
		g.generated++
		seq.accept(id)
		unfinished = unfinished || !seq.finished()
	}
	return unfinished
}

// bannedTokens returns the tokens that would end the output before min_tokens, or complete a bad word.
func (g *generation) bannedTokens(seq *sequence) []int {
	r := g.request
	var banned []int
	output := seq.output()
	if len(output) < r.MinTokens {
		banned = append([]int{g.model.eos}, r.StopTokens...)
	}
	for _, word := range g.banned {
		head := len(word) - 1
		if head <= len(output) && slices.Equal(output[len(output)-head:], word[:head]) {
			banned = append(banned, word[head])
		}
	}
	return banned
}

// accept appends the token's text and determines whether the output ends.
func (seq *sequence) accept(id int) {
	g, r := seq.generation, seq.generation.request
	count := len(seq.output())
	switch {
	case id == g.model.eos && !r.IgnoreEOS:
		seq.finish = finishStop
	case slices.Contains(r.StopTokens, id) && count > r.MinTokens:
		seq.finish, seq.stopReason = finishStop, id
	case count >= g.maxTokens || len(seq.history) >= g.maxLen:
		seq.finish = finishLength
	}
	if seq.finish == finishStop && !r.IncludeStop {
		return // the end token's text is not part of the output
	}
	before := len(seq.text)
	seq.text += seq.decoder.next(id)
	if count > r.MinTokens {
		seq.truncateAtStop(before)
	}
	if r.chat != nil && count <= r.chat.reasoning {
		seq.reasoning = len(seq.text)
	}
}

// truncateAtStop truncates the text at the first of the request's stop strings that the newest part completes.
func (seq *sequence) truncateAtStop(newFrom int) {
	r := seq.generation.request
	for _, stop := range r.Stop {
		from := max(0, newFrom-len(stop)+1)
		at := strings.Index(seq.text[from:], stop)
		if at < 0 {
			continue
		}
		end := from + at
		if r.IncludeStop {
			end += len(stop)
		}
		seq.text = seq.text[:end]
		seq.finish, seq.stopReason = finishStop, stop
		return
	}
}

// sendable returns how many bytes of the text may be sent. While the output grows, a tail that could become a stop
// string is held back.
func (seq *sequence) sendable() int {
	r := seq.generation.request
	end := len(seq.text)
	if seq.finished() || r.IncludeStop || len(r.Stop) == 0 {
		return end
	}
	hold := 0
	for _, stop := range r.Stop {
		hold = max(hold, utf8.RuneCountInString(stop)-1)
	}
	for range hold {
		_, size := utf8.DecodeLastRuneInString(seq.text[:end])
		end -= size
	}
	return max(end, seq.sentBytes)
}
