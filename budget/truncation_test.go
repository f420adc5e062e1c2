package budget_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"basegate/budget"
	"basegate/budget/quota"
)

// A max_tokens that would have to be lowered below min_tokens is refused.
func TestMaxTokensIsNeverLoweredBelowMinTokens(t *testing.T) {
	for _, c := range []struct {
		limit, minTokens, want int64 // want 0: refused
	}{
		{110, 100, 100}, {109, 99, 99}, {109, 100, 0}, {60, 50, 50}, {60, 51, 0}, {11, 0, 1}, {11, 1, 1}, {11, 2, 0}, {200, 500, 100},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			l := newLedger(t)
			p := budget.Payer{Key: "key", Account: "acc", KeyCaps: quota.Caps{quota.MonthTotal: quota.Limit(c.limit)}}
			d := budget.Demand{PromptTokens: 10, Exact: true, Candidates: 1, MaxTokens: 100, MinTokens: c.minTokens}
			r, err := l.Reserve(t.Context(), p, newRequest(), d, nil)
			if c.want == 0 {
				if _, ok := errors.AsType[*budget.Exceeded](err); !ok {
					t.Fatalf("got %v, want Exceeded", err)
				}
				return
			}
			must(t, err)
			if r.MaxTokens() != c.want {
				t.Errorf("got %d tokens, want %d", r.MaxTokens(), c.want)
			}
			settle(t, r, 0, 0)
		})
	}
}

// Prompts that are truncated to what max_tokens leaves of the context grow when it is lowered. The most that fits is
// found as by trying every max_tokens.
func TestTruncatedPromptIsCountedAgainAfterAClamp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	granted, refused := 0, 0
	l := newLedger(t)
	for i := range 2000 {
		const context = 60
		prompts := make([]int64, 1+rng.IntN(3))
		for j := range prompts {
			prompts[j] = 1 + rng.Int64N(90)
		}
		promptAt := func(maxTokens int64) (sum int64) {
			for _, n := range prompts {
				sum += min(n, context-maxTokens)
			}
			return sum
		}
		d := budget.Demand{
			Exact: true, Candidates: int64(len(prompts)) * (1 + rng.Int64N(2)), MaxTokens: 1 + rng.Int64N(context-1), Prompts: prompts, Context: context,
		}
		d.PromptTokens, d.MinTokens = promptAt(d.MaxTokens), rng.Int64N(d.MaxTokens+1)
		caps := quota.Caps{quota.MonthTotal: quota.Limit(1 + rng.Int64N(250))}
		input, output := int64(1<<40), int64(1<<40)
		if rng.IntN(3) == 0 {
			input = 1 + rng.Int64N(120)
			caps[quota.MonthInput] = quota.Limit(input)
		}
		if rng.IntN(3) == 0 {
			output = 1 + rng.Int64N(120)
			caps[quota.MonthOutput] = quota.Limit(output)
		}
		total, _ := caps[quota.MonthTotal].Tokens()
		want := d.MaxTokens // a lower one has more prompt tokens, so the highest that fits total and output decides
		for want > 0 && (promptAt(want)+d.Candidates*want > total || d.Candidates*want > output) {
			want--
		}
		if want < max(1, d.MinTokens) || promptAt(want) > input {
			want = 0
		}
		r, err := l.Reserve(t.Context(), budget.Payer{Key: fmt.Sprint("key", i), Account: "acc", KeyCaps: caps}, newRequest(), d, nil)
		if want == 0 {
			refused++
			if _, ok := errors.AsType[*budget.Exceeded](err); !ok {
				t.Fatalf("prompts %v, %+v, caps %v: got %v, want Exceeded", prompts, d, caps, err)
			}
			continue
		}
		granted++
		must(t, err)
		if r.MaxTokens() != want {
			t.Fatalf("prompts %v, %+v, caps %v: got %d, want %d", prompts, d, caps, r.MaxTokens(), want)
		}
		if reserved := l.Balance(budget.Payer{Key: fmt.Sprint("key", i)}).Key.Reserved[quota.Month].Total(); reserved != promptAt(want)+d.Candidates*want {
			t.Fatalf("prompts %v, %+v: %d reserved, want %d", prompts, d, reserved, promptAt(want)+d.Candidates*want)
		}
		settle(t, r, 0, 0)
	}
	if granted < 200 || refused < 200 {
		t.Errorf("%d granted and %d refused: the test covers too little", granted, refused)
	}
}
