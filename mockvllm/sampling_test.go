package mockvllm_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/mockvllm"
)

func TestSeedRepeatsOutput(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"prompt": "Once upon a time", "max_tokens": 40, "temperature": 1.2, "seed": 42}
	first := complete(t, p, fields).Choices[0].Text
	if second := complete(t, p, fields).Choices[0].Text; first != second {
		t.Errorf("two requests with one seed gave\n%q and\n%q", first, second)
	}
	fields["seed"] = 43
	if other := complete(t, p, fields).Choices[0].Text; first == other {
		t.Errorf("another seed gave the same text, %q", other)
	}
}

func TestGreedyPicksTheMostLikelyToken(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{
		"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "logprobs": 1, "ignore_eos": true,
	}).Choices[0]
	for i, top := range c.Logprobs.TopLogprobs {
		token := c.Logprobs.Tokens[i]
		if len(top) != 1 || top[token] != *c.Logprobs.TokenLogprobs[i] {
			t.Errorf("token %d: got %q, want the most likely, %v", i, token, top)
		}
	}
}

func TestProbabilitiesSumToOne(t *testing.T) {
	p := start(t, mockvllm.Options{MaxLogprobs: -1})
	for _, prompt := range []string{"The capital of France is", "zzz", "你好"} {
		c := complete(t, p, map[string]any{"prompt": prompt, "max_tokens": 1, "prompt_logprobs": -1}).Choices[0]
		for at, position := range c.PromptLogprobs {
			sum := 0.0
			for _, token := range position {
				sum += math.Exp(token.Logprob)
			}
			if position != nil && math.Abs(sum-1) > 1e-4 {
				t.Errorf("%q, position %d: probabilities of %d tokens sum to %v, want 1", prompt, at, len(position), sum)
			}
		}
	}
}

func TestPromptLogprobsHoldActualTokenAndRank(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{
		"prompt": "The capital of France is Rome", "max_tokens": 1, "prompt_logprobs": 3, "return_token_ids": true,
	}).Choices[0]
	if len(c.PromptLogprobs) != len(c.PromptTokenIDs) || c.PromptLogprobs[0] != nil {
		t.Fatalf("got %d positions for %d tokens, the first %v, want one each and null first", len(c.PromptLogprobs), len(c.PromptTokenIDs), c.PromptLogprobs[0])
	}
	for at, position := range c.PromptLogprobs[1:] {
		id := fmt.Sprint(c.PromptTokenIDs[at+1])
		actual, ok := position[id]
		if !ok {
			t.Fatalf("position %d lacks the prompt's token", at+1)
		}
		if wanted := 3 + min(1, max(0, actual.Rank-3)); len(position) != wanted {
			t.Errorf("position %d has %d entries, want %d", at+1, len(position), wanted)
		}
		for other, s := range position {
			if other != id && (s.Rank < actual.Rank) != (s.Logprob > actual.Logprob) && s.Logprob != actual.Logprob {
				t.Errorf("position %d: ranks %d and %d contradict log-probabilities %v and %v", at+1, s.Rank, actual.Rank, s.Logprob, actual.Logprob)
			}
		}
	}
	last := c.PromptLogprobs[len(c.PromptLogprobs)-1]
	if got := last[fmt.Sprint(c.PromptTokenIDs[len(c.PromptTokenIDs)-1])]; got.DecodedToken != " Rome" || got.Rank < 2 {
		t.Errorf("last token: got %+v, want Rome, ranked below Paris", got)
	}
}

func TestOutputsOfOneRequestDiffer(t *testing.T) {
	p := start(t, mockvllm.Options{})
	both := complete(t, p, map[string]any{
		"prompt": []string{"Once upon a time", "Hello"}, "n": 3, "max_tokens": 30, "seed": 7, "temperature": 1.2,
	})
	texts := make(map[string]bool)
	for index, c := range both.Choices {
		if c.Index != index {
			t.Errorf("choice %d: got index %d", index, c.Index)
		}
		texts[c.Text] = true
	}
	if len(both.Choices) != 6 || len(texts) < 5 {
		t.Errorf("got %d choices with %d texts, want 6 with at least 5", len(both.Choices), len(texts))
	}
	single := complete(t, p, map[string]any{"prompt": "Once upon a time", "max_tokens": 30, "seed": 8, "temperature": 1.2})
	if single.Choices[0].Text != both.Choices[1].Text {
		t.Error("output 1 of seed 7 differs from output 0 of seed 8")
	}
}

func TestTopKOneIsGreedy(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"prompt": "It is", "max_tokens": 30, "temperature": 0}
	greedy := complete(t, p, fields).Choices[0].Text
	fields["temperature"], fields["top_k"] = 1.5, 1
	if got := complete(t, p, fields).Choices[0].Text; got != greedy {
		t.Errorf("top_k 1: got %q, want the greedy %q", got, greedy)
	}
}

// drawnTokens returns the distinct first tokens of 300 outputs.
func drawnTokens(t *testing.T, p *mockvllm.Process, fields map[string]any) []int {
	t.Helper()
	all := map[string]any{"prompt": "The", "max_tokens": 1, "n": 300, "seed": 1, "return_token_ids": true}
	maps.Copy(all, fields)
	var ids []int
	for _, c := range complete(t, p, all).Choices {
		ids = append(ids, c.TokenIDs[0])
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func TestParametersRestrictCandidates(t *testing.T) {
	p := start(t, mockvllm.Options{MaxLogprobs: -1})
	c := complete(t, p, map[string]any{
		"prompt": "The", "max_tokens": 1, "logprobs": 1200, "temperature": 0, "return_tokens_as_token_ids": true,
	}).Choices[0]
	probabilities := make(map[int]float64)
	for name, logprob := range c.Logprobs.TopLogprobs[0] {
		var id int
		if _, err := fmt.Sscanf(name, "token_id:%d", &id); err != nil {
			t.Fatal(err)
		}
		probabilities[id] = math.Exp(logprob)
	}
	ranked := make([]int, 0, len(probabilities))
	for id := range probabilities {
		ranked = append(ranked, id)
	}
	slices.SortFunc(ranked, func(a, b int) int {
		if probabilities[a] != probabilities[b] {
			return int(math.Copysign(1, probabilities[b]-probabilities[a]))
		}
		return a - b
	})
	all := drawnTokens(t, p, nil)
	if len(all) < 20 {
		t.Fatalf("without limits %d tokens are drawn, want at least 20", len(all))
	}
	for name, test := range map[string]struct {
		fields map[string]any
		within func(id int) bool
	}{
		"top_k": {map[string]any{"top_k": 5}, func(id int) bool { return slices.Contains(ranked[:5], id) }},
		"min_p": {map[string]any{"min_p": 0.2}, func(id int) bool { return probabilities[id] > 0.199*probabilities[ranked[0]] }},
		"top_p": {map[string]any{"top_p": 0.3}, func(id int) bool {
			before := 0.0
			for _, other := range ranked[:slices.Index(ranked, id)] {
				before += probabilities[other]
			}
			return before < 0.301
		}},
		"allowed_token_ids": {map[string]any{"allowed_token_ids": []int{65, 66}}, func(id int) bool { return id == 65 || id == 66 }},
	} {
		ids := drawnTokens(t, p, test.fields)
		if len(ids) < 2 || len(ids) >= len(all) {
			t.Errorf("%s: %d tokens are drawn, want at least 2 and fewer than %d", name, len(ids), len(all))
		}
		for _, id := range ids {
			if !test.within(id) {
				t.Errorf("%s: token %d is drawn, want it excluded", name, id)
			}
		}
	}
}

func TestLogitBiasForcesAndBans(t *testing.T) {
	p := start(t, mockvllm.Options{})
	forced := complete(t, p, map[string]any{"logit_bias": map[string]any{"33": 100}, "max_tokens": 5, "seed": 1})
	if got := forced.Choices[0].Text; got != "!!!!!" {
		t.Errorf("bias 100 on \"!\": got %q, want !!!!!", got)
	}
	free := complete(t, p, map[string]any{"temperature": 0, "max_tokens": 1, "return_token_ids": true}).Choices[0]
	banned := complete(t, p, map[string]any{
		"temperature": 0, "max_tokens": 1, "logit_bias": map[string]any{fmt.Sprint(free.TokenIDs[0]): -100},
	}).Choices[0]
	if free.Text != " Paris" || banned.Text == free.Text {
		t.Errorf("got %q without bias and %q with the token banned, want \" Paris\" and another", free.Text, banned.Text)
	}
}

func TestPenaltiesReduceRepetition(t *testing.T) {
	p := start(t, mockvllm.Options{})
	repeats := func(name string, amount float64) int {
		total := 0
		for _, c := range complete(t, p, map[string]any{
			"prompt": "1, 2, 3, 4,", "max_tokens": 60, "n": 20, "seed": 1, "ignore_eos": true, "return_token_ids": true,
			name: amount,
		}).Choices {
			unique := slices.Clone(c.TokenIDs)
			slices.Sort(unique)
			total += len(c.TokenIDs) - len(slices.Compact(unique))
		}
		return total
	}
	free := repeats("presence_penalty", 0)
	for name, amount := range map[string]float64{"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.9} {
		if got := repeats(name, amount); float64(got) > 0.9*float64(free) {
			t.Errorf("%s %v: got %d repeats, want at most 0.9 of the %d without it", name, amount, got, free)
		}
		if name != "repetition_penalty" && repeats(name, -amount) <= free {
			t.Errorf("%s %v: want more repeats than the %d without it", name, -amount, free)
		}
	}
}

func TestMinTokensDelaysTheEnd(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"temperature": 0, "max_tokens": 60}
	short := complete(t, p, fields)
	if *short.Choices[0].FinishReason != "stop" {
		t.Fatalf("finish_reason: got %s, want stop", *short.Choices[0].FinishReason)
	}
	fields["min_tokens"] = 60
	if got := complete(t, p, fields).Usage.Completion; got != 60 {
		t.Errorf("min_tokens 60: got %d tokens", got)
	}
}

func TestUsageCountsPromptsOnce(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{
		"prompt": [][]int{{72, 105}, {72}}, "n": 2, "max_tokens": 3, "ignore_eos": true,
	})
	if diff := cmp.Diff(&usage{Prompt: 3, Completion: 12, Total: 15}, c.Usage); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEOSFinishesWithStop(t *testing.T) {
	p := start(t, mockvllm.Options{})
	c := complete(t, p, map[string]any{"temperature": 0, "max_tokens": 60, "return_token_ids": true, "logprobs": 0})
	choice := c.Choices[0]
	if *choice.FinishReason != "stop" || choice.StopReason != nil || strings.Contains(choice.Text, "<|") {
		t.Errorf("got finish_reason %s, stop_reason %v, text %q, want stop, null and no special token", *choice.FinishReason, choice.StopReason, choice.Text)
	}
	if c.Usage.Completion != len(choice.TokenIDs) || len(choice.Logprobs.Tokens) != len(choice.TokenIDs) {
		t.Errorf("usage counts %d tokens, token_ids has %d, logprobs %d, want them equal", c.Usage.Completion, len(choice.TokenIDs), len(choice.Logprobs.Tokens))
	}
}
