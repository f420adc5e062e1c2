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

// A position is what the model thought of one token: its own log-probability and rank, and the likeliest others.
type position struct {
	id      int
	logprob float64
	rank    int
	top     []candidate // weight is the log-probability
	first   bool        // a prompt's first token, of which nothing can be said
}

// A sequence is one output in the making.
type sequence struct {
	index    int // among the answer's choices
	job      *job
	prompt   int // number of the prompt
	history  []int
	scores   []position
	begun    int // length of the prompt in history
	sampler  *sampler
	decoder  decoder
	text     string
	logprob  float64 // of the whole output
	finish   string
	stopText *string // the stop string that ended it
	stopID   *int    // the stop token that ended it
	mute     bool    // a fault keeps the ending to itself

	sentBytes  int // of text
	sentChars  int
	sentTokens int
	sentEvents int
	sentLast   bool // the event with finish_reason
}

func (q *sequence) output() []int { return q.history[q.begun:] }

func (q *sequence) finished() bool { return q.finish != "" }

// A generation is the engine's work on one request: all outputs of all its prompts, each a token further at a step.
type generation struct {
	model         *languageModel
	job           *job
	sequences     []*sequence
	probabilities []float64
	promptScores  [][]position // by prompt; nil unless asked for
	generated     int
}

func newGeneration(m *languageModel, j *job) *generation {
	g := &generation{model: m, job: j, probabilities: make([]float64, m.size())}
	for number, tokens := range j.tokens {
		for child := range j.drawn {
			g.sequences = append(g.sequences, &sequence{
				index: number*j.drawn + child, job: j, prompt: number,
				history: append(make([]int, 0, len(tokens)+min(j.maxTokens, 4096)), tokens...),
				begun:   len(tokens),
				sampler: newSampler(j.request.sampling, tokens, child, m.size()),
				decoder: decoder{tokenizer: m.tokenizer, skipSpecial: !j.request.showSpecial},
			})
		}
	}
	return g
}

// score reads the prompts: the log-probability of each of their tokens, where the request wants them.
func (g *generation) score(ctx context.Context) error {
	if g.job.promptTop == noScores {
		return nil
	}
	for _, tokens := range g.job.tokens {
		scores := []position{{id: tokens[0], first: true}}
		for at := 1; at < len(tokens); at++ {
			if at%256 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			g.model.predict(tokens[:at], g.probabilities)
			scores = append(scores, g.position(tokens[at], g.job.promptTop))
		}
		g.promptScores = append(g.promptScores, scores)
	}
	return nil
}

// position looks up a token in the current probabilities, with the top likeliest.
func (g *generation) position(id, top int) position {
	p := position{id: id, logprob: single(math.Log(g.probabilities[id]))}
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
		p.top[i].weight = single(math.Log(p.top[i].weight))
	}
	return p
}

// single rounds to the 32 bits that a GPU's logits have, and so to the digits that they show.
func single(value float64) float64 { return float64(float32(value)) }

// step draws the next token of every output that has not ended. It tells whether any is left.
func (g *generation) step() bool {
	left := false
	for _, q := range g.sequences {
		if q.finished() {
			continue
		}
		g.model.predict(q.history, g.probabilities)
		id := q.sampler.draw(g.probabilities, g.banned(q))
		q.logprob += math.Log(g.probabilities[id])
		if g.job.top != noScores {
			q.scores = append(q.scores, g.position(id, g.job.top))
		}
		q.history = append(q.history, id)
		g.generated++
		q.accept(id, g.model.eos)
		left = left || !q.finished()
	}
	return left
}

// banned are the tokens that would end the output before min_tokens.
func (g *generation) banned(q *sequence) []int {
	r := g.job.request
	if len(q.output()) >= r.minTokens {
		return nil
	}
	return append([]int{g.model.eos}, r.stopTokens...)
}

// abort ends what has not ended.
func (g *generation) abort() {
	for _, q := range g.sequences {
		if !q.finished() {
			q.finish = finishAbort
		}
	}
}

// accept appends the token's text and finds out whether the output ends with it.
func (q *sequence) accept(id, eos int) {
	r := q.job.request
	count := len(q.output())
	stopToken := slices.Contains(r.stopTokens, id)
	switch {
	case id == eos && !r.ignoreEOS:
		q.finish = finishStop
	case stopToken && count > r.minTokens:
		q.finish, q.stopID = finishStop, &id
	case count >= q.job.maxTokens || len(q.history) >= q.job.limit:
		q.finish = finishLength
	}
	if q.finish == finishStop && !r.includeStop {
		return // the ending token's text is not part of the output
	}
	before := len(q.text)
	q.text += q.decoder.next(id)
	if count > r.minTokens {
		q.cutAtStop(before)
	}
}

// cutAtStop ends the text at the first of the request's stop strings that its newest part completes.
func (q *sequence) cutAtStop(newFrom int) {
	for _, stop := range q.job.request.stop {
		from := max(0, newFrom-len(stop)+1)
		at := strings.Index(q.text[from:], stop)
		if at < 0 {
			continue
		}
		end := from + at
		if q.job.request.includeStop {
			end += len(stop)
		}
		q.text = q.text[:end]
		q.finish, q.stopText, q.stopID = finishStop, &stop, nil
		return
	}
}

// ready is how much of the text may be sent: while it grows, the end that may yet become a stop string stays back.
func (q *sequence) ready() int {
	r := q.job.request
	end := len(q.text)
	if q.finished() || r.includeStop || len(r.stop) == 0 {
		return end
	}
	hold := 0
	for _, stop := range r.stop {
		hold = max(hold, utf8.RuneCountInString(stop)-1)
	}
	for range hold {
		_, size := utf8.DecodeLastRuneInString(q.text[:end])
		end -= size
	}
	return max(end, q.sentBytes)
}

// chosen are the outputs that the answer shows, best_of's losers left out.
func (g *generation) chosen() []*sequence {
	n := g.job.request.n
	if g.job.drawn == n {
		return g.sequences
	}
	var winners []*sequence
	for group := range slices.Chunk(g.sequences, g.job.drawn) {
		ranked := slices.SortedStableFunc(slices.Values(group), func(a, b *sequence) int {
			return cmp.Compare(b.logprob, a.logprob)
		})
		winners = append(winners, ranked[:n]...)
	}
	for index, q := range winners {
		q.index = index
	}
	return winners
}
