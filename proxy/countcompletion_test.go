package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// leaveAfter posts a streaming request, disconnects after that many events, and returns the completion tokens charged.
func (h *harness) leaveAfter(events int, body string) int64 {
	h.t.Helper()
	ctx, disconnect := context.WithCancel(h.t.Context())
	defer disconnect()
	resp, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", body))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	for read := ""; strings.Count(read, "\n\n") < events; {
		b := make([]byte, 1024)
		n, err := resp.Body.Read(b)
		if err != nil {
			h.t.Fatalf("after %q: %v", read, err)
		}
		read += string(b[:n])
	}
	disconnect()
	return h.awaitRows(1)[0].CompletionTokens
}

// startReplay starts a backend that answers completions with the events and then hangs, and everything else as the mock.
func startReplay(t *testing.T, mock string, events []string) string {
	t.Helper()
	address, err := url.Parse(mock)
	if err != nil {
		t.Fatal(err)
	}
	rest := httputil.NewSingleHostReverseProxy(address)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/completions" {
			rest.ServeHTTP(w, r)
			return
		}
		io.Copy(io.Discard, r.Body) // net/http notices a disconnect only after the body has been read
		respondStreamThenHang(events...)(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// postMock sends a request to the mock itself.
func postMock(t *testing.T, h *harness, url, body string) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer backend-key")
	return h.do(req)
}

// mockStream returns the events of a stream of the mock, without [DONE]. Every tokensPerEvent tokens are one event.
func mockStream(t *testing.T, h *harness, mock *mockvllm.Process, tokensPerEvent int, members string) []string {
	t.Helper()
	if tokensPerEvent > 1 {
		mock.InjectFault(mockvllm.Fault{Kind: "merge", Tokens: tokensPerEvent})
	}
	got := postMock(t, h, mock.URL()+"/v1/completions", `{"model":"org/Model-8B","stream":true,`+members+`}`)
	events := strings.SplitAfter(got.body, "\n\n")
	if len(events) < 10 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	return events[:len(events)-2] // [DONE], and what is behind it
}

// textTokens returns what the mock's tokenizer makes of a text by itself, with one token for each U+FFFD.
func textTokens(t *testing.T, h *harness, mock, text string) int64 {
	t.Helper()
	sum := int64(strings.Count(text, "\ufffd"))
	for piece := range strings.SplitSeq(text, "\ufffd") {
		body, err := json.Marshal(map[string]any{"model": "org/Model-8B", "prompt": piece, "add_special_tokens": false})
		if err != nil {
			t.Fatal(err)
		}
		if piece != "" {
			sum += gjson.Get(postMock(t, h, mock+"/tokenize", string(body)).body, "count").Int()
		}
	}
	return sum
}

// The events of a stream that the client leaves are charged as they say themselves, or else one token each, and by their
// own text if they hold several. On random text, the tokenizer makes more tokens of the whole than were sent.
func TestEventsOfACutStreamAreChargedOneByOne(t *testing.T) {
	t.Parallel()
	const (
		random  = `"prompt":"The sea","max_tokens":120,"ignore_eos":true,"temperature":2,"seed":5,"logit_bias":{"33":-100}`
		anyByte = `"prompt":"The sea","max_tokens":120,"ignore_eos":true,"temperature":2,"seed":5,"allowed_token_ids":[65,97,98,101,104,116,128,195,169,226,130,255]`
		likely  = `"prompt":"The capital of France is","max_tokens":60,"ignore_eos":true,"temperature":0`
	)
	for _, c := range []struct {
		name, generated, asked string
		perEvent               int
		listed                 bool // the events say how many tokens they hold
	}{
		{"likely text", likely, "", 1, false},
		{"likely text, four tokens in an event", likely, "", 4, false},
		{"random text", random, "", 1, false},
		{"random text, three tokens in an event", random, "", 3, false},
		{"random bytes", anyByte, "", 1, false},
		{"random bytes, three tokens in an event", anyByte, "", 3, false},
		{"random bytes with token_ids", anyByte, `,"return_token_ids":true`, 3, true},
		{"random bytes with continuous usage", anyByte, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, 3, true},
		{"random bytes with logprobs", anyByte, `,"logprobs":0`, 3, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			direct, mock := startMock(t, "0.32.0")
			known := mockStream(t, direct, mock, c.perEvent, c.generated+`,"return_token_ids":true`)
			events := mockStream(t, direct, mock, c.perEvent, c.generated+c.asked)
			n := min(len(known), len(events)) / 2
			var withText, sent, whole, byThemselves int64
			var text strings.Builder
			for _, event := range known[:n] {
				choice := gjson.Get(strings.TrimPrefix(event, "data: "), "choices.0")
				sent += choice.Get("token_ids.#").Int()
				if own := choice.Get("text").Str; own != "" {
					withText++
					byThemselves += max(1, textTokens(t, direct, mock.URL(), own))
					text.WriteString(own)
				}
			}
			whole = textTokens(t, direct, mock.URL(), text.String())
			h := newHarness(t, nil, startReplay(t, mock.URL(), events[:n]))
			got := h.leaveAfter(n, `{"model":"m","stream":true,`+c.generated+c.asked+`}`)
			t.Logf("%d events with text hold %d tokens; the text has %d as a whole and %d event by event; charged %d", withText, sent, whole, byThemselves, got)
			want := byThemselves
			switch {
			case c.listed:
				want = sent
			case whole <= withText:
				want = withText
			}
			if got != want {
				t.Errorf("charged %d tokens, want %d", got, want)
			}
			if c.perEvent == 1 && got > sent {
				t.Errorf("charged %d tokens, more than the %d that were sent", got, sent)
			}
		})
	}
}

// U+FFFD stands for bytes that are no text. It is one token, although the tokenizer makes three of its bytes.
func TestInvalidBytesInACutStreamAreOneTokenEach(t *testing.T) {
	t.Parallel()
	direct, mock := startMock(t, "0.32.0")
	for text, want := range map[string]int64{
		"\ufffd": 1, "\ufffd\ufffd": 2, "!\ufffd!": 3, "\ufffd!\ufffd": 3,
	} {
		if tokens := textTokens(t, direct, mock.URL(), strings.ReplaceAll(text, "\ufffd", "?")); tokens != want {
			t.Fatalf("%q: the test expects a token for each character, got %d", text, tokens)
		}
		h := newHarness(t, nil, startReplay(t, mock.URL(), []string{event(0, text, "null")}))
		if got := h.leaveAfter(1, `{"model":"m","prompt":"x","stream":true}`); got != want {
			t.Errorf("%q: charged %d tokens, want %d", text, got, want)
		}
	}
}

// Counting a stream that was cut off asks the tokenizer once if its events hold a token each, and otherwise once more for
// each different text.
func TestCountOfACutStreamNeedsFewRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		want   int
	}{
		"a token each":    {[]string{"a", " b", " a", " b"}, 1},
		"several in some": {[]string{"a b", " c", "a b", " c", "a b"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var calls int
			var events []string
			for _, text := range c.events {
				events = append(events, event(0, text, "null"))
			}
			h := newHarness(t, nil, startBackendCounting(t, &calls, respondStreamThenHang(events...)))
			before := calls
			h.leaveAfter(len(events), fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":50,"stream":true}`, tokenIDs(3)))
			if calls -= before; calls != c.want {
				t.Errorf("got %d requests to /tokenize, want %d", calls, c.want)
			}
		})
	}
}

// Text is sent to the tokenizer only as far as it can make a difference to the charge, which is limited by max_tokens.
func TestTextIsCountedOnlyAsFarAsItMatters(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("š! ", 300_000) // 1.2 MB
	for name, c := range map[string]struct {
		events []string
		most   int // bytes sent to /tokenize
		want   int64
	}{
		"more events than max_tokens": {slices.Repeat([]string{"a b"}, 40), 0, 20},
		"a long event":                {[]string{long}, 2 * 20 << 10, 20},
		"long events":                 {[]string{"a", long, long}, 2 * 20 << 10, 20},
		"a long token":                {[]string{strings.Repeat("x", 100_000)}, 2 * 20 << 10, 1},
		"short events":                {[]string{"a b c", "d"}, 40, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			var events []string
			for _, text := range c.events {
				events = append(events, event(0, text, "null"))
			}
			h := newHarness(t, nil, startFilteredBackend(t, respondStreamThenHang(events...), func(r *http.Request) bool {
				if r.URL.Path == "/tokenize" {
					body, _ := io.ReadAll(r.Body)
					r.Body = io.NopCloser(strings.NewReader(string(body)))
					sent.Add(int64(len(gjson.GetBytes(body, "prompt").Str)))
				}
				return true
			}))
			before := sent.Load()
			got := h.leaveAfter(len(events), `{"model":"m","prompt":[1,2],"max_tokens":20,"stream":true}`)
			if n := int(sent.Load() - before); got != c.want || n > c.most {
				t.Errorf("charged %d tokens, want %d; %d bytes were sent to the tokenizer, want at most %d", got, c.want, n, c.most)
			}
		})
	}
}
