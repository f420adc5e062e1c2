package loglikelihood

import (
	"strconv"
)

// The methods.
const (
	NextToken = "next_token" // the log-probabilities of the token that follows the context
	Scored    = "scored"     // those of the tokens of prompts
)

const (
	// maxNextTokens is the most continuations that are asked for as next tokens: vLLM takes as many ids in logprob_token_ids.
	maxNextTokens = 128
	// nextLogprobs is how many of the likeliest next tokens are asked for. vLLM allows no more unless it is configured to.
	nextLogprobs = 20
)

// TakesNextToken reports whether the results can be read from the log-probabilities of the token that follows the context,
// of which a request may ask for at most that many.
func (p *Pairs) TakesNextToken(maxLogprobs int) bool {
	if len(p.Each) > maxNextTokens || p.question.Top > min(nextLogprobs, maxLogprobs) || maxLogprobs == 0 {
		return false
	}
	seen := make(map[int64]bool, len(p.Each))
	for i := range p.Each {
		tokens := p.Each[i].Tokens
		if len(tokens) != 1 || seen[tokens[0]] {
			return false
		}
		seen[tokens[0]] = true
	}
	return true
}

// TakesNames reports whether a request that names the tokens has all that the results need: no ranks, and no alternatives.
func (p *Pairs) TakesNames() bool { return !p.question.Tokens }

// AppendNextBody appends the members of a completion that asks for the likeliest tokens behind the context, each after a comma.
// A text of several tokens would do for the keys of some: their ids are unique.
func (p *Pairs) AppendNextBody(dst []byte, maxLogprobs int) []byte {
	dst = appendIDs(append(dst, `,"prompt":`...), p.Context)
	dst = append(dst, `,"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":`...)
	return strconv.AppendInt(dst, int64(min(nextLogprobs, maxLogprobs)), 10)
}

// AppendNames appends the ids of the continuations as a JSON array, for logprob_token_ids.
func (p *Pairs) AppendNames(dst []byte) []byte {
	dst = append(dst, '[')
	for i := range p.Each {
		dst = strconv.AppendInt(appendComma(dst, i), p.Each[i].Tokens[0], 10)
	}
	return append(dst, ']')
}

// AppendScoredBody appends the members of a completion that scores each continuation behind the context, each after a comma. A
// single prompt is no array of prompts, which vLLM's Rust frontend does not take.
func (p *Pairs) AppendScoredBody(dst []byte) []byte {
	dst = append(dst, `,"prompt":`...)
	prompts, _ := p.Prompts()
	if prompts > 1 {
		dst = append(dst, '[')
	}
	n := 0
	for i := range p.Each {
		if tokens := p.Each[i].Tokens; len(tokens) > 0 {
			dst = appendIDs(appendComma(dst, n), p.Context, tokens)
			n++
		}
	}
	if n == 0 {
		dst = appendIDs(dst, p.Context)
	}
	if prompts > 1 {
		dst = append(dst, ']')
	}
	dst = append(dst, `,"max_tokens":1,"prompt_logprobs":`...)
	return strconv.AppendInt(dst, int64(max(1, p.question.Top)), 10)
}

func appendIDs(dst []byte, parts ...[]int64) []byte {
	dst = append(dst, '[')
	n := 0
	for _, ids := range parts {
		for _, id := range ids {
			dst = strconv.AppendInt(appendComma(dst, n), id, 10)
			n++
		}
	}
	return append(dst, ']')
}

func appendComma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}
