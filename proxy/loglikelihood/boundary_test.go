package loglikelihood_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/proxy/loglikelihood"
)

const bos = 1

// tokenizer is a small tokenizer of bytes that merges pairs, as those of models do. Its ids are 256 and more for merges, and
// bos for the special token, which it adds unless it has none.
type tokenizer struct {
	merges []string // by rank
	bos    bool
}

func (t tokenizer) encode(text string, special bool) []int64 {
	var pieces []string
	for i := range len(text) {
		pieces = append(pieces, text[i:i+1])
	}
	for {
		best, at := len(t.merges), 0
		for i := 0; i+1 < len(pieces); i++ {
			if rank := slices.Index(t.merges, pieces[i]+pieces[i+1]); rank >= 0 && rank < best {
				best, at = rank, i
			}
		}
		if best == len(t.merges) {
			break
		}
		pieces = slices.Replace(pieces, at, at+2, pieces[at]+pieces[at+1])
	}
	ids := []int64{}
	if special && t.bos {
		ids = append(ids, bos)
	}
	for _, p := range pieces {
		id := int64(2 + int(p[0]))
		if len(p) > 1 {
			id = int64(300 + slices.Index(t.merges, p))
		}
		ids = append(ids, id)
	}
	return ids
}

func (t tokenizer) split(q *loglikelihood.Question) (loglikelihood.Pairs, error) {
	var pairs loglikelihood.Pairs
	for i, text := range q.Texts() {
		ids := text.IDs
		if ids == nil {
			ids = t.encode(text.Before+text.Text, text.Special)
		}
		if i > 0 {
			pairs.Set(i-1, ids)
			continue
		}
		var err error
		if pairs, err = q.Pairs(ids, bos); err != nil {
			return pairs, err
		}
	}
	return pairs, nil
}

func texts(all ...string) (pieces []loglikelihood.Piece) {
	for _, text := range all {
		pieces = append(pieces, loglikelihood.Piece{Text: text})
	}
	return pieces
}

// lmEval is what lm-evaluation-harness 0.4.13 does with a pair of texts (TemplateLM.loglikelihood and _encode_pair).
func lmEval(t tokenizer, special bool, context, continuation string) (contextTokens, continuationTokens []int64) {
	if context == "" {
		ids := t.encode(continuation, false)
		if ids[0] == bos {
			return ids[:1], ids[1:]
		}
		return []int64{bos}, ids
	}
	stripped := strings.TrimRight(context, pythonSpaces)
	continuation = context[len(stripped):] + continuation
	whole, contextTokens := t.encode(stripped+continuation, special), t.encode(stripped, special)
	return contextTokens, whole[min(len(contextTokens), len(whole)):]
}

// pythonSpaces are the characters for which Python's str.isspace is true (3.13).
const pythonSpaces = "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"

func TestJointBoundaryIsThatOfLMEval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	// A combining character, and characters of several bytes, which merges split as byte fallback does.
	alphabet := []string{"a", "b", "c", " ", "\n", "\u00a0", "\x1c", "\u3000", "e\u0301", "\u0301", "é", "😀"}
	draw := func(least int) string {
		var b strings.Builder
		for range least + random.IntN(6) {
			b.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		return b.String()
	}
	moved := 0
	for range 20000 {
		model := tokenizer{bos: random.IntN(2) == 0}
		for range random.IntN(30) {
			text := draw(2)
			from := random.IntN(len(text) - 1)
			model.merges = append(model.merges, text[from:from+2+random.IntN(len(text)-from-1)])
		}
		q := loglikelihood.Question{Context: loglikelihood.Piece{Text: draw(0)}, NoSpecial: random.IntN(3) == 0}
		for range 1 + random.IntN(3) {
			q.Continuations = append(q.Continuations, texts(draw(1))...)
		}
		pairs, err := model.split(&q)
		for i, c := range q.Continuations {
			context, continuation := lmEval(model, !q.NoSpecial, q.Context.Text, c.Text)
			if len(context) == 0 {
				if !errors.Is(err, loglikelihood.ErrNoContext) {
					t.Fatalf("%q: got %v, want ErrNoContext", q.Context.Text, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(context, pairs.Context) || !slices.Equal(continuation, pairs.Each[i].Tokens) {
				t.Fatalf("%q + %q with %q: got %v and %v, want %v and %v", q.Context.Text, c.Text, model.merges,
					pairs.Context, pairs.Each[i].Tokens, context, continuation)
			}
			if *pairs.Each[i].Bytes != len(c.Text) {
				t.Fatalf("%q has %d bytes", c.Text, *pairs.Each[i].Bytes)
			}
			if q.Context.Text == "" {
				continue
			}
			whole := model.encode(q.Context.Text+c.Text, !q.NoSpecial)
			same := len(continuation) > 0 && slices.Equal(whole, slices.Concat(context, continuation))
			if pairs.Each[i].Moved == same {
				t.Fatalf("%q + %q: boundary_moved is %v", q.Context.Text, c.Text, pairs.Each[i].Moved)
			}
			if !same {
				moved++
			}
		}
	}
	if moved < 500 {
		t.Errorf("the boundary moved in %d cases only", moved)
	}
}

func TestWhiteSpaceIsPythons(t *testing.T) {
	for r := range rune(0x10000) {
		if r >= 0xd800 && r < 0xe000 {
			continue
		}
		q := loglikelihood.Question{Context: loglikelihood.Piece{Text: "a" + string(r)}, Continuations: texts("b")}
		if moves := q.Texts()[0].Text == "a"; moves != strings.ContainsRune(pythonSpaces, r) {
			t.Errorf("%U moves to the continuation: %v", r, moves)
		}
	}
}

// What is not a joint boundary of two texts is put together from its parts: token ids as they are, and texts by themselves.
func TestPartsThatAreNotJoinedStayAsTheyAre(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	alphabet := []string{"a", "b", " ", "\n", "é", "\u0301"}
	for range 5000 {
		model := tokenizer{bos: random.IntN(2) == 0, merges: []string{"ab", " a", "aé", "b\u0301", "ab a"}}
		draw := func(asIDs, special bool) (loglikelihood.Piece, []int64) {
			var b strings.Builder
			for range 1 + random.IntN(6) {
				b.WriteString(alphabet[random.IntN(len(alphabet))])
			}
			ids := model.encode(b.String(), special)
			if asIDs {
				return loglikelihood.Piece{IDs: ids}, ids
			}
			return loglikelihood.Piece{Text: b.String()}, ids
		}
		q := loglikelihood.Question{NoSpecial: random.IntN(2) == 0}
		contextIDs, ids := random.IntN(2) == 0, random.IntN(2) == 0
		q.Separate = !contextIDs && !ids || random.IntN(2) == 0
		var context []int64
		q.Context, context = draw(contextIDs, !q.NoSpecial)
		var want [][]int64
		for range 1 + random.IntN(3) {
			piece, tokens := draw(ids, false)
			q.Continuations, want = append(q.Continuations, piece), append(want, tokens)
		}
		pairs, err := model.split(&q)
		if err != nil || !slices.Equal(pairs.Context, context) {
			t.Fatalf("%+v: got %v and %v, want %v", q, pairs.Context, err, context)
		}
		for i, tokens := range want {
			if !slices.Equal(pairs.Each[i].Tokens, tokens) || pairs.Each[i].Moved {
				t.Fatalf("%+v: got %+v, want %v", q, pairs.Each[i], tokens)
			}
		}
	}
}

func TestBoundaries(t *testing.T) {
	server := tokenizer{bos: true, merges: []string{"se", "ve", "ser", "ver", "server", " x"}}
	ids := func(all ...int64) loglikelihood.Piece { return loglikelihood.Piece{IDs: all} }
	s, v, x := int64(302), int64(303), int64(305)
	for name, c := range map[string]struct {
		model    tokenizer
		question loglikelihood.Question
		context  []int64
		want     []loglikelihood.Pair
	}{
		"nothing left": {server, loglikelihood.Question{Context: texts("ser")[0], Continuations: texts("ver", " x")}, []int64{bos, s}, []loglikelihood.Pair{
			{Tokens: []int64{}, Moved: true}, {Tokens: []int64{x}},
		}},
		"separate": {server, loglikelihood.Question{Context: texts("ser ")[0], Continuations: texts("ver", "x"), Separate: true}, []int64{bos, s, 34}, []loglikelihood.Pair{
			{Tokens: []int64{v}}, {Tokens: []int64{122}},
		}},
		"blank moves": {server, loglikelihood.Question{Context: texts("ser ")[0], Continuations: texts("x")}, []int64{bos, s}, []loglikelihood.Pair{{Tokens: []int64{x}}}},
		"ids":         {server, loglikelihood.Question{Context: ids(7, 8), Continuations: []loglikelihood.Piece{ids(9), ids(bos, 4)}}, []int64{7, 8}, []loglikelihood.Pair{{Tokens: []int64{9}}, {Tokens: []int64{bos, 4}}}},
		"ids behind a text": {server, loglikelihood.Question{Context: texts("ser ")[0], Continuations: []loglikelihood.Piece{ids(9)}}, []int64{bos, s, 34}, []loglikelihood.Pair{
			{Tokens: []int64{9}},
		}},
		"a text behind ids":        {server, loglikelihood.Question{Context: ids(7), Continuations: texts(" x")}, []int64{7}, []loglikelihood.Pair{{Tokens: []int64{x}}}},
		"no context":               {server, loglikelihood.Question{Continuations: texts("ver"), NoSpecial: true}, []int64{bos}, []loglikelihood.Pair{{Tokens: []int64{v}}}},
		"no context, the same ids": {server, loglikelihood.Question{Continuations: []loglikelihood.Piece{ids(bos, 5)}}, []int64{bos}, []loglikelihood.Pair{{Tokens: []int64{5}}}},
		"blanks alone":             {server, loglikelihood.Question{Context: texts(" ")[0], Continuations: texts("x")}, []int64{bos}, []loglikelihood.Pair{{Tokens: []int64{x}}}},
	} {
		got, err := c.model.split(&c.question)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range got.Each {
			if (got.Each[i].Bytes == nil) != (c.question.Continuations[i].IDs != nil) {
				t.Errorf("%s: bytes of continuation %d: %v", name, i, got.Each[i].Bytes)
			}
			got.Each[i].Bytes = nil
		}
		if diff := cmp.Diff(c.want, got.Each); diff != "" || !slices.Equal(c.context, got.Context) {
			t.Errorf("%s: context %v (-want +got):\n%s", name, got.Context, diff)
		}
	}
	blank := loglikelihood.Question{Context: texts(" \n")[0], Continuations: texts("x")}
	if _, err := (tokenizer{}).split(&blank); !errors.Is(err, loglikelihood.ErrNoContext) {
		t.Errorf("blanks without special tokens: %v", err)
	}
}
