package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Columns of the experiment of scoring.
const (
	byEcho          = "4 completions with echo"
	byLoglikelihood = "1 loglikelihood"
)

// requestsToVLLM are completions and tokenizations.
const requestsToVLLM = "requests to vLLM"

// answers is the number of continuations of a question, whose context has contextTokens tokens.
const (
	answers       = 4
	contextTokens = 200
	vocabulary    = 200 // token ids from 20 to below 220, which the mock's model has
)

// scoringLoads returns questions as log-likelihoods. Those without continuations get the likeliest tokens.
func scoringLoads() []load {
	ids := func(first, n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = strconv.Itoa(20 + (first+7*i)%vocabulary)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	text := func(first string, n int) string { return strconv.Quote(first + strings.Repeat(" word", n)) }
	var several, texts []string
	for i := range answers {
		several, texts = append(several, ids(i, 8)), append(texts, text([]string{" A", " B", " C", " D"}[i], 7))
	}
	question := func(name, context string, continuations []string) load {
		body := fmt.Appendf(nil, `{"model":%q,"context":%s,"continuations":[%s]}`, model, context, strings.Join(continuations, ","))
		return load{name: name, connections: 8, path: loglikelihoodPath, body: body}
	}
	return []load{
		question("4 answers of 8 tokens, as token ids", ids(0, contextTokens), several),
		question("4 answers of 8 tokens, as text", text("A", contextTokens), texts),
		question("4 answers of 1 token, as token ids", ids(0, contextTokens), nil),
	}
}

// measureScoring asks questions at once, or as clients did before there was an endpoint: a completion with echo for each answer,
// of which the first one is sent.
func measureScoring(ctx context.Context, b *testbed, l *load, column string) *outcome {
	t, vllm := b.behindGateway(ctx, gatewayOptions{}, childOptions{}), b.upstream(ctx, childOptions{})
	sent, requests := *l, 1
	if gjson.GetBytes(sent.body, "continuations.#").Int() == 0 {
		sent.body = t.withLikeliest(ctx, sent.body)
	}
	if column == byEcho {
		sent.path, sent.body, requests = completionsPath, echoOf(sent.body), answers
	}
	totals := func() (settled, tokens, posts float64) {
		posts = must(strconv.ParseFloat(string(must(fetch(ctx, http.MethodGet, "http://"+vllm.address+postsPath, nil, nil))), 64))
		return scrape(ctx, t.admin, `basegate_ledger_settlements_total{state="settled"} `), scrape(ctx, t.admin, "basegate_tokens_total{"), posts
	}
	settled, tokens, posts := totals()
	s := t.measure(ctx, &sent, b.options.span)
	settledAfter, tokensAfter, postsAfter := totals()
	questions := (settledAfter - settled) / float64(requests)
	return &outcome{[]figure{
		{"CPU, µs", s.perRequest(s.cpu) * float64(requests)},
		{"tokens charged", (tokensAfter - tokens) / questions},
		{requestsToVLLM, (postsAfter - posts) / questions},
	}, s.counts}
}

// withLikeliest returns a question with the likeliest tokens behind its context as its answers.
func (t *target) withLikeliest(ctx context.Context, question []byte) []byte {
	with := func(members string) []byte {
		context, _, _ := strings.Cut(string(question), `"continuations"`)
		return []byte(context + members + "}")
	}
	header := http.Header{"Authorization": {"Bearer " + t.keys[0]}}
	body := strings.NewReader(string(with(fmt.Sprintf(`"continuations":[[20,21]],"tokens":true,"top":%d`, answers))))
	scored := must(fetch(ctx, http.MethodPost, "http://"+t.address+loglikelihoodPath, header, body))
	var ids []string
	for _, id := range gjson.GetBytes(scored, "data.0.token_logprobs.0.top.#.token_id").Array() {
		ids = append(ids, "["+id.Raw+"]")
	}
	return with(`"continuations":[` + strings.Join(ids, ",") + "]")
}

// echoOf returns the completion that scores the first answer of a question.
func echoOf(question []byte) []byte {
	context, answer := gjson.GetBytes(question, "context"), gjson.GetBytes(question, "continuations.0")
	comma := ""
	if context.IsArray() {
		comma = ","
	}
	prompt := context.Raw[:len(context.Raw)-1] + comma + answer.Raw[1:]
	return fmt.Appendf(nil, `{"model":%q,"prompt":%s,"max_tokens":1,"temperature":0,"logprobs":1,"echo":true}`, model, prompt)
}
