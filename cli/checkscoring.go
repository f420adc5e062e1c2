package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"basegate/fleet"
)

// checkScoring checks what log-likelihoods and clients of the tokenizer need of a backend. It sends two completions of one token.
func checkScoring(ctx context.Context, part string, b *fleet.Backend) []finding {
	var findings []finding
	warn := func(format string, args ...any) {
		findings = append(findings, finding{part, checkWarning, fmt.Sprintf(format, args...)})
	}
	timed, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := b.TokenizerInfo(timed); errors.Is(err, fleet.ErrNoTokenizerInfo) {
		warn("does not serve /tokenizer_info, which lm-eval's remote tokenizer needs, and log-likelihoods without a context of some models: " +
			"start vLLM with --enable-tokenizer-info-endpoint")
	}
	next, scored, err := compareLogprobs(timed, b)
	if err == nil && !(math.Abs(next-scored) <= logprobTolerance) {
		warn("reports %.3f as the log-probability of a next token, and %.3f of the same one in a prompt, so the answers of "+
			"/v1/loglikelihood depend on its method: start vLLM with --logprobs-mode raw_logprobs", next, scored)
	}
	return findings
}

// logprobTolerance is more than the rounding of a GPU makes of one log-probability.
const logprobTolerance = 0.1

var errNotCompared = errors.New("the response has no such log-probability")

// compareLogprobs returns the log-probability of the likeliest token behind the probes' prompt, as the next token and as the last
// one of a prompt.
func compareLogprobs(ctx context.Context, b *fleet.Backend) (next, scored float64, err error) {
	ids, err := b.TokenIDs(ctx, probePrompt, true)
	if err != nil {
		return 0, 0, err
	}
	answer, err := probeFields(ctx, b, map[string]any{"prompt": ids, "logprobs": 1, "return_tokens_as_token_ids": true})
	if err != nil {
		return 0, 0, err
	}
	first := answer.Get("choices.0.logprobs")
	id, err := strconv.ParseInt(strings.TrimPrefix(first.Get("tokens.0").Str, "token_id:"), 10, 64)
	if err != nil {
		return 0, 0, errNotCompared
	}
	answer, err = probeFields(ctx, b, map[string]any{"prompt": append(ids, id), "prompt_logprobs": 1})
	if err != nil {
		return 0, 0, err
	}
	value := answer.Get(fmt.Sprintf("choices.0.prompt_logprobs.%d.%d.logprob", len(ids), id))
	if !value.Exists() {
		return 0, 0, errNotCompared
	}
	return first.Get("token_logprobs.0").Num, value.Num, nil
}

// probeFields sends a completion of one token with further fields.
func probeFields(ctx context.Context, b *fleet.Backend, fields map[string]any) (gjson.Result, error) {
	body := map[string]any{"model": b.Checkpoint(), "prompt": probePrompt, "max_tokens": 1, "temperature": 0}
	maps.Copy(body, fields)
	text, err := json.Marshal(body)
	if err != nil {
		return gjson.Result{}, err
	}
	return probeCompletion(ctx, b, text, false)
}

const (
	spoilRounds   = 3 // in which as many requests with logprob_token_ids as without run at once
	spoilRequests = 4
	spoilTokens   = 16
)

// probeNames says whether logprob_token_ids should be enabled for a backend that has the field.
func probeNames(ctx context.Context, part string, b *fleet.Backend) []finding {
	if !b.Server().TakesLogprobTokenIDs() {
		return nil
	}
	spoiled, ignored := false, false
	for range spoilRounds {
		group, ctx := errgroup.WithContext(ctx)
		answers := make([]gjson.Result, 2*spoilRequests)
		for i := range answers {
			fields := map[string]any{"max_tokens": spoilTokens, "ignore_eos": true, "return_tokens_as_token_ids": true, "logprobs": 5}
			if i%2 == 0 {
				fields["logprobs"], fields["logprob_token_ids"] = 1, []int{1, 2, 3, 4}
			}
			group.Go(func() (err error) {
				answers[i], err = probeFields(ctx, b, fields)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return []finding{{part, checkWarning, fmt.Sprintf("logprob_token_ids could not be tried: %v", err)}}
		}
		for i, answer := range answers {
			for _, top := range answer.Get("choices.0.logprobs.top_logprobs").Array() {
				switch entries := top.Map(); {
				case i%2 == 0:
					ignored = ignored || !top.Get("token_id:4").Exists()
				case len(entries) < 5:
					spoiled = true
				}
			}
		}
	}
	marked := b.TakesLogprobTokenIDs()
	switch {
	case ignored && marked:
		return []finding{{part, checkFailed, "ignores logprob_token_ids, but has logprob_token_ids: true in the configuration; remove it"}}
	case spoiled && marked:
		return []finding{{part, checkFailed, "logprob_token_ids spoils the log-probabilities of other requests, but it is true in the configuration; remove it"}}
	case !spoiled && !ignored && !marked:
		return []finding{{part, checkOK, "logprob_token_ids spoilt no other request: logprob_token_ids: true for this backend saves " +
			"/v1/loglikelihood second requests for unlikely tokens"}}
	}
	return nil
}
