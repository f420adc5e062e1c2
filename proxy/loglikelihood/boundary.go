// Package loglikelihood decides which tokens are those of a continuation behind its context, and reads their
// log-probabilities from vLLM's responses to a completion.
//
// The boundary is that of lm-evaluation-harness, to the token. The package sends nothing: the caller tokenizes the texts that
// Question.Texts returns, sends one of the two requests that Pairs makes, and passes the response back to it.
package loglikelihood

import (
	"errors"
	"slices"
	"strings"
	"unicode"
)

// Piece is a context or a continuation as the client sent it.
type Piece struct {
	Text string
	IDs  []int64 // its tokens; nil: it is Text
}

// Question is what a client asks.
type Question struct {
	Context       Piece // empty: the model's first special token
	Continuations []Piece

	Separate  bool // context and continuation are tokenized by themselves
	NoSpecial bool // no special tokens are added to the context
	Tokens    bool // the answer lists each token
	Top       int  // the alternatives that it lists at each position
}

// Text is a text to tokenize: Before and Text together. All have the same Before, which may be too long to copy for each.
type Text struct {
	Before, Text string
	Special      bool    // with the special tokens that the tokenizer adds to a prompt
	IDs          []int64 // its tokens, if they are known already
}

// HasContext reports whether the client sent a context. Without one, the model's first special token is the context.
func (q *Question) HasContext() bool { return q.Context.IDs != nil || q.Context.Text != "" }

// IsTokenized reports whether no text has to be tokenized, and no special token has to be known.
func (q *Question) IsTokenized() bool {
	return q.Context.IDs != nil && !slices.ContainsFunc(q.Continuations, func(p Piece) bool { return p.IDs == nil })
}

// Texts returns the texts to tokenize: that of the context, for Pairs, then one for each continuation, for Set.
func (q *Question) Texts() []Text {
	context := Text{Text: q.Context.Text, Special: !q.NoSpecial, IDs: q.Context.IDs}
	texts := make([]Text, 1, 1+len(q.Continuations))
	joint := !q.Separate && q.Context.Text != ""
	for _, c := range q.Continuations {
		if joint && c.IDs == nil {
			context.Text = rstrip(q.Context.Text)
			texts = append(texts, Text{Before: q.Context.Text, Text: c.Text, Special: !q.NoSpecial})
		} else {
			texts = append(texts, Text{Text: c.Text, IDs: c.IDs})
		}
	}
	if !q.HasContext() {
		context.IDs = []int64{}
	}
	texts[0] = context
	return texts
}

// rstrip is Python's str.rstrip, which strips the four separators of ASCII too.
func rstrip(s string) string {
	return strings.TrimRightFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f })
}

// ErrNoContext is returned for a context that has no tokens.
var ErrNoContext = errors.New("the context has no tokens")

// Pairs are the tokens of one context with those of its continuations.
type Pairs struct {
	Context []int64
	Each    []Pair

	question *Question
}

// Pair is a continuation.
type Pair struct {
	Tokens []int64
	Moved  bool // the context's tokens are not the first ones of the whole text
	Bytes  *int // of the text; nil if the client sent token ids
}

// Pairs returns the pairs of a context with these tokens, whose continuations Set sets. first is the model's first special token,
// which a Question without a context needs.
func (q *Question) Pairs(context []int64, first int64) (Pairs, error) {
	if !q.HasContext() {
		context = []int64{first}
	}
	if len(context) == 0 {
		return Pairs{}, ErrNoContext
	}
	return Pairs{Context: context, Each: make([]Pair, len(q.Continuations)), question: q}, nil
}

// Set sets a continuation from the tokens of its text, of which it keeps no more than it needs. It may be called concurrently for
// different ones.
func (p *Pairs) Set(i int, tokens []int64) {
	q := p.question
	c := &q.Continuations[i]
	pair := Pair{Tokens: tokens}
	switch {
	case !q.HasContext():
		if len(tokens) > 0 && tokens[0] == p.Context[0] {
			pair.Tokens = tokens[1:]
		}
	case !q.Separate && q.Context.IDs == nil && c.IDs == nil:
		n := min(len(p.Context), len(tokens))
		pair.Tokens, pair.Moved = slices.Clone(tokens[n:]), !slices.Equal(tokens[:n], p.Context)
	}
	pair.Moved = pair.Moved || len(pair.Tokens) == 0
	if c.IDs == nil {
		bytes := len(c.Text)
		pair.Bytes = &bytes
	}
	p.Each[i] = pair
}

// Longest returns the tokens of the longest continuation.
func (p *Pairs) Longest() int64 {
	longest := 0
	for i := range p.Each {
		longest = max(longest, len(p.Each[i].Tokens))
	}
	return int64(longest)
}

// Size returns the number of token ids that the pairs hold.
func (p *Pairs) Size() int64 {
	size := len(p.Context)
	for i := range p.Each {
		size += len(p.Each[i].Tokens)
	}
	return int64(size)
}

// Prompts returns the prompts that ScoredBody sends, and the tokens of all of them.
func (p *Pairs) Prompts() (n, tokens int64) {
	for i := range p.Each {
		if continuation := len(p.Each[i].Tokens); continuation > 0 {
			n, tokens = n+1, tokens+int64(len(p.Context)+continuation)
		}
	}
	if n == 0 { // the context alone is sent
		return 1, int64(len(p.Context))
	}
	return n, tokens
}
