package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/identity"
	"basegate/internal/poll"
	"basegate/mockvllm"
	"basegate/quota"
)

// rows are the ledger's, the oldest first, once there are n of them and nothing is in flight.
func (r *rig) rows(n int) []budget.Row {
	r.t.Helper()
	var all []budget.Row
	poll.Until(r.t, fmt.Sprintf("%d requests are on the ledger", n), func() bool {
		var err error
		if all, err = r.ledger.Usage(r.t.Context(), budget.Filter{}, budget.ByRequest); err != nil {
			r.t.Fatal(err)
		}
		return len(all) >= n && r.server.InFlight() == 0
	})
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	if len(all) != n {
		r.t.Fatalf("%d rows, want %d", len(all), n)
	}
	return all
}

// charge is what a row says of an end.
func charge(row budget.Row) string {
	return fmt.Sprintf("%s %d %q %d+%d", row.State, row.Status, row.Code, row.PromptTokens, row.CompletionTokens)
}

// hangs sends events and then nothing more until the gateway leaves.
func hangs(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if len(events) > 0 {
			streams(events...)(w, q)
		}
		<-q.Context().Done()
	}
}

func scoredEvent(text string, tokens int) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":%q,\"logprobs\":{\"tokens\":[%s]},\"finish_reason\":null}]}\n\n",
		text, strings.TrimSuffix(strings.Repeat(`"t",`, tokens), ","))
}

// In these tests a token is a word, and a prompt has one more: see upstream.
func TestAClientThatLeavesIsChargedWhatItGot(t *testing.T) {
	const events = 2 // that the client reads before it leaves, where there are any
	for _, c := range []struct {
		name, body string
		upstream   http.HandlerFunc
		want       string
	}{
		{"in the middle of a stream", `"prompt":"to be or","max_tokens":9,"stream":true`, hangs(event(0, "not", "null"), event(0, " to", "null")), "4+2"},
		{"events of several tokens", `"prompt":"to be or","max_tokens":9,"stream":true`, hangs(event(0, "not to be ", "null"), event(0, "that is", "null")), "4+5"},
		{"events of less than a token", `"prompt":"to be or","max_tokens":9,"stream":true`, hangs(event(0, "no", "null"), event(0, "t", "null")), "4+2"},
		{"an event without text", `"prompt":"to be or","max_tokens":9,"stream":true`, hangs(event(0, "", "null"), event(0, "not", "null")), "4+1"},
		{"text with escapes", `"prompt":"to \"be\"\n or","max_tokens":9,"stream":true`, hangs(event(0, "not \"to\"\n", "null"), event(0, "š ř", "null")), "4+4"},
		{"token ids", `"prompt":[1,2,3,4,5],"max_tokens":9,"stream":true`, hangs(event(0, "not", "null"), event(0, " to be", "null")), "5+3"},
		{"several prompts", `"prompt":["to be","or not to be"],"max_tokens":9,"stream":true`, hangs(event(0, "a b", "null"), event(1, "c", "null")), "8+3"},
		{"several choices", `"prompt":"to be","n":2,"max_tokens":9,"stream":true`, hangs(event(0, "a b", "null"), event(1, "c d e", "null")), "3+5"},
		{"logprobs count the tokens", `"prompt":"to be","logprobs":0,"max_tokens":9,"stream":true`, hangs(scoredEvent("a", 3), scoredEvent("b", 1)), "3+4"},
		{"an echo is not a completion", `"prompt":"to be","echo":true,"max_tokens":9,"stream":true`, hangs(event(0, "to be or not", "null"), event(0, " to be", "null")), "3+4"},
		{"an echo of token ids", `"prompt":[1,2,3],"echo":true,"max_tokens":9,"stream":true`, hangs(event(0, "to be or not", "null"), event(0, " to be", "null")), "3+3"},
		{"an echo with logprobs", `"prompt":[[1],[2,3,4]],"echo":true,"logprobs":0,"max_tokens":9,"stream":true`, hangs(scoredEvent("a", 5), scoredEvent("b", 1)), "4+5"},
		{"an echo of text with logprobs", `"prompt":"to be","echo":true,"logprobs":0,"max_tokens":9,"stream":true`, hangs(scoredEvent("a", 5), scoredEvent("b", 1)), "3+3"},
		{"an echo of a text that was counted to fit", `"prompt":"to ` + strings.Repeat("be", 2500) + `","echo":true,"logprobs":0,"max_tokens":9,"stream":true`, hangs(scoredEvent("a", 5), scoredEvent("b", 1)), "3+3"},
		{"never more than was reserved", `"prompt":"to be","max_tokens":3,"stream":true`, hangs(event(0, "a b c d", "null"), event(0, "e", "null")), "3+3"},
		{"before the first event", `"prompt":"to be or","stream":true`, hangs(), "4+0"},
		{"a plain answer", `"prompt":"to be or"`, hangs(), "4+0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) {
				asked <- struct{}{}
				c.upstream(w, q)
			}))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := make(chan struct{})
			go func() {
				defer close(done)
				resp, err := client.Do(r.request(ctx, http.MethodPost, "/v1/completions", `{"model":"m",`+c.body+`}`))
				if err != nil {
					return
				}
				defer resp.Body.Close()
				for read := ""; strings.Count(read, "\n\n") < events; {
					b := make([]byte, 1024)
					n, err := resp.Body.Read(b)
					if err != nil {
						t.Errorf("after %q: %v", read, err)
						return
					}
					read += string(b[:n])
				}
				leave()
			}()
			<-asked
			if c.want[2:] == "0" {
				leave()
			}
			<-done
			if got, want := charge(r.rows(1)[0]), `settled 499 "client_gone" `+c.want; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if s := r.queue.Stats(); s.Running+s.Waiting != 0 {
				t.Errorf("a slot leaked: %+v", s)
			}
		})
	}
}

// After a crash the row says what the ledger charges: the prompt as counted, and the tokens that are out.
func TestAStreamThatLastsIsOnDiskWithItsExactPrompt(t *testing.T) {
	for _, c := range []struct {
		name, body string
		events     []string
		want       string
	}{
		{"a text", `"prompt":"to be or"`, []string{event(0, "not", "null"), event(0, " to", "null")}, "4+2"},
		{"an echo of ids, which the first event holds", `"prompt":[1,2,3],"echo":true,"logprobs":0`, []string{scoredEvent("a", 5), scoredEvent("b", 1)}, "3+3"},
		{"an echo of a text, by its events", `"prompt":"to be or","echo":true,"logprobs":0`, []string{scoredEvent("a", 5), scoredEvent("b", 1)}, "4+2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil, upstream(t, hangs(c.events...)))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := r.background(ctx, `{"model":"m",`+c.body+`,"max_tokens":9,"stream":true}`)
			var found string
			poll.Until(t, "the row in flight has both", func() bool {
				err := r.db.Read().QueryRowContext(t.Context(),
					`SELECT prompt_tokens || '+' || completion_tokens || ' at ' || backend FROM requests WHERE state = 'in_flight'`).Scan(&found)
				return err == nil && found == c.want+" at b0"
			})
			leave()
			<-done
			r.rows(1)
		})
	}
}

func TestAStreamThatBreaksIsChargedWhatWasDelivered(t *testing.T) {
	broken := map[string]http.HandlerFunc{
		"cut off":     streams(event(0, "or not", "null")),
		"an error":    streams(event(0, "or not", "null"), `data: {"error":{"message":"EngineCore died","code":500}}`+"\n\n", doneEvent),
		"no finish":   streams(event(0, "or not", "null"), doneEvent),
		"in one read": streams(event(0, "or not", "null") + doneEvent),
	}
	for name, handler := range broken {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, upstream(t, handler))
			got := r.complete(`{"model":"m","prompt":"to be","stream":true}`)
			if !strings.Contains(got.body, `data: {"error"`) {
				t.Errorf("it ends with %q", got.body)
			}
			if got := r.rows(1)[0]; got.PromptTokens != 3 || got.CompletionTokens != 2 || got.Status != 200 || got.Code == "" {
				t.Errorf("charged %s", charge(got))
			}
		})
	}
}

func TestWhatFailsBeforeAnyTokenCostsNothing(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"an error":               answers(500, "text/plain", "Internal Server Error"),
		"a refusal":              answers(400, "application/json", `{"error":{"message":"no","code":400}}`),
		"an error in the stream": streams(`data: {"error":{"message":"no","code":400}}`+"\n\n", doneEvent),
		"an abort":               streams(event(0, "", `"abort"`), doneEvent),
		"a reset":                func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, upstream(t, handler))
			got := r.complete(`{"model":"m","prompt":"to be","stream":true}`)
			row := r.rows(1)[0]
			if row.PromptTokens+row.CompletionTokens != 0 || row.Status != got.status || !strings.Contains(got.body, `"code":"`+row.Code+`"`) {
				t.Errorf("charged %s for %d %s", charge(row), got.status, got.body)
			}
		})
	}
}

// Where the tokenizer does not answer, the bytes bound the prompt, and each event has a token.
func TestWithoutATokenizerTheBoundIsCharged(t *testing.T) {
	r := newRig(t, nil, upstreamWithout(t, "/tokenize", streams(event(0, "or not", "null"), event(0, " to", "null"))))
	r.complete(`{"model":"m","prompt":"to be","stream":true}`)
	if got := r.rows(1)[0]; got.PromptTokens != int64(len("to be")+4) || got.CompletionTokens != 2 {
		t.Errorf("charged %s", charge(got))
	}
}

// No version leaves usage out, but a proxy in between may, and nothing is served uncharged.
func TestAnAnswerWithoutUsageIsCounted(t *testing.T) {
	plain := newRig(t, nil, upstream(t, answers(200, "application/json",
		`{"choices":[{"index":0,"text":"or not to be","finish_reason":"stop"},{"index":1,"text":"that","finish_reason":"stop"}]}`)))
	plain.complete(`{"model":"m","prompt":"to be","n":2}`)
	stream := newRig(t, nil, upstream(t, streams(event(0, "or not", "null"), event(0, " to be", `"stop"`), doneEvent)))
	stream.complete(`{"model":"m","prompt":"to be","stream":true}`)
	for r, want := range map[*rig]string{plain: `settled 200 "" 3+5`, stream: `settled 200 "" 3+4`} {
		if got := charge(r.rows(1)[0]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// usage is asked for on the client's behalf and left out again, so that every form is charged just as vLLM says.
func TestAWholeAnswerIsChargedWhatVLLMSays(t *testing.T) {
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}, APIKey: "backend-key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	r := newRig(t, nil, mock.URL())
	bodies := []string{
		`"prompt":"The sea"`,
		`"prompt":[72,101,108],"max_tokens":5`,
		`"prompt":["The sea","A ship"],"n":2,"max_tokens":4,"ignored":null`,
		`"prompt":"The sea","echo":true,"logprobs":2`,
		`"prompt":"The sea","best_of":4,"n":2,"max_tokens":3`,
		`"prompt":"The sea","stream":true,"max_tokens":7`,
		`"prompt":["The sea","A ship"],"n":3,"stream":true,"max_tokens":4`,
	}
	for i, body := range bodies {
		if got := r.complete(`{"model":"m","seed":1,` + strings.ReplaceAll(body, `,"ignored":null`, "") + `}`); got.status != 200 {
			t.Fatalf("%s: %d %s", body, got.status, got.body)
		}
		r.rows(i + 1) // in order
	}
	var got []string
	for _, row := range r.rows(len(bodies)) {
		got = append(got, fmt.Sprintf("%d+%d %v", row.PromptTokens, row.CompletionTokens, row.Stream))
	}
	tokenized := func(text string) int64 {
		n, err := r.tokenize(mock.URL(), text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sea, ship := tokenized("The sea"), tokenized("A ship")
	want := []string{
		fmt.Sprintf("%d+16 false", sea), "3+5 false", fmt.Sprintf("%d+16 false", sea+ship), fmt.Sprintf("%d+16 false", sea),
		fmt.Sprintf("%d+12 false", sea), fmt.Sprintf("%d+7 true", sea), fmt.Sprintf("%d+24 true", sea+ship),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func limits(change func(*quota.Caps)) func(*identity.KeyFields) {
	return func(f *identity.KeyFields) { change(&f.Caps) }
}

func (r *rig) setKey(change func(*identity.KeyFields)) {
	r.t.Helper()
	all, err := r.keys.List(r.t.Context())
	if err == nil {
		_, err = r.keys.Set(r.t.Context(), all[0].ID, change)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestABudgetClampsThenRefuses(t *testing.T) {
	var sent []string
	r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		sent = append(sent, string(body))
		answers(200, "application/json", `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":7}}`)(w, q)
	}))
	ask := func(maxTokens int) reply {
		return r.complete(fmt.Sprintf(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":%d}`, maxTokens))
	}
	if got := ask(7); got.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("no cap, but %v", got.header)
	}
	r.setKey(limits(func(c *quota.Caps) { c.MonthTotal = quota.Limit(17 + 17 + 12) }))
	whole := ask(7)
	if whole.status != 200 || whole.header.Get("X-Acs-Max-Tokens-Clamped") != "" || whole.header.Get("X-Ratelimit-Limit-Tokens") != "46" ||
		whole.header.Get("X-Ratelimit-Remaining-Tokens") != "12" || whole.header.Get("X-Ratelimit-Reset-Tokens") == "" {
		t.Errorf("one that fits: %d %v", whole.status, whole.header)
	}
	clamped := ask(9)
	if clamped.status != 200 || clamped.header.Get("X-Acs-Max-Tokens-Clamped") != "requested=9,applied=2,reason=budget" {
		t.Errorf("one that fits in part: %d %v", clamped.status, clamped.header)
	}
	if got := sent[len(sent)-1]; !strings.Contains(got, `"max_tokens":2}`) {
		t.Errorf("vLLM got %s", got)
	}
	refused := ask(1)
	for _, part := range []string{`"code":"budget_exceeded"`, `"type":"insufficient_quota"`, `"scope":"key"`, `"window":"month"`, `"meter":"total"`, `"limit":46`, `"reserved":0`, `"resets_at":"`} {
		if refused.status != 429 || !strings.Contains(refused.body, part) {
			t.Errorf("%s: got %d %s", part, refused.status, refused.body)
		}
	}
	if refused.header.Get("X-Should-Retry") != "false" || refused.header.Get("X-Ratelimit-Remaining-Tokens") != "0" || refused.header.Get("Retry-After") != "" {
		t.Errorf("its headers: %v", refused.header)
	}
	r.rows(3) // a refusal is none
}

// A refusal never rests on the bound of a text alone, and a text whose bound fits costs no question.
func TestABudgetAsksTheTokenizerOnlyWhereTheBoundDoesNotFit(t *testing.T) {
	asked := 0
	r := newRig(t, nil, upstreamCounting(t, &asked, answers(200, "application/json", plainAnswer)))
	text := strings.Repeat("word ", 20) // 100 bytes, 21 tokens
	for _, c := range []struct {
		limit         int64
		asked, status int
		clamped       string
	}{
		{100 + 2 + 16, 0, 200, ""}, // the backend has told that it adds one token, and one is in reserve
		{100 + 2 + 15, 1, 200, ""},
		{21 + 16, 1, 200, ""},
		{21 + 15, 1, 200, "requested=16,applied=15,reason=budget"},
		{21, 1, 429, ""},
	} {
		used := int64(0)
		all, err := r.ledger.Usage(t.Context(), budget.Filter{}, budget.ByModel)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all {
			used += row.PromptTokens + row.CompletionTokens
		}
		r.setKey(limits(func(c2 *quota.Caps) { c2.MonthTotal = quota.Limit(used + c.limit) }))
		before := asked
		got := r.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, text))
		if got.status != c.status || asked-before != c.asked || got.header.Get("X-Acs-Max-Tokens-Clamped") != c.clamped {
			t.Errorf("%d left: %d, asked %d times, %v: %s", c.limit, got.status, asked-before, got.header, got.body)
		}
	}
}

func TestWithoutATokenizerNoBudgetRefusesByTheBound(t *testing.T) {
	r := newRig(t, nil, upstreamWithout(t, "/tokenize", answers(200, "application/json", plainAnswer)))
	r.setKey(limits(func(c *quota.Caps) { c.DayTotal = quota.Limit(50) }))
	got := r.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat("word ", 20)))
	if got.status != 502 || !strings.Contains(got.body, `"upstream_unreachable"`) || !strings.Contains(got.body, "tokenizer") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
