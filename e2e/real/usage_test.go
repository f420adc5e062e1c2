//go:build real

package real_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
)

// noEOS bans the end-of-text token, so that a completion has max_tokens tokens.
const noEOS = `"logit_bias": {"1": -100}`

// TestLedgerHasTheUsageOfEveryResponse compares the ledger with vLLM's own usage. For a stream without usage it asks the
// server itself, with usage.
func TestLedgerHasTheUsageOfEveryResponse(t *testing.T) {
	servers := backends(t)
	g := startGateway(t, "", servers...)
	prompt := `"prompt": "The quick brown fox"`
	type want struct {
		name               string
		prompt, completion int64
	}
	expected := map[string]want{} // by request id
	for _, members := range []string{
		prompt + `, "max_tokens": 7`,
		prompt + `, "max_tokens": 5, "n": 3`,
		prompt + `, "max_tokens": 5, "echo": true, "logprobs": 1`,
		prompt + `, "max_tokens": 1, "prompt_logprobs": 1`,
		prompt + `, "max_tokens": 9, "stop": ["e"]`,
		`"prompt": ["one", "two", "Příliš žluťoučký kůň 🙂"], "max_tokens": 6`,
		`"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 4, "n": 2`,
		`"prompt": [300, 301, 302, 303], "max_tokens": 12`,
	} {
		for _, stream := range []string{"", `, "stream": true, "stream_options": {"include_usage": true}`, `, "stream": true`} {
			if strings.Contains(members, "prompt_logprobs") && stream != "" {
				continue
			}
			body := `{"model": "%s", "seed": 5, ` + noEOS + ", " + members
			r := g.complete(fmt.Sprintf(body, modelID) + stream + "}")
			if r.status != http.StatusOK {
				t.Errorf("%s%s: %d %s", members, stream, r.status, r.body)
				continue
			}
			text := r.body
			if !strings.Contains(text, `"usage"`) {
				direct := fmt.Sprintf(body, checkpoint) + `, "stream": true, "stream_options": {"include_usage": true}}`
				text = readAll(t, open(t.Context(), t, servers[0].url, "", direct)).body
			}
			usage := gjson.Get(text[strings.LastIndex(text, `{"id"`):], "usage")
			expected[r.header.Get("X-Request-Id")] = want{members + stream, usage.Get("prompt_tokens").Int(), usage.Get("completion_tokens").Int()}
		}
	}
	rows := g.ledger()
	for id, w := range expected {
		if row := rows[id]; row.Prompt != w.prompt || row.Completion != w.completion || w.prompt == 0 || w.completion == 0 {
			t.Errorf("%s: the ledger has %d and %d tokens, vLLM counted %d and %d", w.name, row.Prompt, row.Completion, w.prompt, w.completion)
		}
	}
	if len(rows) != len(expected) {
		t.Errorf("%d rows for %d requests", len(rows), len(expected))
	}
}

// longTokens takes vLLM several seconds, so a request is in flight long enough to be disturbed.
const longTokens = 6000

func longRequest(stream bool) string {
	return fmt.Sprintf(`{"model": %q, "prompt": "Once", "max_tokens": %d, "seed": 1, "stream": %t, %s}`, modelID, longTokens, stream, noEOS)
}

// openStream sends a long streamed request, and returns it after five events.
func (g *gateway) openStream(ctx context.Context) (*http.Response, *bufio.Scanner) {
	g.t.Helper()
	r := g.open(ctx, longRequest(true))
	if r.StatusCode != http.StatusOK {
		g.t.Fatalf("%d %s", r.StatusCode, readAll(g.t, r).body)
	}
	lines := bufio.NewScanner(r.Body)
	for events := 0; events < 5; {
		if !lines.Scan() {
			g.t.Fatalf("the stream ended after %d events: %v", events, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
	return r, lines
}

func TestDisconnectMidStreamStopsTheEngineAndIsCharged(t *testing.T) {
	server := backends(t)[0]
	g := startGateway(t, "", server)
	before := server.metric(t, "vllm:generation_tokens_total", "")
	ctx, disconnect := context.WithCancel(t.Context())
	r, _ := g.openStream(ctx)
	id := r.Header.Get("X-Request-Id")
	disconnect()
	r.Body.Close()
	poll.Until(t, "vLLM has aborted the request", func() bool { return server.metric(t, "vllm:num_requests_running", "") == 0 })
	generated := int64(server.metric(t, "vllm:generation_tokens_total", "") - before)
	poll.Until(t, "the request is on the ledger", func() bool { return g.ledger()[id].Status != 0 })
	row := g.ledger()[id]
	t.Logf("vLLM generated %d tokens of %d, the ledger has %+v", generated, longTokens, row)
	// The text of an event with several tokens is counted anew, and can then have a few more.
	if generated >= longTokens || row.Completion < 5 || row.Completion > generated+max(10, generated/10) || row.Prompt == 0 {
		t.Errorf("vLLM generated %d tokens of %d, the ledger has %+v", generated, longTokens, row)
	}
}

func TestDisconnectOfPlainRequestStopsTheEngine(t *testing.T) {
	server := backends(t)[0]
	g := startGateway(t, "", server)
	before := server.metric(t, "vllm:generation_tokens_total", "")
	ctx, disconnect := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		request, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", strings.NewReader(longRequest(false)))
		request.Header.Set("Authorization", "Bearer "+g.secret)
		if r, err := httpClient.Do(request); err == nil {
			r.Body.Close()
		}
	}()
	poll.Until(t, "vLLM runs the request", func() bool { return server.metric(t, "vllm:num_requests_running", "") == 1 })
	disconnect()
	<-done
	poll.Until(t, "vLLM has aborted the request", func() bool { return server.metric(t, "vllm:num_requests_running", "") == 0 })
	if generated := server.metric(t, "vllm:generation_tokens_total", "") - before; generated >= longTokens {
		t.Errorf("vLLM generated %v tokens", generated)
	}
}
