package mockvllm

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Why an output ended, in vLLM's words.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
)

// A tokenLogprobs is what the model thought of one token: its own log-probability and rank, and the likeliest others.
type tokenLogprobs struct {
	id      int
	logprob float64
	rank    int
	top     []candidate // weight is the log-probability
	first   bool        // a prompt's first token, of which nothing can be said
}

// A sequence is one output in the making.
type sequence struct {
	index      int // among the answer's choices
	job        *job
	prompt     int // number of the prompt
	history    []int
	logprobs   []tokenLogprobs
	promptLen  int // length of the prompt in history
	sampler    *sampler
	decoder    decoder
	text       string
	logprob    float64 // of the whole output
	finish     string
	stopText   *string // the stop string that ended it
	stopID     *int    // the stop token that ended it
	hideFinish bool    // a fault keeps the ending to itself

	sentBytes  int // of text
	sentChars  int
	sentTokens int
	sentEvents int
	sentFinish bool // the event with finish_reason
}

func (seq *sequence) output() []int { return seq.history[seq.promptLen:] }

func (seq *sequence) finished() bool { return seq.finish != "" }

// A generation is the engine's work on one request: all outputs of all its prompts, each a token further at a step.
type generation struct {
	model          *languageModel
	job            *job
	sequences      []*sequence
	probabilities  []float64
	promptLogprobs [][]tokenLogprobs // by prompt; nil unless asked for
	generated      int
}

func newGeneration(m *languageModel, j *job) *generation {
	g := &generation{model: m, job: j, probabilities: make([]float64, m.size())}
	for number, tokens := range j.tokens {
		for child := range j.outputsPerPrompt {
			g.sequences = append(g.sequences, &sequence{
				index: number*j.outputsPerPrompt + child, job: j, prompt: number,
				history:   append(make([]int, 0, len(tokens)+min(j.maxTokens, 4096)), tokens...),
				promptLen: len(tokens),
				sampler:   newSampler(j.request.sampling, tokens, child, m.size()),
				decoder:   decoder{tokenizer: m.tokenizer, skipSpecial: !j.request.showSpecial},
			})
		}
	}
	return g
}

// scorePrompts reads the prompts: the log-probability of each of their tokens, where the request wants them.
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

// logprobsOf looks up a token in the current probabilities, with the top likeliest.
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
	p.top = likeliest(all, top)
	for i := range p.top {
		p.top[i].weight = toFloat32(math.Log(p.top[i].weight))
	}
	return p
}

// toFloat32 rounds to the 32 bits that a GPU's logits have, and so to the digits that they show.
func toFloat32(value float64) float64 { return float64(float32(value)) }

// step draws the next token of every output that has not ended. It tells whether any is left.
func (g *generation) step() bool {
	unfinished := false
	for _, seq := range g.sequences {
		if seq.finished() {
			continue
		}
		g.model.predict(seq.history, g.probabilities)
		id := seq.sampler.draw(g.probabilities, g.bannedTokens(seq))
		seq.logprob += math.Log(g.probabilities[id])
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

// bannedTokens are the tokens that would end the output before min_tokens.
func (g *generation) bannedTokens(seq *sequence) []int {
	r := g.job.request
	if len(seq.output()) >= r.minTokens {
		return nil
	}
	return append([]int{g.model.eos}, r.stopTokens...)
}

// abort ends what has not ended.
func (g *generation) abort() {
	for _, seq := range g.sequences {
		if !seq.finished() {
			seq.finish = finishAbort
		}
	}
}

// accept appends the token's text and finds out whether the output ends with it.
func (seq *sequence) accept(id, eos int) {
	r := seq.job.request
	count := len(seq.output())
	stopToken := slices.Contains(r.stopTokens, id)
	switch {
	case id == eos && !r.ignoreEOS:
		seq.finish = finishStop
	case stopToken && count > r.minTokens:
		seq.finish, seq.stopID = finishStop, &id
	case count >= seq.job.maxTokens || len(seq.history) >= seq.job.maxLen:
		seq.finish = finishLength
	}
	if seq.finish == finishStop && !r.includeStop {
		return // the ending token's text is not part of the output
	}
	before := len(seq.text)
	seq.text += seq.decoder.next(id)
	if count > r.minTokens {
		seq.truncateAtStop(before)
	}
}

// truncateAtStop ends the text at the first of the request's stop strings that its newest part completes.
func (seq *sequence) truncateAtStop(newFrom int) {
	for _, stop := range seq.job.request.stop {
		from := max(0, newFrom-len(stop)+1)
		at := strings.Index(seq.text[from:], stop)
		if at < 0 {
			continue
		}
		end := from + at
		if seq.job.request.includeStop {
			end += len(stop)
		}
		seq.text = seq.text[:end]
		seq.finish, seq.stopText, seq.stopID = finishStop, &stop, nil
		return
	}
}

// sendable is how much of the text may be sent: while it grows, the end that may yet become a stop string stays back.
func (seq *sequence) sendable() int {
	r := seq.job.request
	end := len(seq.text)
	if seq.finished() || r.includeStop || len(r.stop) == 0 {
		return end
	}
	hold := 0
	for _, stop := range r.stop {
		hold = max(hold, utf8.RuneCountInString(stop)-1)
	}
	for range hold {
		_, size := utf8.DecodeLastRuneInString(seq.text[:end])
		end -= size
	}
	return max(end, seq.sentBytes)
}

// returned are the outputs that the answer shows, best_of's losers left out.
func (g *generation) returned() []*sequence {
	n := g.job.request.n
	if g.job.outputsPerPrompt == n {
		return g.sequences
	}
	var winners []*sequence
	for group := range slices.Chunk(g.sequences, g.job.outputsPerPrompt) {
		ranked := slices.SortedStableFunc(slices.Values(group), func(a, b *sequence) int {
			return cmp.Compare(b.logprob, a.logprob)
		})
		winners = append(winners, ranked[:n]...)
	}
	for index, seq := range winners {
		seq.index = index
	}
	return winners
}
