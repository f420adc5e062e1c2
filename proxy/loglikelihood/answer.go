package loglikelihood

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Result is the log-likelihood of a continuation, as the API renders it.
type Result struct {
	Index         int     `json:"index"`
	Logprob       float64 `json:"logprob"`
	Tokens        int     `json:"tokens"`
	Bytes         *int    `json:"bytes"`
	IsGreedy      bool    `json:"is_greedy"`
	BoundaryMoved bool    `json:"boundary_moved"`
	Each          []Token `json:"token_logprobs,omitzero"`
}

// Token is a token with its log-probability. Rank is vLLM's: of two that are equally likely, both have the higher number.
type Token struct {
	ID      int64   `json:"token_id"`
	Text    string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Rank    int     `json:"rank"`
	Top     []Token `json:"top,omitzero"` // the likeliest tokens at this position
}

var (
	// ErrMissing is returned if the likeliest next tokens do not include every continuation.
	ErrMissing = errors.New("the response does not have all continuations")

	errShape = errors.New("the response does not have the log-probabilities of the prompts")
	errValue = errors.New("a log-probability is not finite")
)

// minusInfinity is what vLLM sends for a log-probability of minus infinity.
const minusInfinity = -9999

// finite returns a log-probability, or false if it is none that can be summed.
func finite(v gjson.Result) (float64, bool) {
	return v.Num, v.Type == gjson.Number && v.Num > minusInfinity && !math.IsInf(v.Num, 1)
}

// ReadNext returns the results from the response to AppendNextBody. If it returns ErrMissing, the request of AppendScoredBody
// has to be sent. Tokens have no texts.
func (p *Pairs) ReadNext(body []byte) ([]Result, error) {
	logprobs := gjson.GetBytes(body, "choices.0.logprobs")
	found := make(map[int64]float64, nextLogprobs)
	add := func(name string, v gjson.Result) {
		digits, named := strings.CutPrefix(name, "token_id:")
		id, err := strconv.ParseInt(digits, 10, 64)
		if value, ok := finite(v); named && err == nil && ok {
			found[id] = value
		}
	}
	logprobs.Get("top_logprobs.0").ForEach(func(name, v gjson.Result) bool {
		add(name.Str, v)
		return true
	})
	add(logprobs.Get("tokens.0").Str, logprobs.Get("token_logprobs.0"))
	all := make([]Token, 0, len(found))
	for id, value := range found {
		t := Token{ID: id, Logprob: value}
		for _, other := range found {
			if other >= value {
				t.Rank++
			}
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Token) int { return cmp.Or(cmp.Compare(b.Logprob, a.Logprob), cmp.Compare(a.ID, b.ID)) })
	results := p.newResults()
	for i := range results {
		id := p.Each[i].Tokens[0]
		at := slices.IndexFunc(all, func(t Token) bool { return t.ID == id })
		if at < 0 {
			return nil, ErrMissing
		}
		p.add(&results[i], all[at], all[0].Logprob, all)
	}
	return results, nil
}

// ReadScored returns the results from the response to AppendScoredBody.
func (p *Pairs) ReadScored(body []byte) (results []Result, err error) {
	results = p.newResults()
	var scored []int // the continuations in the order of the prompts
	for i := range p.Each {
		if len(p.Each[i].Tokens) > 0 {
			scored = append(scored, i)
		}
	}
	read := 0
	gjson.GetBytes(body, "choices").ForEach(func(_, choice gjson.Result) bool {
		index := choice.Get("index").Int()
		if index < 0 || index >= int64(len(scored)) {
			return true
		}
		i := scored[index]
		if err = p.readPrompt(&results[i], p.Each[i].Tokens, choice.Get("prompt_logprobs")); err != nil {
			err = fmt.Errorf("continuation %d: %w", i, err)
		}
		read++
		return err == nil
	})
	if err == nil && read < len(scored) {
		err = errShape
	}
	return results, err
}

// readPrompt adds the tokens of a continuation from the log-probabilities of its prompt.
func (p *Pairs) readPrompt(r *Result, tokens []int64, prompt gjson.Result) (err error) {
	if !prompt.IsArray() {
		return errShape
	}
	position := 0
	prompt.ForEach(func(_, entries gjson.Result) bool {
		if at := position - len(p.Context); at >= 0 && at < len(tokens) {
			err = p.readPosition(r, tokens[at], entries)
		}
		position++
		return err == nil
	})
	if err == nil && position != len(p.Context)+len(tokens) {
		err = errShape
	}
	return err
}

// readPosition adds the token of a position, of which the entries are its log-probability and those of the likeliest tokens.
func (p *Pairs) readPosition(r *Result, id int64, entries gjson.Result) (err error) {
	var all []Token
	own, greatest, found := Token{ID: id}, math.Inf(-1), false
	entries.ForEach(func(name, entry gjson.Result) bool {
		value, ok := finite(entry.Get("logprob"))
		if !ok {
			err = errValue
			return false
		}
		greatest = max(greatest, value)
		isOwn := name.Str == strconv.FormatInt(id, 10)
		if isOwn {
			own.Logprob, found = value, true
		}
		if p.question.Tokens {
			t := Token{Text: entry.Get("decoded_token").Str, Logprob: value, Rank: int(entry.Get("rank").Int())}
			t.ID, _ = strconv.ParseInt(name.Str, 10, 64)
			if isOwn {
				own = t
			}
			all = append(all, t)
		}
		return true
	})
	if err == nil && !found {
		err = errShape
	}
	slices.SortStableFunc(all, func(a, b Token) int { return cmp.Compare(b.Logprob, a.Logprob) })
	p.add(r, own, greatest, all)
	return err
}

// newResults returns the results of continuations without tokens.
func (p *Pairs) newResults() []Result {
	results := make([]Result, len(p.Each))
	for i := range p.Each {
		pair := &p.Each[i]
		results[i] = Result{Index: i, Tokens: len(pair.Tokens), Bytes: pair.Bytes, IsGreedy: true, BoundaryMoved: pair.Moved}
		if p.question.Tokens {
			results[i].Each = []Token{}
		}
	}
	return results
}

// add adds a token to a result. greatest is the greatest log-probability at its position, with which a tie is greedy too, and
// likeliest are the tokens known there.
func (p *Pairs) add(r *Result, t Token, greatest float64, likeliest []Token) {
	r.Logprob += t.Logprob
	r.IsGreedy = r.IsGreedy && t.Logprob == greatest
	if !p.question.Tokens {
		return
	}
	if p.question.Top > 0 {
		t.Top = likeliest[:min(p.question.Top, len(likeliest))]
	}
	r.Each = append(r.Each, t)
}

// EachToken calls yield with every token of the results, to set its text.
func EachToken(results []Result, yield func(*Token)) {
	for i := range results {
		for j := range results[i].Each {
			t := &results[i].Each[j]
			yield(t)
			for k := range t.Top {
				yield(&t.Top[k])
			}
		}
	}
}
