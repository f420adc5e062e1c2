package proxy_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/internal/poll"
	"basegate/mockvllm"
	"basegate/proxy"
	"basegate/proxy/stream"
)

// awaitRows waits until nothing is in flight and the ledger has n rows, and returns them, the oldest first.
func (h *harness) awaitRows(n int) []usage.Row {
	h.t.Helper()
	var all []usage.Row
	poll.Until(h.t, fmt.Sprintf("the ledger has %d rows and nothing is in flight", n), func() bool {
		var err error
		if all, err = h.usage.List(h.t.Context(), usage.Filter{}, usage.ByRequest); err != nil {
			h.t.Fatal(err)
		}
		return len(all) >= n && h.server.InFlight() == 0
	})
	slices.Reverse(all)
	if len(all) != n {
		h.t.Fatalf("got %d rows, want %d", len(all), n)
	}
	return all
}

// metric returns the value of a counter or a gauge, named with its labels; 0 if it does not exist.
func (h *harness) metric(name string) int {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if f.GetName()+"{"+strings.Join(labels, ",")+"}" == name {
				return int(m.GetCounter().GetValue() + m.GetGauge().GetValue()) // it is one of them
			}
		}
	}
	return 0
}

// summary returns state, status, code, prompt tokens and completion tokens of a row.
func summary(row usage.Row) string {
	return fmt.Sprintf("%s %d %q %d+%d", row.State, row.Status, row.Code, row.PromptTokens, row.CompletionTokens)
}

// respondStreamThenHang returns a handler that sends events and then blocks until the gateway disconnects.
func respondStreamThenHang(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if len(events) > 0 {
			respondStream(events...)(w, r)
		}
		<-r.Context().Done()
	}
}

// eventWithLogprobs returns an event with that many tokens in its logprobs.
func eventWithLogprobs(text string, tokens int) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":%q,\"logprobs\":{\"tokens\":[%s]},\"finish_reason\":null}]}\n\n",
		text, strings.TrimSuffix(strings.Repeat(`"t",`, tokens), ","))
}

// eventWith returns an event with a further member of its choice, and further members of its own.
func eventWith(text, choiceMember, members string) string {
	return fmt.Sprintf("data: {%s\"choices\":[{\"index\":0,\"text\":%q,%s,\"finish_reason\":null}]}\n\n", members, text, choiceMember)
}

// Tokens are words, and a prompt has one token more: see startBackend.
func TestDisconnectedClientIsChargedForWhatItReceived(t *testing.T) {
	t.Parallel()
	const events = 2 // that the client reads before it disconnects, if the backend sends any
	for _, c := range []struct {
		name, body string
		backend    http.HandlerFunc
		want       string // prompt and completion tokens
	}{
		{"in the middle of a stream", `"prompt":"to be or","max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "not", "null"), event(0, " to", "null")), "4+2"},
		{"events of several tokens", `"prompt":"to be or","max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "not to be ", "null"), event(0, "that is", "null")), "4+5"},
		{"events of less than a token", `"prompt":"to be or","max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "no", "null"), event(0, "t", "null")), "4+2"},
		{"an event without text", `"prompt":"to be or","max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "", "null"), event(0, "not", "null")), "4+1"},
		{"text with escapes", `"prompt":"to \"be\"\n or","max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "not \"to\"\n", "null"), event(0, "š ř", "null")), "4+4"},
		{"token ids", `"prompt":[1,2,3,4,5],"max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "not", "null"), event(0, " to be", "null")), "5+3"},
		{"several prompts", `"prompt":["to be","or not to be"],"max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "a b", "null"), event(1, "c", "null")), "8+3"},
		{"several choices", `"prompt":"to be","n":2,"max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "a b", "null"), event(1, "c d e", "null")), "3+5"},
		{"logprobs count the tokens", `"prompt":"to be","logprobs":0,"max_tokens":9,"stream":true`, respondStreamThenHang(eventWithLogprobs("a", 3), eventWithLogprobs("b", 1)), "3+4"},
		{"token_ids count the tokens, whatever their text", `"prompt":"to be","return_token_ids":true,"max_tokens":9,"stream":true`, respondStreamThenHang(eventWith("a b c", `"token_ids":[7]`, ""), eventWith("d e", `"token_ids":[8,9]`, "")), "3+3"},
		{"continuous usage counts the tokens, whatever their text", `"prompt":"to be","stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":9,"stream":true`, respondStreamThenHang(eventWith("a b c", `"token_ids":null`, `"usage":{"prompt_tokens":3,"completion_tokens":1},`), eventWith("d e", `"token_ids":null`, `"usage":{"prompt_tokens":3,"completion_tokens":2},`)), "3+2"},
		{"an echo is not a completion", `"prompt":"to be","echo":true,"max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "to be or not", "null"), event(0, " to be", "null")), "3+4"},
		{"an echo of token ids", `"prompt":[1,2,3],"echo":true,"max_tokens":9,"stream":true`, respondStreamThenHang(event(0, "to be or not", "null"), event(0, " to be", "null")), "3+3"},
		{"an echo with logprobs", `"prompt":[[1],[2,3,4]],"echo":true,"logprobs":0,"max_tokens":9,"stream":true`, respondStreamThenHang(eventWithLogprobs("a", 5), eventWithLogprobs("b", 1)), "4+5"},
		{"an echo of text with logprobs", `"prompt":"to be","echo":true,"logprobs":0,"max_tokens":9,"stream":true`, respondStreamThenHang(eventWithLogprobs("a", 5), eventWithLogprobs("b", 1)), "3+3"},
		{"an echo of a text that was counted to fit", `"prompt":"to ` + strings.Repeat("be", 2500) + `","echo":true,"logprobs":0,"max_tokens":9,"stream":true`, respondStreamThenHang(eventWithLogprobs("a", 5), eventWithLogprobs("b", 1)), "3+3"},
		{"never more than was reserved", `"prompt":"to be","max_tokens":3,"stream":true`, respondStreamThenHang(event(0, "a b c d", "null"), event(0, "e", "null")), "3+3"},
		{"before the first event", `"prompt":"to be or","stream":true`, respondStreamThenHang(), "4+0"},
		{"a plain response", `"prompt":"to be or"`, respondStreamThenHang(), "4+0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			arrived := make(chan struct{}, 1)
			h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				c.backend(w, r)
			}))
			ctx, disconnect := context.WithCancel(t.Context())
			defer disconnect()
			done := make(chan struct{})
			go func() {
				defer close(done)
				resp, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", `{"model":"m",`+c.body+`}`))
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
				disconnect()
			}()
			<-arrived
			if strings.HasSuffix(c.want, "+0") {
				disconnect()
			}
			<-done
			if got, want := summary(h.awaitRows(1)[0]), `settled 499 "client_gone" `+c.want; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if s := h.ledger.Load(); s.Running+s.Waiting != 0 {
				t.Errorf("the slot was not released: %+v", s)
			}
		})
	}
}

// After a crash, the ledger charges what the row in flight contains: the counted prompt and the tokens sent so far.
func TestLongStreamIsCheckpointedWithItsExactPrompt(t *testing.T) {
	t.Parallel() // it waits for the background count and the checkpoint
	for _, c := range []struct {
		name, body string
		events     []string
		want       string
	}{
		{"a text", `"prompt":"to be or"`, []string{event(0, "not", "null"), event(0, " to", "null")}, "4+2"},
		{"an echo of token ids, all in the first event", `"prompt":[1,2,3],"echo":true,"logprobs":0`, []string{eventWithLogprobs("a", 5), eventWithLogprobs("b", 1)}, "3+3"},
		{"an echo of a text, counted by events", `"prompt":"to be or","echo":true,"logprobs":0`, []string{eventWithLogprobs("a", 5), eventWithLogprobs("b", 1)}, "4+2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil, startBackend(t, respondStreamThenHang(c.events...)))
			ctx, disconnect := context.WithCancel(t.Context())
			defer disconnect()
			done := h.completeAsync(ctx, `{"model":"m",`+c.body+`,"max_tokens":9,"stream":true}`)
			var found string
			poll.Until(t, "the row in flight has the prompt's and the completion's tokens", func() bool {
				err := h.db.Read().QueryRowContext(t.Context(),
					`SELECT prompt_tokens || '+' || completion_tokens || ' at ' || backend FROM inflight`).Scan(&found)
				return err == nil && found == c.want+" at b0"
			})
			disconnect()
			<-done
			h.awaitRows(1)
		})
	}
}

func TestBrokenStreamIsChargedForWhatWasSent(t *testing.T) {
	t.Parallel()
	broken := map[string]http.HandlerFunc{
		"cut off":      respondStream(event(0, "or not", "null")),
		"an error":     respondStream(event(0, "or not", "null"), `data: {"error":{"message":"EngineCore died","code":500}}`+"\n\n", doneEvent),
		"no finish":    respondStream(event(0, "or not", "null"), doneEvent),
		"in one write": respondStream(event(0, "or not", "null") + doneEvent),
	}
	for name, handler := range broken {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, startBackend(t, handler))
			got := h.complete(`{"model":"m","prompt":"to be","stream":true}`)
			if !strings.Contains(got.body, `data: {"error"`) {
				t.Errorf("got %q, want an error event", got.body)
			}
			if got := h.awaitRows(1)[0]; got.PromptTokens != 3 || got.CompletionTokens != 2 || got.Status != 200 || got.Code == "" {
				t.Errorf("the row is %s, want status 200, a code and 3+2 tokens", summary(got))
			}
		})
	}
}

func TestFailureBeforeTheFirstTokenIsNotCharged(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"an error":               respond(500, "text/plain", "Internal Server Error"),
		"a refusal":              respond(400, "application/json", `{"error":{"message":"no","code":400}}`),
		"an error in the stream": respondStream(`data: {"error":{"message":"no","code":400}}`+"\n\n", doneEvent),
		"an abort":               respondStream(event(0, "", `"abort"`), doneEvent),
		"a reset":                func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil, startBackend(t, handler))
			got := h.complete(`{"model":"m","prompt":"to be","stream":true}`)
			row := h.awaitRows(1)[0]
			if row.PromptTokens+row.CompletionTokens != 0 || row.Status != got.status || !strings.Contains(got.body, `"code":"`+row.Code+`"`) {
				t.Errorf("the row is %s for the response %d %s", summary(row), got.status, got.body)
			}
		})
	}
}

// If the tokenizer does not respond, the prompt is charged by its bytes, and the completion by its events.
func TestUpperBoundIsChargedWithoutATokenizer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackendWithout(t, "/tokenize", respondStream(event(0, "or not", "null"), event(0, " to", "null"))))
	h.complete(`{"model":"m","prompt":"to be","stream":true}`)
	if got := h.awaitRows(1)[0]; got.PromptTokens != int64(len("to be")+4) || got.CompletionTokens != 2 {
		t.Errorf("the row is %s", summary(got))
	}
}

// Every version of vLLM reports usage, but a proxy in between may remove it.
func TestResponseWithoutUsageIsCounted(t *testing.T) {
	t.Parallel()
	plain := newHarness(t, nil, startBackend(t, respond(200, "application/json",
		`{"choices":[{"index":0,"text":"or not to be","finish_reason":"stop"},{"index":1,"text":"that","finish_reason":"stop"}]}`)))
	plain.complete(`{"model":"m","prompt":"to be","n":2}`)
	stream := newHarness(t, nil, startBackend(t, respondStream(event(0, "or not", "null"), event(0, " to be", `"stop"`), doneEvent)))
	stream.complete(`{"model":"m","prompt":"to be","stream":true}`)
	for h, want := range map[*harness]string{plain: `settled 200 "" 3+5`, stream: `settled 200 "" 3+4`} {
		if got := summary(h.awaitRows(1)[0]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// llama.cpp's llama-server, which has no /version, sends usage in the last event with a choice.
func TestUsageBesideAChoiceIsCharged(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackendWithout(t, "/version", respondStream(event(0, "i", "null"), event(0, "p", "null"),
		`data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"created":1,"model":"tiny","system_fingerprint":"b1",`+
			`"object":"text_completion","id":"chatcmpl-1","usage":{"completion_tokens":7,"prompt_tokens":6,"total_tokens":13}}`+"\n\n", doneEvent)))
	got := h.complete(`{"model":"m","prompt":"the cat","max_tokens":7,"stream":true}`)
	if got.status != http.StatusOK || !strings.HasSuffix(got.body, doneEvent) {
		t.Errorf("got %d %s, want a whole stream", got.status, got.body)
	}
	if got, want := summary(h.awaitRows(1)[0]), `settled 200 "" 6+7`; got != want {
		t.Errorf("got %s, want %s, which is the usage and no count of words or events", got, want)
	}
}

// The gateway requests the usage event of a stream even if the client has not, so all responses are charged as vLLM
// reports.
func TestCompleteResponseIsChargedByItsUsage(t *testing.T) {
	t.Parallel()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}, APIKey: "backend-key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	h := newHarness(t, nil, mock.URL())
	bodies := []string{
		`"prompt":"The sea"`,
		`"prompt":[72,101,108],"max_tokens":5`,
		`"prompt":["The sea","A ship"],"n":2,"max_tokens":4`,
		`"prompt":"The sea","echo":true,"logprobs":2`,
		`"prompt":"The sea","best_of":4,"n":2,"max_tokens":3`,
		`"prompt":"The sea","stream":true,"max_tokens":7`,
		`"prompt":["The sea","A ship"],"n":3,"stream":true,"max_tokens":4`,
	}
	for i, body := range bodies {
		if got := h.complete(`{"model":"m","seed":1,` + body + `}`); got.status != 200 {
			t.Fatalf("%s: %d %s", body, got.status, got.body)
		}
		h.awaitRows(i + 1) // so that the rows are in the order of bodies
	}
	var got []string
	for _, row := range h.awaitRows(len(bodies)) {
		got = append(got, fmt.Sprintf("%d+%d %v", row.PromptTokens, row.CompletionTokens, row.Stream))
	}
	tokenized := func(text string) int64 {
		n, err := h.tokenize(mock.URL(), text)
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

// Counts that a response cannot have are replaced by the gateway's own. In the test's tokenizer, words are tokens, and a prompt
// has one token more.
func TestUsageThatIsOfNoUseIsCounted(t *testing.T) {
	t.Parallel()
	const (
		chatRequest = `{"model":"m","messages":[{"role":"user","content":"to be or"}],"max_tokens":9}`
		both        = `,"usage":{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":0}`
	)
	counts := map[string]bool{ // whether it is the usage
		"":                                             false,
		`,"usage":null`:                                false,
		`,"usage":{}`:                                  false,
		`,"usage":[]`:                                  false,
		`,"usage":{"prompt_tokens":6}`:                 false,
		`,"usage":{"completion_tokens":7}`:             false,
		`,"usage":{"total_tokens":13}`:                 false,
		fmt.Sprintf(both, "4", "7"):                    true,
		fmt.Sprintf(both, "0", "0"):                    false,
		fmt.Sprintf(both, "6", "0"):                    false,
		fmt.Sprintf(both, "0", "7"):                    false,
		fmt.Sprintf(both, "-6", "7"):                   false,
		fmt.Sprintf(both, "6", "-7"):                   false,
		fmt.Sprintf(both, "6", "7.5"):                  false,
		fmt.Sprintf(both, `"6"`, "7"):                  false,
		fmt.Sprintf(both, "6", "null"):                 false,
		fmt.Sprintf(both, "6", "18446744073709551617"): false,
		fmt.Sprintf(both, "6", "1e300"):                false,
	}
	plain := func(choice, usage string) http.HandlerFunc {
		return respond(http.StatusOK, "application/json", `{"choices":[{"index":0,`+choice+`,"finish_reason":"stop"}]`+usage+"}")
	}
	streamed := func(choice, events string) http.HandlerFunc {
		return respondStream("data: {\"choices\":[{\"index\":0,"+choice+",\"finish_reason\":\"stop\"}]"+events, doneEvent)
	}
	for name, c := range map[string]struct {
		path, body string
		respond    func(usage string) http.HandlerFunc
		counted    string
	}{
		"plain": {proxy.CompletionsPath, `{"model":"m","prompt":"to be or","max_tokens":9}`, func(u string) http.HandlerFunc {
			return plain(`"text":"not to be"`, u)
		}, "4+3"},
		"a stream": {proxy.CompletionsPath, `{"model":"m","prompt":"to be or","max_tokens":9,"stream":true}`, func(u string) http.HandlerFunc {
			return streamed(`"text":"not to be"`, "}\n\ndata: {\"choices\":[]"+u+"}\n\n")
		}, "4+3"},
		"a stream with usage beside the last choice": {proxy.CompletionsPath, `{"model":"m","prompt":"to be or","max_tokens":9,"stream":true}`, func(u string) http.HandlerFunc {
			return streamed(`"text":"not to be"`, u+"}\n\n")
		}, "4+3"},
		"chat": {proxy.ChatPath, chatRequest, func(u string) http.HandlerFunc {
			return plain(`"message":{"role":"assistant","content":"not to be"}`, u)
		}, "4+3"},
		"a chat stream": {proxy.ChatPath, strings.Replace(chatRequest, "{", `{"stream":true,`, 1), func(u string) http.HandlerFunc {
			return streamed(`"delta":{"content":"not to be"}`, "}\n\ndata: {\"choices\":null"+u+"}\n\n")
		}, "4+3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var respond http.HandlerFunc
			h := newHarness(t, chats, startBackend(t, func(w http.ResponseWriter, r *http.Request) { respond(w, r) }))
			rows := 0
			for usage, known := range counts {
				respond = c.respond(usage)
				if got := h.post(c.path, c.body); got.status != http.StatusOK {
					t.Errorf("%s: got %d %s", usage, got.status, got.body)
				}
				rows++
				want := c.counted
				if known {
					want = "4+7"
				}
				row := h.awaitRows(rows)[rows-1]
				if got := fmt.Sprintf("%d+%d", row.PromptTokens, row.CompletionTokens); got != want {
					t.Errorf("%s: charged %s, want %s", usage, got, want)
				}
			}
		})
	}
}

// The candidates of best_of are counted by their log-probabilities, without those of an echoed prompt.
func TestCandidatesOfBestOfAreCounted(t *testing.T) {
	t.Parallel()
	candidate := func(index int, prompt, completion string) string {
		tokens := strings.Fields(prompt + " " + completion)
		return fmt.Sprintf(`{"index":%d,"text":"%s %s","logprobs":{"tokens":["%s"],"token_logprobs":[%s]},"finish_reason":"stop"}`, index, prompt, completion,
			strings.Join(tokens, `","`), strings.TrimSuffix(strings.Repeat("-1,", len(tokens)), ","))
	}
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", `{"choices":[`+strings.Join([]string{
		candidate(0, "bos a", "b c"), candidate(1, "bos a", "b"), candidate(2, "bos a b c", "d e f"), candidate(3, "bos a b c", "d"),
	}, ",")+`],"usage":{"prompt_tokens":6,"completion_tokens":0}}`)))
	got := h.complete(`{"model":"m","prompt":["a","a b c"],"echo":true,"n":1,"best_of":2}`)
	if row := summary(h.awaitRows(1)[0]); got.status != http.StatusOK || row != `settled 200 "" 6+7` {
		t.Errorf("got %d %s, charged %s, want 2+4 and 2+1+3+1", got.status, got.body, row)
	}
}

// Whatever a backend reports or sends, no more is charged than was reserved, so that no key exceeds its cap.
func TestNoMoreIsChargedThanWasReserved(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"prompt_tokens":99999,"completion_tokens":99999}`
	choice := `{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1]},"finish_reason":"stop"}`
	plain := respond(http.StatusOK, "application/json", `{"choices":[`+choice+`],`+usage+`}`)
	for name, c := range map[string]struct {
		body    string
		backend http.HandlerFunc
		charged string
		rest    int // tokens
	}{
		"plain":      {`"prompt":[1,2]`, plain, "2+8", 2*99999 - 10},
		"several":    {`"prompt":[[1,2],[3]],"n":2`, respond(http.StatusOK, "application/json", `{"choices":[`+strings.Join([]string{choice, strings.Replace(choice, "0", "1", 1), strings.Replace(choice, "0", "2", 1), strings.Replace(choice, "0", "3", 1)}, ",")+`],`+usage+`}`), "3+32", 2*99999 - 35},
		"best_of":    {`"prompt":[1,2],"best_of":2`, respond(http.StatusOK, "application/json", `{"choices":[`+choice+`,`+strings.Replace(choice, "0", "1", 1)+`],`+usage+`}`), "2+16", 2*99999 - 18},
		"a stream":   {`"prompt":[1,2],"stream":true`, respondStream(event(0, "a", `"stop"`), `data: {"choices":[],`+usage+"}\n\n", doneEvent), "2+8", 2*99999 - 10},
		"llama.cpp":  {`"prompt":[1,2],"stream":true`, respondStream(`data: {"choices":[`+choice+`],`+usage+"}\n\n", doneEvent), "2+8", 2*99999 - 10},
		"the output": {`"prompt":[1,2]`, respond(http.StatusOK, "application/json", `{"choices":[`+choice+`],"usage":{"prompt_tokens":2,"completion_tokens":9}}`), "2+8", 1},
		"the prompt": {`"prompt":[1,2]`, respond(http.StatusOK, "application/json", `{"choices":[`+choice+`],"usage":{"prompt_tokens":3,"completion_tokens":1}}`), "2+1", 1},
		"a stream that fails": {
			`"prompt":[1,2],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			respondStream(`data: {"choices":[{"index":0,"text":"a","finish_reason":null}],` + usage + "}\n\n"), "2+8", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil, startBackend(t, c.backend))
			h.updateKey(withCaps(func(caps *quota.Caps) { caps[quota.MonthTotal] = quota.Limit(100_000) }))
			h.complete(`{"model":"m","max_tokens":8,` + c.body + `}`)
			row := h.awaitRows(1)[0]
			if got := fmt.Sprintf("%d+%d", row.PromptTokens, row.CompletionTokens); got != c.charged {
				t.Errorf("charged %s, want %s", got, c.charged)
			}
			if used := h.used(h.keyID()); used != row.PromptTokens+row.CompletionTokens {
				t.Errorf("the key stands at %d", used)
			}
			metric := h.metric(`basegate_unreserved_tokens_total{backend="b0",model="m"}`)
			if logged := strings.Contains(h.log.String(), "more tokens than were reserved"); metric != c.rest || logged != (c.rest > 0) {
				t.Errorf("the metric is %d, want %d; logged: %t", metric, c.rest, logged)
			}
		})
	}
}

// The charge of a line of a batch follows the same rules.
func TestLineIsChargedWithinItsReservation(t *testing.T) {
	t.Parallel()
	for usage, want := range map[string]stream.Usage{
		`{"prompt_tokens":99999,"completion_tokens":99999}`: {Prompt: 2, Completion: 8},
		`{"prompt_tokens":0,"completion_tokens":0}`:         {Prompt: 2, Completion: 3},
		`null`: {Prompt: 2, Completion: 3},
	} {
		h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"a b c","finish_reason":"stop"}],"usage":`+usage+`}`)))
		result := h.serveLine(`{"model":"m","prompt":[1,2],"max_tokens":8}`)
		result.Settlement.Abandon()
		result.Release()
		if got := h.metric(`basegate_tokens_total{kind="prompt",model="m"}`); int64(got) != want.Prompt {
			t.Errorf("%s: charged %d of the prompt, want %d", usage, got, want.Prompt)
		}
		if got := h.metric(`basegate_tokens_total{kind="completion",model="m"}`); int64(got) != want.Completion {
			t.Errorf("%s: charged %d of the completion, want %d", usage, got, want.Completion)
		}
	}
}
