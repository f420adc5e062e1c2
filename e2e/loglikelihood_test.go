//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// inJSON returns a value as JSON.
func inJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	must(t, err)
	return string(text)
}

// naive is what clients built from echo and slices before there was an endpoint: the sum and the greediness of the tokens that
// a prompt has beyond its context, as lm-eval's local-completions reads them.
func (g *gateway) naive(context, whole string) (sum float64, greedy bool) {
	g.t.Helper()
	ids := func(text string) string {
		return gjson.Get(g.call(http.MethodPost, "/v1/tokenize", g.secret, `{"model":"m","prompt":`+inJSON(g.t, text)+`}`).body, "tokens").Raw
	}
	from := int(gjson.Get(ids(context), "#").Int())
	got := g.complete(`{"model":"m","prompt":` + ids(whole) + `,"max_tokens":1,"temperature":0,"logprobs":1,"echo":true}`)
	values, top := gjson.Get(got.body, "choices.0.logprobs.token_logprobs").Array(), gjson.Get(got.body, "choices.0.logprobs.top_logprobs").Array()
	greedy = true
	for i := from; i < len(values)-1; i++ {
		sum += values[i].Num
		most := math.Inf(-1)
		for _, v := range top[i].Map() {
			most = max(most, v.Num)
		}
		greedy = greedy && values[i].Num == most
	}
	return sum, greedy
}

func TestLoglikelihoodIsWhatClientsComputeByThemselves(t *testing.T) {
	mock := startMock(t, mockvllm.Options{TokenizerInfo: true})
	g := newEnvironment(t, settings{}, mock.URL()).serve()
	tokens := int64(0)
	for context, continuations := range map[string][]string{
		"The capital of France is":       {" Paris", " London", " a city of the north"},
		"Once upon a time \n":            {"there was a king", "a", "\n"},
		"Was it the best of times? Yes":  {" it was", "!", " ✓ and\u00a0more"},
		"One, two,":                      {" three", " four"},
		"A question of taste\u00a0\x1c ": {"or of time"},
	} {
		got := g.call(http.MethodPost, "/v1/loglikelihood", g.secret, `{"model":"m","context":`+inJSON(t, context)+`,"continuations":`+inJSON(t, continuations)+`}`)
		if got.status != http.StatusOK {
			t.Fatalf("%q: %d %s", context, got.status, got.body)
		}
		for i, c := range continuations {
			answer := gjson.Get(got.body, fmt.Sprintf("data.%d", i))
			want, greedy := g.naive(strings.TrimRight(context, " \n\u00a0\x1c"), context+c)
			if math.Abs(answer.Get("logprob").Num-want) > 1e-9 || answer.Get("is_greedy").Bool() != greedy || answer.Get("bytes").Int() != int64(len(c)) {
				t.Errorf("%q + %q: got %s, want %v, greedy %v", context, c, answer.Raw, want, greedy)
			}
		}
		tokens += gjson.Get(got.body, "usage.total_tokens").Int()
	}
	charged := int64(0)
	for _, row := range gjson.Parse(g.run("usage", "--by", "request", "--json")).Array() {
		if row.Get("endpoint").Str == "/v1/loglikelihood" {
			charged += row.Get("prompt_tokens").Int() + row.Get("completion_tokens").Int()
		}
	}
	if charged != tokens {
		t.Errorf("the ledger has %d tokens, the answers have %d", charged, tokens)
	}
}

func TestCheckOfScoring(t *testing.T) {
	for name, c := range map[string]struct {
		options mockvllm.Options
		marked  bool
		has     []string
		lacks   []string
		code    int
	}{
		"vLLM as it is":  {options: mockvllm.Options{}, has: []string{"--enable-tokenizer-info-endpoint"}, lacks: []string{"logprob_token_ids", "--logprobs-mode"}},
		"marked wrongly": {options: mockvllm.Options{TokenizerInfo: true}, marked: true, has: []string{"spoils"}, lacks: []string{"tokenizer-info"}, code: 1},
		"a sound one":    {options: mockvllm.Options{TokenizerInfo: true, SoundLogprobIDs: true}, has: []string{"logprob_token_ids: true for this backend"}},
		"marked rightly": {options: mockvllm.Options{SoundLogprobIDs: true}, marked: true, lacks: []string{"logprob_token_ids"}},
	} {
		c.options.TokenDelay = 5 * time.Millisecond
		mock := startMock(t, c.options)
		env := newEnvironment(t, settings{probeTimeout: loadedProbe, models: fmt.Sprintf(
			`{id: m, checkpoint: %s, backends: [{name: b0, url: %q, logprob_token_ids: %v}]}`, checkpoint, mock.URL(), c.marked)})
		awaitCommand(t, fmt.Sprintf("the table of %s has %q and lacks %q, with exit code %d", name, c.has, c.lacks, c.code), func(table, _ string, code int) bool {
			has := func(part string) bool { return strings.Contains(table, part) }
			lacks := func(part string) bool { return !has(part) }
			return code == c.code && !slices.ContainsFunc(c.has, lacks) && !slices.ContainsFunc(c.lacks, has)
		}, "check", "--probe", "--config", env.config)
	}
}
