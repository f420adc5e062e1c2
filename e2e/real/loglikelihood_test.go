//go:build real

package real_test

import (
	"encoding/json"
	"math"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// loglikelihood is the response to POST /v1/loglikelihood.
type loglikelihood struct {
	Method        string
	ContextTokens int `json:"context_tokens"`
	Data          []struct {
		Logprob       float64
		Tokens        int
		IsGreedy      bool `json:"is_greedy"`
		BoundaryMoved bool `json:"boundary_moved"`
		TokenLogprobs []struct {
			ID      int `json:"token_id"`
			Logprob float64
			Rank    int
			Top     []struct {
				ID      int `json:"token_id"`
				Logprob float64
			}
		} `json:"token_logprobs"`
	}
}

// score posts a log-likelihood.
func (g *gateway) score(request map[string]any) (answer loglikelihood) {
	g.t.Helper()
	request["model"] = modelID
	body, err := json.Marshal(request)
	must(g.t, err)
	got := g.post("/v1/loglikelihood", string(body))
	if got.status != http.StatusOK {
		g.t.Fatalf("%s: %d %s", body, got.status, got.body)
	}
	must(g.t, json.Unmarshal([]byte(got.body), &answer))
	return answer
}

// TestLoglikelihoodIsLMEvals scores 500 random pairs through the gateway, and with lm-eval's own client directly at vLLM.
func TestLoglikelihoodIsLMEvals(t *testing.T) {
	server := backends(t)[0]
	g := startGateway(t, "", server)
	script, err := filepath.Abs("lmeval/pairs.py")
	must(t, err)
	output, err := tool(t, "none", "python", script, server.url, checkpoint, model, strconv.Itoa(500)).Output()
	must(t, err)
	pairs, moved, differ := 0, 0, 0
	for line := range strings.Lines(string(output)) {
		var want struct {
			Context, Continuation string
			Logprob               float64
			IsGreedy              bool `json:"is_greedy"`
		}
		must(t, json.Unmarshal([]byte(line), &want))
		got := g.score(map[string]any{
			"context": want.Context, "continuations": []string{want.Continuation}, "add_special_tokens": false, "tokens": true, "top": 1,
		}).Data[0]
		tie := true // lm-eval takes the first of two equally likely tokens for the likeliest
		for _, token := range got.TokenLogprobs {
			tie = tie && token.Logprob == token.Top[0].Logprob
		}
		pairs++
		if got.BoundaryMoved {
			moved++
		}
		if math.Abs(got.Logprob-want.Logprob) > 1e-6 {
			differ++
			t.Errorf("%q + %q: the gateway says %v, lm-eval %v", want.Context, want.Continuation, got.Logprob, want.Logprob)
		}
		if got.IsGreedy != want.IsGreedy && (!got.IsGreedy || !tie) {
			t.Errorf("%q + %q: the gateway says greedy %v, lm-eval %v", want.Context, want.Continuation, got.IsGreedy, want.IsGreedy)
		}
	}
	t.Logf("%d pairs, the boundary moved in %d; %d differ", pairs, moved, differ)
	if pairs != 500 || moved < 10 {
		t.Errorf("compared %d pairs, of which the boundary moved in %d", pairs, moved)
	}
}

// TestMethodsOfLoglikelihoodsAgree scores single tokens as next tokens and as prompts.
func TestMethodsOfLoglikelihoodsAgree(t *testing.T) {
	g := startGateway(t, "", backends(t)[0])
	for _, context := range []string{"The capital of France is", "1, 2, 3,", "Příliš žluťoučký", ""} {
		likely := g.score(map[string]any{"context": context, "continuations": [][]int{{5}, {6, 7}}, "tokens": true, "top": 20})
		var single [][]int
		for id := 300; id < 310; id++ {
			single = append(single, []int{id})
		}
		scored := g.score(map[string]any{"context": context, "continuations": append(single, []int{6, 7})})
		again := g.score(map[string]any{"context": context, "continuations": single})
		for i := range single {
			if scored.Data[i].Logprob != again.Data[i].Logprob || scored.Data[i].IsGreedy != again.Data[i].IsGreedy {
				t.Errorf("%q, token %d: %+v by %s, %+v by %s", context, single[i], scored.Data[i], scored.Method, again.Data[i], again.Method)
			}
		}
		if len(likely.Data[0].TokenLogprobs[0].Top) != 20 {
			t.Errorf("%q: %d alternatives", context, len(likely.Data[0].TokenLogprobs[0].Top))
		}
	}
	// The likeliest tokens themselves, which need no second request.
	first := g.score(map[string]any{"context": "The", "continuations": [][]int{{5, 6}}, "tokens": true, "top": 4}).Data[0].TokenLogprobs[0].Top
	var top [][]int
	for _, token := range first {
		top = append(top, []int{token.ID})
	}
	next := g.score(map[string]any{"context": "The", "continuations": top})
	for i, choice := range next.Data {
		if next.Method != "next_token" || choice.Logprob != first[i].Logprob {
			t.Errorf("the token %d: %v by %s, %v in a prompt", top[i], choice.Logprob, next.Method, first[i].Logprob)
		}
	}
}

// TestCheckOfRealScoring runs the probes of scoring: vLLM reports raw log-probabilities, and logprob_token_ids spoils others.
func TestCheckOfRealScoring(t *testing.T) {
	g := startGateway(t, "", backends(t)[0])
	table := g.run("check", "--probe")
	t.Log(table)
	for _, part := range []string{"--logprobs-mode", "--enable-tokenizer-info-endpoint"} {
		if strings.Contains(table, part) {
			t.Errorf("the table has %s", part)
		}
	}
	// White space alone, and no context at all.
	for _, context := range []string{" \n", ""} {
		if got := g.score(map[string]any{"context": context, "continuations": []string{"Once upon a time"}}); got.Data[0].Tokens == 0 || got.ContextTokens != 1 {
			t.Errorf("%q: %+v", context, got)
		}
	}
}
