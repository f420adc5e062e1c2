package loglikelihood_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/proxy/loglikelihood"
)

// pairsOf returns the pairs of a context [1, 2] with these continuations.
func pairsOf(t *testing.T, tokens bool, top int, continuations ...[]int64) loglikelihood.Pairs {
	t.Helper()
	q := loglikelihood.Question{Context: loglikelihood.Piece{IDs: []int64{1, 2}}, Tokens: tokens, Top: top}
	for _, ids := range continuations {
		q.Continuations = append(q.Continuations, loglikelihood.Piece{IDs: ids})
	}
	pairs, err := tokenizer{}.split(&q)
	if err != nil {
		t.Fatal(err)
	}
	return pairs
}

func TestRequests(t *testing.T) {
	p := pairsOf(t, false, 0, []int64{5}, []int64{6})
	for want, got := range map[string]string{
		`,"prompt":[1,2],"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":20`: string(p.AppendNextBody(nil, 50)),
		`,"prompt":[1,2],"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":5`:  string(p.AppendNextBody(nil, 5)),
		`[5,6]`: string(p.AppendNames(nil)),
		`,"prompt":[[1,2,5],[1,2,6]],"max_tokens":1,"prompt_logprobs":1`: string(p.AppendScoredBody(nil)),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	p = pairsOf(t, true, 3, []int64{5}, []int64{}, []int64{6, 7})
	if got := string(p.AppendScoredBody(nil)); got != `,"prompt":[[1,2,5],[1,2,6,7]],"max_tokens":1,"prompt_logprobs":3` {
		t.Error(got)
	}
	if n, tokens := p.Prompts(); n != 2 || tokens != 7 {
		t.Errorf("%d prompts of %d tokens", n, tokens)
	}
	p = pairsOf(t, false, 0, []int64{5, 6})
	if got := string(p.AppendScoredBody(nil)); got != `,"prompt":[1,2,5,6],"max_tokens":1,"prompt_logprobs":1` {
		t.Error(got)
	}
	p = pairsOf(t, false, 0, []int64{})
	if n, tokens := p.Prompts(); n != 1 || tokens != 2 || !strings.Contains(string(p.AppendScoredBody(nil)), `"prompt":[1,2],`) {
		t.Errorf("nothing to score: %d prompts of %d tokens", n, tokens)
	}
}

func TestMethod(t *testing.T) {
	one := make([][]int64, 0, 129)
	for i := range int64(129) {
		one = append(one, []int64{i})
	}
	for name, c := range map[string]struct {
		pairs       loglikelihood.Pairs
		maxLogprobs int
		next        bool
	}{
		"one token each": {pairsOf(t, false, 0, []int64{5}, []int64{6}), 20, true},
		"128":            {pairsOf(t, false, 0, one[:128]...), 20, true},
		"129":            {pairsOf(t, false, 0, one...), 20, false},
		"two tokens":     {pairsOf(t, false, 0, []int64{5}, []int64{6, 7}), 20, false},
		"no token":       {pairsOf(t, false, 0, []int64{5}, []int64{}), 20, false},
		"one twice":      {pairsOf(t, false, 0, []int64{5}, []int64{5}), 20, false},
		"no logprobs":    {pairsOf(t, false, 0, []int64{5}), 0, false},
		"alternatives":   {pairsOf(t, true, 20, []int64{5}), 30, true},
		"more of them":   {pairsOf(t, true, 21, []int64{5}), 30, false},
	} {
		if got := c.pairs.TakesNextToken(c.maxLogprobs); got != c.next {
			t.Errorf("%s: next_token %v", name, got)
		}
	}
}

func next(sampled string, value float64, top string) []byte {
	return fmt.Appendf(nil, `{"choices":[{"index":0,"logprobs":{"tokens":[%q],"token_logprobs":[%v],"top_logprobs":[{%s}]}}]}`, sampled, value, top)
}

func TestNextToken(t *testing.T) {
	p := pairsOf(t, true, 2, []int64{5}, []int64{6}, []int64{7})
	got, err := p.ReadNext(next("token_id:6", -0.5, `"token_id:6":-0.5,"token_id:5":-0.5,"token_id:7":-2.25,"token_id:8":-1`))
	if err != nil {
		t.Fatal(err)
	}
	top := []loglikelihood.Token{{ID: 5, Logprob: -0.5, Rank: 2}, {ID: 6, Logprob: -0.5, Rank: 2}}
	want := []loglikelihood.Result{
		{Index: 0, Logprob: -0.5, Tokens: 1, IsGreedy: true, Each: []loglikelihood.Token{{ID: 5, Logprob: -0.5, Rank: 2, Top: top}}},
		{Index: 1, Logprob: -0.5, Tokens: 1, IsGreedy: true, Each: []loglikelihood.Token{{ID: 6, Logprob: -0.5, Rank: 2, Top: top}}},
		{Index: 2, Logprob: -2.25, Tokens: 1, Each: []loglikelihood.Token{{ID: 7, Logprob: -2.25, Rank: 4, Top: top}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, body := range map[string][]byte{
		"not among them": next("token_id:6", -0.5, `"token_id:6":-0.5,"token_id:5":-0.6`),
		"spoiled":        next("token_id:6", -0.5, `"token_id:6":-0.5,"token_id:5":-9999.0,"token_id:7":-1`),
		"texts":          next(" a", -0.5, `" a":-0.5,"b":-1,"c":-2`),
		"no logprobs":    []byte(`{"choices":[{"index":0,"logprobs":null}]}`),
	} {
		if _, err := p.ReadNext(body); !errors.Is(err, loglikelihood.ErrMissing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// scored is a response with the positions of the prompts, each with its choice's index.
func scored(choices ...string) []byte {
	return []byte(`{"choices":[` + strings.Join(choices, ",") + `]}`)
}

func choice(index int, positions ...string) string {
	return fmt.Sprintf(`{"index":%d,"text":"","prompt_logprobs":[null,%s]}`, index, strings.Join(positions, ","))
}

func TestScored(t *testing.T) {
	const (
		context = `{"2":{"logprob":-3,"rank":9,"decoded_token":"b"}}`
		tie     = `{"6":{"logprob":-1.5,"rank":2,"decoded_token":"f"},"9":{"logprob":-1.5,"rank":2,"decoded_token":"i"}}`
		later   = `{"7":{"logprob":-2.25,"rank":3,"decoded_token":""},"9":{"logprob":-0.125,"rank":1,"decoded_token":"i"}}`
		five    = `{"5":{"logprob":-0.5,"rank":1,"decoded_token":null}}`
	)
	p := pairsOf(t, true, 1, []int64{5}, []int64{}, []int64{6, 7})
	good := scored(choice(1, context, tie, later), choice(0, context, five))
	got, err := p.ReadScored(good)
	if err != nil {
		t.Fatal(err)
	}
	f, i := loglikelihood.Token{ID: 6, Text: "f", Logprob: -1.5, Rank: 2}, loglikelihood.Token{ID: 9, Text: "i", Logprob: -0.125, Rank: 1}
	want := []loglikelihood.Result{
		{Index: 0, Logprob: -0.5, Tokens: 1, IsGreedy: true, Each: []loglikelihood.Token{{ID: 5, Logprob: -0.5, Rank: 1, Top: []loglikelihood.Token{{ID: 5, Logprob: -0.5, Rank: 1}}}}},
		{Index: 1, IsGreedy: true, BoundaryMoved: true, Each: []loglikelihood.Token{}},
		{Index: 2, Logprob: -3.75, Tokens: 2, Each: []loglikelihood.Token{
			{ID: 6, Text: "f", Logprob: -1.5, Rank: 2, Top: []loglikelihood.Token{f}}, {ID: 7, Logprob: -2.25, Rank: 3, Top: []loglikelihood.Token{i}},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p = pairsOf(t, false, 0, []int64{5}, []int64{}, []int64{6, 7})
	if got, err = p.ReadScored(good); err != nil || got[2].Logprob != -3.75 || got[2].IsGreedy || got[2].Each != nil || !got[0].IsGreedy {
		t.Errorf("%v %+v", err, got)
	}
	for name, body := range map[string][]byte{
		"minus infinity":        scored(choice(0, context, `{"5":{"logprob":-9999.0}}`), choice(1, context, tie, later)),
		"an infinite one":       scored(choice(0, context, `{"5":{"logprob":-1e999}}`), choice(1, context, tie, later)),
		"no number":             scored(choice(0, context, `{"5":{"logprob":null}}`), choice(1, context, tie, later)),
		"an infinite neighbour": scored(choice(0, context, `{"5":{"logprob":-1},"6":{"logprob":1e999}}`), choice(1, context, tie, later)),
		"another token":         scored(choice(0, context, `{"6":{"logprob":-1}}`), choice(1, context, tie, later)),
		"no position":           scored(choice(0, context, `null`), choice(1, context, tie, later)),
		"too short":             scored(choice(0, context), choice(1, context, tie, later)),
		"too long":              scored(choice(0, context, five, five), choice(1, context, tie, later)),
		"no log-probabilities":  scored(`{"index":0,"prompt_logprobs":null}`, choice(1, context, tie, later)),
		"one choice":            scored(choice(0, context, five)),
		"nothing":               []byte(`{}`),
	} {
		if _, err := p.ReadScored(body); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
