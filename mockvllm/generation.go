package mockvllm

import (
	"context"
	"math"
	"slices"
	"strings"
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

// sequence is one output being generated.
type sequence struct {
	index      int // among the response's choices
	job        *job
	prompt     int // index of its prompt
	history    []int
	logprobs   []tokenLogprobs
	promptLen  int // tokens of history that belong to the prompt
	sampler    *sampler
	decoder    decoder
	text       string
	script     []int // tokens that a constraint prescribes, the last one end-of-text; nil without one
	finish     string
	stopText   *string // the stop string that ended the output
	stopID     *int    // the stop token that ended the output
	hideFinish bool    // a no_finish fault suppresses finish_reason

	sentBytes  int // bytes of text already sent
	sentChars  int
	sentTokens int
	sentEvents int
	sentFinish bool // the event with finish_reason is sent
}

func (seq *sequence) output() []int { return seq.history[seq.promptLen:] }

func (seq *sequence) finished() bool { return seq.finish != "" }

// generation is the engine's work on one request: all outputs of all its prompts. Each step adds one token to each.
type generation struct {
	model          *languageModel
	job            *job
	sequences      []*sequence
	probabilities  []float64
	promptLogprobs [][]tokenLogprobs // by prompt; nil unless requested
	generated      int
}

func newGeneration(m *languageModel, j *job) *generation {
	g := &generation{model: m, job: j, probabilities: make([]float64, m.size())}
	for number, tokens := range j.tokens {
		for child := range j.request.N {
			seq := &sequence{
				index: number*j.request.N + child, job: j, prompt: number,
				history:   append(make([]int, 0, len(tokens)+min(j.maxTokens, 4096)), tokens...),
				promptLen: len(tokens),
				sampler:   newSampler(j.request.sampling, tokens, child, m.size()),
				decoder:   decoder{tokenizer: m.tokenizer, skipSpecial: j.request.SkipSpecial},
			}
			seq.script = g.scriptFor(seq, child)
			g.sequences = append(g.sequences, seq)
		}
	}
	return g
}

// scriptFor returns the tokens that the request's constraint prescribes for an output, or nil without one.
func (g *generation) scriptFor(seq *sequence, child int) []int {
	c := g.job.request.constraint
	if c == nil {
		return nil
	}
	random := seq.sampler.random
	if seq.sampler.greedy() {
		random = newRandom(0, uint64(child))
	}
	text, err := c.generate(random)
	if err != nil {
		// A random walk through a recursive schema may not end, while the one of the check before did.
		text, _ = c.generate(newRandom(0, 0))
	}
	return append(g.model.encode(text, false), g.model.eos)
}

// draw returns the next token of an output.
func (g *generation) draw(seq *sequence) int {
	if seq.script != nil {
		return seq.script[min(len(seq.output()), len(seq.script)-1)]
	}
	return seq.sampler.draw(g.probabilities, g.bannedTokens(seq))
}

// scorePrompts computes the log-probability of every prompt token if the request asks for them.
func (g *generation) scorePrompts(ctx context.Context) error {
	if g.job.topPromptLogprobs == noLogprobs {
		return nil
	}
	for _, tokens := range g.job.tokens {
		scores := []tokenLogprobs{{id: tokens[0], first: true}}
		for at := 1; at < len(tokens); at++ {
			if at%256 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			g.model.predict(tokens[:at], g.probabilities)
			scores = append(scores, g.logprobsOf(tokens[at], g.job.topPromptLogprobs))
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

// toFloat32 rounds to the 32 bits of a GPU's logits, and so to the digits that vLLM prints.
func toFloat32(value float64) float64 { return float64(float32(value)) }

// step draws the next token of every unfinished output. It reports whether any output remains unfinished.
func (g *generation) step() bool {
	unfinished := false
	for _, seq := range g.sequences {
		if seq.finished() {
			continue
		}
		g.model.predict(seq.history, g.probabilities)
		id := g.draw(seq)
		if g.job.topLogprobs != noLogprobs {
			seq.logprobs = append(seq.logprobs, g.logprobsOf(id, g.job.topLogprobs))
		}
		seq.history = append(seq.history, id)
		g.generated++
		seq.accept(id, g.model.eos)
		unfinished = unfinished || !seq.finished()
	}
	return unfinished
}

// bannedTokens returns the tokens that would end the output before min_tokens, or complete a bad word.
func (g *generation) bannedTokens(seq *sequence) []int {
	r := g.job.request
	var banned []int
	output := seq.output()
	if len(output) < r.MinTokens {
		banned = append([]int{g.model.eos}, r.StopTokens...)
	}
	for _, word := range g.job.banned {
		head := len(word) - 1
		if head <= len(output) && slices.Equal(output[len(output)-head:], word[:head]) {
			banned = append(banned, word[head])
		}
	}
	return banned
}

// abort finishes all unfinished outputs.
func (g *generation) abort() {
	for _, seq := range g.sequences {
		if !seq.finished() {
			seq.finish = finishAbort
		}
	}
}

// accept appends the token's text and determines whether the output ends.
func (seq *sequence) accept(id, eos int) {
	r := seq.job.request
	count := len(seq.output())
	stopToken := slices.Contains(r.StopTokens, id)
	switch {
	case id == eos && !r.IgnoreEOS:
		seq.finish = finishStop
	case stopToken && count > r.MinTokens:
		seq.finish, seq.stopID = finishStop, &id
	case count >= seq.job.maxTokens || len(seq.history) >= seq.job.maxLen:
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
}

// truncateAtStop truncates the text at the first of the request's stop strings that the newest part completes.
func (seq *sequence) truncateAtStop(newFrom int) {
	for _, stop := range seq.job.request.Stop {
		from := max(0, newFrom-len(stop)+1)
		at := strings.Index(seq.text[from:], stop)
		if at < 0 {
			continue
		}
		end := from + at
		if seq.job.request.IncludeStop {
			end += len(stop)
		}
		seq.text = seq.text[:end]
		seq.finish, seq.stopText, seq.stopID = finishStop, &stop, nil
		return
	}
}

// sendable returns how many bytes of the text may be sent. While the output grows, a tail that could become a stop
// string is held back.
func (seq *sequence) sendable() int {
	r := seq.job.request
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
