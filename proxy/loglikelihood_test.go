package proxy_test

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/budget/receipt"
	"basegate/budget/usage"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// startScoring starts a gateway in front of a mock of vLLM.
func startScoring(t *testing.T, options mockvllm.Options, change func(*harnessOptions)) (*harness, *mockvllm.Process) {
	t.Helper()
	options.Models, options.APIKey = []string{"org/Model-8B"}, "backend-key"
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	return newHarness(t, change, mock.URL()), mock
}

// markBackends lets logprob_token_ids be sent to the backends of the model at an address.
func markBackends(address string) func(*harnessOptions) {
	return func(o *harnessOptions) {
		b := config.Backend{Name: "marked", URL: mustURL(address), APIKey: config.NewSecret("backend-key"), LogprobTokenIDs: true}
		o.model.Backends = append(o.model.Backends, b)
	}
}

func mustURL(address string) *url.URL {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	return u
}

// completions returns the bodies of the completions that a mock has received.
func completions(mock *mockvllm.Process) (bodies []gjson.Result) {
	for _, r := range mock.Requests() {
		if r.Path == "/v1/completions" {
			bodies = append(bodies, gjson.ParseBytes(r.Body))
		}
	}
	return bodies
}

// loglikelihood posts a log-likelihood that must succeed.
func (h *harness) loglikelihood(members string) gjson.Result {
	h.t.Helper()
	got := h.post("/v1/loglikelihood", `{"model":"m",`+members+`}`)
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
		h.t.Fatalf("%.200s: got %d %s", members, got.status, got.body)
	}
	return gjson.Parse(got.body)
}

// logprobs returns the log-likelihood of each continuation.
func logprobs(answer gjson.Result) (all []float64) {
	for _, l := range answer.Get("data.#.logprob").Array() {
		all = append(all, l.Num)
	}
	return all
}

// scoreDirectly returns the log-likelihood of the tokens of a prompt from one on, from a mock's own prompt_logprobs.
func scoreDirectly(t *testing.T, h *harness, tokens []int64, from int) (sum float64, greedy bool) {
	t.Helper()
	ids := strings.ReplaceAll(fmt.Sprint(tokens), " ", ",")
	got := h.complete(`{"model":"m","prompt":` + ids + `,"max_tokens":1,"prompt_logprobs":1}`)
	greedy = true
	for i, position := range gjson.Get(got.body, "choices.0.prompt_logprobs").Array() {
		if i < from {
			continue
		}
		own, most := position.Get(fmt.Sprint(tokens[i])).Get("logprob").Num, math.Inf(-1)
		position.ForEach(func(_, entry gjson.Result) bool {
			most = max(most, entry.Get("logprob").Num)
			return true
		})
		sum, greedy = sum+own, greedy && own == most
	}
	return sum, greedy
}

func (h *harness) tokens(text string, special bool) (ids []int64) {
	h.t.Helper()
	got := h.post("/v1/tokenize", fmt.Sprintf(`{"model":"m","prompt":%q,"add_special_tokens":%v}`, text, special))
	for _, id := range gjson.Get(got.body, "tokens").Array() {
		ids = append(ids, id.Int())
	}
	return ids
}

func TestLoglikelihoodOfContinuations(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	answer := h.loglikelihood(`"context":"The capital of France is ","continuations":["Paris, of course","London"],"user":"ada"`)
	requests := completions(mock)
	if len(requests) != 1 {
		t.Fatalf("the backend received %d completions", len(requests))
	}
	sent := requests[0]
	if sent.Get("prompt.#").Int() != 2 || sent.Get("max_tokens").Int() != 1 || sent.Get("prompt_logprobs").Int() != 1 || sent.Get("model").Str != "org/Model-8B" {
		t.Errorf("the backend received %s", sent.Raw)
	}
	context := h.tokens("The capital of France is", true)
	prompts := int64(0)
	for i, text := range []string{"Paris, of course", "London"} {
		whole := h.tokens("The capital of France is "+text, true)
		want, greedy := scoreDirectly(t, h, whole, len(context))
		got := answer.Get("data").Array()[i]
		if got.Get("logprob").Num != want || got.Get("is_greedy").Bool() != greedy || got.Get("index").Int() != int64(i) ||
			got.Get("tokens").Int() != int64(len(whole)-len(context)) || got.Get("bytes").Int() != int64(len(text)) || got.Get("boundary_moved").Bool() || got.Get("token_logprobs").Exists() {
			t.Errorf("%q: got %s, want %v, greedy %v", text, got.Raw, want, greedy)
		}
		prompts += int64(len(whole))
	}
	if answer.Get("object").Str != "loglikelihood" || answer.Get("model").Str != "org/Model-8B" || answer.Get("method").Str != "scored" ||
		answer.Get("context_tokens").Int() != int64(len(context)) || answer.Get("user").Str != "ada" {
		t.Errorf("got %s", answer.Raw)
	}
	if u := answer.Get("usage"); u.Get("prompt_tokens").Int() != prompts || u.Get("completion_tokens").Int() != 2 || u.Get("total_tokens").Int() != prompts+2 {
		t.Errorf("usage is %s, want %d prompt tokens", u.Raw, prompts)
	}
	rows := h.awaitRows(3)
	if !slices.ContainsFunc(rows, func(r usage.Row) bool {
		return r.Endpoint == "/v1/loglikelihood" && r.PromptTokens == prompts && r.User == "ada"
	}) {
		t.Errorf("the ledger has %+v", rows)
	}
	if log := h.log.String(); strings.Contains(log, "France") || strings.Contains(log, "London") {
		t.Error("the log has the texts")
	}
}

// One token each: the context is asked once, and the values are those of scored prompts.
func TestSingleTokensCostOnePrompt(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	const members = `"context":"The capital of France is","continuations":[" the"," a"],"tokens":true,"top":2`
	answer := h.loglikelihood(members)
	if answer.Get("method").Str != "next_token" || answer.Get("usage.prompt_tokens").Int() != answer.Get("context_tokens").Int() || answer.Get("usage.completion_tokens").Int() != 1 {
		t.Fatalf("got %s", answer.Raw)
	}
	sent := completions(mock)[0]
	ids := h.tokens("The capital of France is", true)
	if sent.Raw != fmt.Sprintf(`{"model":"org/Model-8B","prompt":%s,"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":20}`, strings.ReplaceAll(fmt.Sprint(ids), " ", ",")) {
		t.Errorf("the backend received %s", sent.Raw)
	}
	scored := h.loglikelihood(strings.Replace(members, `" a"`, `" a"," the end of the story"`, 1))
	if scored.Get("method").Str != "scored" {
		t.Fatalf("got %s", scored.Raw)
	}
	for i := range 2 {
		path := fmt.Sprintf("data.%d", i)
		if a, b := answer.Get(path).Raw, scored.Get(path).Raw; a != b {
			t.Errorf("by next token %s, as a scored prompt %s", a, b)
		}
	}
	if top := answer.Get("data.0.token_logprobs.0.top"); top.Get("#").Int() != 2 || top.Get("0.token").Str == "" || top.Get("0.rank").Int() != 1 {
		t.Errorf("the alternatives are %s", top.Raw)
	}
	h.awaitRows(2)
	if strings.Contains(h.log.String(), "France") {
		t.Error("the log has the text")
	}
}

// A token that is not among the likeliest is scored; the answer is charged once.
func TestUnlikelyTokensAreAskedAgain(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	rare := h.tokens("%", false)
	common := h.tokens(" the", false)
	members := fmt.Sprintf(`"context":"The capital of France is","continuations":[[%d],[%d]]`, common[0], rare[0])
	answer := h.loglikelihood(members)
	sent := completions(mock)
	if answer.Get("method").Str != "scored" || len(sent) != 2 || !sent[0].Get("logprobs").Exists() || !sent[1].Get("prompt_logprobs").Exists() {
		t.Fatalf("got %s after %v", answer.Raw, sent)
	}
	if answer.Get("data.0.bytes").Type != gjson.Null {
		t.Errorf("ids have %s bytes", answer.Get("data.0.bytes").Raw)
	}
	n := answer.Get("context_tokens").Int() + 1
	rows := h.awaitRows(1)
	if len(rows) != 1 || rows[0].PromptTokens != 2*n || rows[0].CompletionTokens != 2 || answer.Get("usage.prompt_tokens").Int() != 2*n {
		t.Errorf("charged %+v for %s", rows, answer.Raw)
	}

	h, mock = startScoring(t, mockvllm.Options{SoundLogprobIDs: true}, nil)
	marked := newHarness(t, markBackends(mock.URL()))
	named := marked.loglikelihood(members)
	sent = completions(mock)
	if named.Get("method").Str != "next_token" || len(sent) != 1 || sent[0].Get("logprobs").Int() != 1 || sent[0].Get("logprob_token_ids.#").Int() != 2 {
		t.Fatalf("got %s after %v", named.Raw, sent)
	}
	if a, b := logprobs(named), logprobs(answer); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("by their names %v, as scored prompts %v", a, b)
	}
	if got := marked.complete(`{"model":"m","prompt":"x","max_tokens":1,"logprobs":1,"logprob_token_ids":[5,6]}`); got.status != http.StatusOK ||
		!strings.Contains(completions(mock)[1].Raw, `"logprob_token_ids":[5,6]`) {
		t.Errorf("of a client: %d %s", got.status, got.body)
	}
	if got := h.complete(`{"model":"m","prompt":"x","max_tokens":1,"logprobs":1,"logprob_token_ids":[5,6]}`); got.status != http.StatusBadRequest ||
		gjson.Get(got.body, "error.param").Str != "logprob_token_ids" || !strings.Contains(got.body, "spoil") {
		t.Errorf("of a client, without the mark: %d %s", got.status, got.body)
	}
}

// The budget decides how much is reserved: with too little for scored prompts, an answer that needs them is refused.
func TestSmallBudgetsHaveNextTokensAlone(t *testing.T) {
	t.Parallel()
	h, _ := startScoring(t, mockvllm.Options{}, nil)
	n := int64(len(h.tokens("The capital of France is", true)))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(2*n + 3) }))
	const path, likely = "/v1/loglikelihood", `{"model":"m","context":"The capital of France is","continuations":[" the"," a"]}`
	estimate := h.post("/v1/estimate", strings.Replace(likely, `{`, `{"endpoint":"/v1/loglikelihood",`, 1))
	if e := gjson.Parse(estimate.body); estimate.status != http.StatusOK || e.Get("prompt_tokens").Int() != n || e.Get("max_completion_tokens").Int() != 1 || !e.Get("fits").Bool() {
		t.Errorf("the estimate is %d %s", estimate.status, estimate.body)
	}
	rare := fmt.Sprint(h.tokens("%", false)[0])
	if got := h.post(path, `{"model":"m","context":"The capital of France is","continuations":[[`+rare+`],[5]]}`); got.status != http.StatusTooManyRequests ||
		gjson.Get(got.body, "error.code").Str != "budget_exceeded" {
		t.Errorf("unlikely: got %d %s", got.status, got.body)
	}
	if got := h.post(path, likely); got.status != http.StatusOK {
		t.Errorf("likely: got %d %s", got.status, got.body)
	}
	if got := h.post(path, strings.Replace(likely, `" a"`, `" a b c"`, 1)); got.status != http.StatusTooManyRequests {
		t.Errorf("scored: got %d %s", got.status, got.body)
	}
}

// A budget that covers three of four continuations answers none of them.
func TestBudgetsCoverAllContinuationsOrNone(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	const body = `{"model":"m","context":[7,8,9],"continuations":[[5,6],[6,5],[5,7],[6,7]]}`
	const each = 5 + 1
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(4*each - 1) }))
	if got := h.post("/v1/loglikelihood", body); got.status != http.StatusTooManyRequests || gjson.Get(got.body, "error.code").Str != "budget_exceeded" ||
		len(completions(mock)) != 0 {
		t.Errorf("one token less: got %d %s after %d completions", got.status, got.body, len(completions(mock)))
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(4 * each) }))
	if got := h.post("/v1/loglikelihood", body); got.status != http.StatusOK || gjson.Get(got.body, "usage.total_tokens").Int() != 4*each {
		t.Errorf("enough: got %d %s", got.status, got.body)
	}
}

// Token ids that the model does not have are the client's mistake by each method, and cost nothing.
func TestTokensOutsideTheVocabularyAreRefused(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{SoundLogprobIDs: true}, nil)
	marked := newHarness(t, markBackends(mock.URL()))
	for _, members := range []string{
		`"context":[7],"continuations":[[999999]]`, `"context":[7],"continuations":[[5],[999999]]`, `"context":[7],"continuations":[[5,999999]]`,
		`"context":[999999],"continuations":[[5]]`, `"continuations":[[999999]]`,
	} {
		for name, h := range map[string]*harness{"by the likeliest": h, "by names": marked} {
			got := h.post("/v1/loglikelihood", `{"model":"m",`+members+`}`)
			if e := gjson.Get(got.body, "error"); got.status != http.StatusBadRequest || e.Get("code").Str != "invalid_request" || !strings.Contains(e.Get("message").Str, "999999") {
				t.Errorf("%s, %s: got %d %s", name, members, got.status, got.body)
			}
		}
	}
	for _, row := range h.awaitRows(5) {
		if row.PromptTokens+row.CompletionTokens != 0 {
			t.Errorf("charged %+v", row)
		}
	}
}

func TestEmptyContextIsTheFirstSpecialToken(t *testing.T) {
	t.Parallel()
	for _, info := range []bool{true, false} { // without it, the tokenizer tells with which token it begins a prompt
		h, mock := startScoring(t, mockvllm.Options{TokenizerInfo: info}, nil)
		bos := h.tokens("", true)
		for _, members := range []string{
			`"continuations":["Once upon a time"]`, `"context":"","continuations":["Once upon a time"],"add_special_tokens":false`,
			`"context":null,"continuations":["<|begin_of_text|>Once upon a time"]`,
		} {
			answer := h.loglikelihood(members)
			all := completions(mock)
			want := strings.ReplaceAll(fmt.Sprint(h.tokens("Once upon a time", true)), " ", ",")
			if answer.Get("context_tokens").Int() != 1 || all[len(all)-1].Get("prompt").Raw != want || len(bos) != 1 {
				t.Errorf("%s: got %s for %s, want %s", members, answer.Raw, all[len(all)-1].Raw, want)
			}
		}
	}
	// A context of blanks moves to the continuation.
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	h.loglikelihood(`"context":" \n","continuations":["Once"]`)
	if got, want := completions(mock)[0].Get("prompt").Raw, strings.ReplaceAll(fmt.Sprint(h.tokens(" \nOnce", true)), " ", ","); got != want {
		t.Errorf("the prompt is %s, want %s", got, want)
	}
	if got := h.post("/v1/loglikelihood", `{"model":"m","context":" \n","continuations":["Once"],"add_special_tokens":false}`); got.status != http.StatusBadRequest ||
		gjson.Get(got.body, "error.param").Str != "context" {
		t.Errorf("blanks without special tokens: %d %s", got.status, got.body)
	}
}

func TestTextsThatCannotBeTokenized(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackendWithout(t, "/tokenize", respondPlain))
	got := h.post("/v1/loglikelihood", `{"model":"m","context":"x","continuations":["a"]}`)
	if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_unreachable" {
		t.Errorf("without a tokenizer: %d %s", got.status, got.body)
	}
	h = newHarness(t, nil, startBackendWithTokenizer(t, respond(200, "application/json", `{"count":1,"tokens":[7]}`)))
	got = h.post("/v1/loglikelihood", `{"model":"m","continuations":["a"]}`)
	if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "context" || !strings.Contains(got.body, "first special token") {
		t.Errorf("without a special token: %d %s", got.status, got.body)
	}
}

func TestPairsThatAreTooLong(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{MaxModelLen: 40}, func(o *harnessOptions) { o.model.MaxScoredPromptTokens = 20 })
	for _, c := range []struct{ members, code, param string }{
		{`"context":` + arrayOfIDs(39) + `,"continuations":[[7]]`, "context_length_exceeded", "context"},
		{`"context":[1],"continuations":[[7],` + arrayOfIDs(39) + `]`, "context_length_exceeded", "continuations"},
		{`"context":"` + strings.Repeat("zebra ", 50) + `","continuations":["a"]`, "context_length_exceeded", "context"},
		{`"context":"a","continuations":["` + strings.Repeat("zebra ", 50) + `"]`, "context_length_exceeded", "continuations"},
		{`"context":` + arrayOfIDs(19) + `,"continuations":[[7,8]]`, "invalid_request", "context"},
		{`"context":[1],"continuations":[` + arrayOfIDs(20) + `]`, "invalid_request", "continuations"},
	} {
		got := h.post("/v1/loglikelihood", `{"model":"m",`+c.members+`}`)
		if e := gjson.Get(got.body, "error"); got.status != http.StatusBadRequest || e.Get("code").Str != c.code || e.Get("param").Str != c.param {
			t.Errorf("%.60s: got %d %s, want %s of %s", c.members, got.status, got.body, c.code, c.param)
		}
	}
	if n := len(completions(mock)); n > 0 {
		t.Errorf("%d completions reached the backend", n)
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	if strings.Contains(h.log.String(), "zebra") {
		t.Error("the log has a text")
	}
	h.loglikelihood(`"context":` + arrayOfIDs(18) + `,"continuations":[[7,8]]`)
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(0) }))
	if got := h.post("/v1/loglikelihood", `{"model":"m","context":`+arrayOfIDs(39)+`,"continuations":[[7]]}`); got.status != http.StatusTooManyRequests {
		t.Errorf("a spent budget comes first: got %d %s", got.status, got.body)
	}
}

// arrayOfIDs returns an array of n token ids.
func arrayOfIDs(n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat("9,", n), ",") + "]"
}

// What cannot be summed costs nothing, and counts for no breaker.
func TestLogprobsThatAreNotFiniteAreUpstreamErrors(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`
	choice := func(value string) string {
		return `{"object":"text_completion","choices":[{"index":0,"text":"x","finish_reason":"length","prompt_logprobs":[null,{"9":{"logprob":-1}},{"9":{"logprob":` + value + `}}]}],` + usage
	}
	for _, value := range []string{"NaN", "-Infinity"} { // no JSON, which Python's encoder writes all the same
		h := newHarness(t, nil, startBackend(t, respond(200, "application/json", choice(value))))
		got := h.post("/v1/loglikelihood", `{"model":"m","context":[7],"continuations":[[9,9]]}`)
		if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_server_error" || h.awaitRows(1)[0].PromptTokens != 0 {
			t.Errorf("%s: got %d %s", value, got.status, got.body)
		}
	}
	for _, body := range []string{choice("-9999.0"), choice("null"), choice("1e999"), `{"object":"text_completion","choices":[{"index":0,"text":"x","finish_reason":"length"}],` + usage} {
		h := newHarness(t, nil, startBackend(t, respond(200, "application/json", body)))
		got := h.post("/v1/loglikelihood", `{"model":"m","context":[7],"continuations":[[9,9]]}`)
		if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_server_error" || gjson.Get(got.body, "error.attempts").Int() != 1 ||
			got.header.Get("X-Acs-Upstream-Model") == "" || got.header.Get("X-Acs-Upstream-Error-Kind") != "upstream_server_error" {
			t.Errorf("%s: got %d %s", body, got.status, got.body)
		}
		for _, row := range h.awaitRows(1) {
			if row.PromptTokens+row.CompletionTokens != 0 {
				t.Errorf("%s: charged %+v", body, row)
			}
		}
	}
}

func TestRootTokenizer(t *testing.T) {
	t.Parallel()
	h, _ := startScoring(t, mockvllm.Options{TokenizerInfo: true}, func(o *harnessOptions) {
		o.models = []config.Model{{ID: "other", Checkpoint: "org/Other", MaxLogprobs: 20, Backends: []config.Backend{{Name: "x", URL: mustURL("http://127.0.0.1:1")}}}}
	})
	get := func(path string) response { return h.do(h.newRequest(t.Context(), http.MethodGet, path, "")) }
	for _, got := range []response{get("/tokenizer_info"), h.post("/tokenize", `{"prompt":"a"}`), h.post("/detokenize", `{"tokens":[5]}`)} {
		if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "model" || !strings.Contains(got.body, "m, other; say which with ?model=") {
			t.Errorf("without a model: %d %s", got.status, got.body)
		}
	}
	info := get("/tokenizer_info?model=m")
	if b := gjson.Parse(info.body); info.status != http.StatusOK || b.Get("bos_token").Str != "<|begin_of_text|>" || b.Get("eos_token").Str == "" ||
		b.Get("tokenizer_class").Str == "" || b.Get("added_tokens_decoder.@keys.#").Int() != 2 || b.Get("name_or_path").Exists() || b.Get("clean_up_tokenization_spaces").Exists() {
		t.Errorf("got %d %s", info.status, info.body)
	}
	tokens := h.post("/tokenize?model=m", `{"prompt":"caf\u00e9 zebra","add_special_tokens":false}`)
	back := h.post("/detokenize?model=m", `{"tokens":`+gjson.Get(tokens.body, "tokens").Raw+`}`)
	if gjson.Get(back.body, "prompt").Str != "café zebra" {
		t.Errorf("got %d %s, then %d %s", tokens.status, tokens.body, back.status, back.body)
	}
	if got := h.post("/tokenize", `{"model":"m","prompt":"a"}`); got.status != http.StatusOK {
		t.Errorf("with a model: %d %s", got.status, got.body)
	}
	for _, c := range []struct{ path, body, code string }{
		{"/tokenize?model=m", `{"model":"other","prompt":"a"}`, "invalid_request"},
		{"/tokenize?model=none", `{"prompt":"a"}`, "model_not_found"},
		{"/tokenize?model=m", `{"prompt":"a","x":1}`, "invalid_request"},
		{"/tokenize?model=m", `{`, "bad_json"},
		{"/detokenize", `{"model":"m"}`, "invalid_request"},
	} {
		if got := h.post(c.path, c.body); got.status != http.StatusBadRequest || gjson.Get(got.body, "error.code").Str != c.code {
			t.Errorf("%s %s: got %d %s", c.path, c.body, got.status, got.body)
		}
	}
	if got := h.post("/tokenizer_info", ""); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodGet {
		t.Errorf("POST /tokenizer_info: %d %v", got.status, got.header)
	}
	req := h.newRequest(t.Context(), http.MethodGet, "/tokenizer_info?model=m", "")
	req.Header.Del("Authorization")
	if got := h.do(req); got.status != http.StatusUnauthorized {
		t.Errorf("without a key: %d %s", got.status, got.body)
	}

	h, _ = startScoring(t, mockvllm.Options{}, nil)
	if got := get("/tokenizer_info"); got.status != http.StatusNotFound || !strings.Contains(got.body, "not_found") || !strings.Contains(got.body, "does not tell its tokenizer") {
		t.Errorf("of a server without it: %d %s", got.status, got.body)
	}
	if got := h.post("/tokenize", `{"prompt":"a"}`); got.status != http.StatusOK {
		t.Errorf("a key of one model: %d %s", got.status, got.body)
	}
}

func TestScoredLineOfABatch(t *testing.T) {
	t.Parallel()
	h, _ := startScoring(t, mockvllm.Options{}, nil)
	const path, body = "/v1/loglikelihood", `{"model":"m","context":"Once upon","continuations":[" a time"]}`
	live := h.loglikelihood(`"context":"Once upon","continuations":[" a time"]`)
	line := h.serveLineAt(path, body)
	if line.Status != http.StatusOK || gjson.GetBytes(line.Body, "data").Raw != live.Get("data").Raw || line.Settlement == nil ||
		gjson.GetBytes(line.Body, "usage").Raw != live.Get("usage").Raw {
		t.Errorf("got %d %s, want %s", line.Status, line.Body, live.Raw)
	}
	line.Release()
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.server.CheckLine(t.Context(), principal, path, []byte(body), false); err != nil || got.Model != "m" {
		t.Errorf("when it is validated: %+v, %v", got, err)
	}
}

func TestEstimateOfALoglikelihood(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, nil)
	const members = `"context":"Once upon","continuations":[" a time"," the end of it"]}`
	estimate := gjson.Parse(h.post("/v1/estimate", `{"endpoint":"/v1/loglikelihood","model":"m",`+members).body)
	if len(completions(mock)) > 0 {
		t.Error("the estimate sent a completion")
	}
	answer := h.loglikelihood(strings.TrimSuffix(members, "}"))
	if estimate.Get("prompt_tokens").Int() != answer.Get("usage.prompt_tokens").Int() || estimate.Get("max_completion_tokens").Int() != 2 || !estimate.Get("fits").Bool() {
		t.Errorf("the estimate %s, the answer %s", estimate.Raw, answer.Raw)
	}
	cold := newHarness(t, func(o *harnessOptions) {
		launch := &config.Launch{Start: []string{"true"}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: time.Minute}
		o.model.Backends = []config.Backend{{Name: "cold", URL: mustURL("http://127.0.0.1:1"), Launch: launch}}
	})
	got := cold.post("/v1/estimate", `{"endpoint":"/v1/loglikelihood","model":"m",`+members)
	if got.status != http.StatusOK || gjson.Get(got.body, "model_status").Str != "cold" || gjson.Get(got.body, "prompt_tokens").Int() < estimate.Get("prompt_tokens").Int() {
		t.Errorf("of a cold model: %d %s", got.status, got.body)
	}
	for _, endpoint := range []string{`null`, `"/v1/completions"`} {
		if got := h.post("/v1/estimate", `{"model":"m","prompt":"x","endpoint":`+endpoint+`}`); got.status != http.StatusOK {
			t.Errorf("of a completion with the endpoint %s: %d %s", endpoint, got.status, got.body)
		}
	}
	if got := h.post("/v1/estimate", `{"endpoint":"/v1/embeddings","model":"m","prompt":"x"}`); got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "endpoint" ||
		!strings.Contains(got.body, "expected the path of the endpoint") {
		t.Errorf("of another endpoint: %d %s", got.status, got.body)
	}
}

// The Rust frontend takes one prompt at a time: single tokens are served by it, and other continuations go elsewhere.
func TestLoglikelihoodsAtTheRustFrontend(t *testing.T) {
	t.Parallel()
	rust := startFrontend(t, true)
	h := newHarness(t, nil, rust.URL())
	if answer := h.loglikelihood(`"context":"The capital of France is","continuations":[" the"," a"]`); answer.Get("method").Str != "next_token" {
		t.Errorf("got %s", answer.Raw)
	}
	for _, members := range []string{`"context":"Once","continuations":[" upon a time"," the end"]`, `"context":"Once","continuations":[[37],[5]]`} {
		got := h.post("/v1/loglikelihood", `{"model":"m",`+members+`}`)
		if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "continuations" || !strings.Contains(got.body, "Rust frontend") {
			t.Errorf("%s: got %d %s", members, got.status, got.body)
		}
	}
	both := newHarness(t, nil, rust.URL(), startFrontend(t, false).URL())
	for range 4 {
		both.loglikelihood(`"context":"Once","continuations":[" upon a time"," the end"]`)
	}
}

// A request that is sent once more in another form has as many attempts again.
func TestSecondFormHasAttemptsOfItsOwn(t *testing.T) {
	t.Parallel()
	h, mock := startScoring(t, mockvllm.Options{}, func(o *harnessOptions) { o.settings.Attempts = 1 })
	if answer := h.loglikelihood(`"context":"The capital of France is","continuations":[[37]]`); answer.Get("method").Str != "scored" || len(completions(mock)) != 2 {
		t.Errorf("got %s", answer.Raw)
	}
	ids := map[string]bool{}
	for _, r := range mock.Requests() {
		if r.Path == "/v1/completions" {
			ids[r.Header.Get("X-Request-Id")] = true
		}
	}
	if len(ids) != 2 {
		t.Errorf("the requests had the ids %v", ids)
	}
}

func TestReceiptOfALoglikelihood(t *testing.T) {
	t.Parallel()
	h, _ := startScoring(t, mockvllm.Options{}, func(o *harnessOptions) { o.receipts = true })
	const body = `{"model":"m","context":"Once","continuations":[" upon a time"],"tokens":true}`
	got := h.withReceipt("/v1/loglikelihood", body)
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	r := h.receiptOf(got)
	if err := r.Verify([]byte(body), []byte(got.body), h.receipts.VerifierKey()); err != nil {
		t.Error(err)
	}
	if e := r.Entry; e.Kind != receipt.Loglikelihood || e.Parameters["tokens"] != "true" || e.Usage.PromptTokens != gjson.Get(got.body, "usage.prompt_tokens").Int() {
		t.Errorf("the entry is %+v", e)
	}
}
