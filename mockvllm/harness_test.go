package mockvllm_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// TestMain fails if a goroutine outlives the tests: Close must wait for the server's own.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a mock on a free port until the test ends.
func start(t *testing.T, o mockvllm.Options) *mockvllm.Process {
	t.Helper()
	p, err := mockvllm.Start(t.Context(), "127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// result is a response, as far as it was received.
type result struct {
	status int
	header http.Header
	body   string
	err    error // from reading the body
}

// send makes one request on a new connection.
func send(t *testing.T, p *mockvllm.Process, method, path, body string) result {
	t.Helper()
	a := trySend(t, p, method, path, body)
	if a.status == 0 {
		t.Fatalf("%s %s: %v", method, path, a.err)
	}
	return a
}

// trySend is send for servers that may not respond: then the status is 0.
func trySend(t *testing.T, p *mockvllm.Process, method, path, body string) result {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "test")
	response, err := client().Do(r)
	if err != nil {
		return result{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return result{response.StatusCode, response.Header, string(content), err}
}

// client returns an http.Client that uses a new connection per request and follows no redirect.
func client() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// complete requests a completion. The fields override the defaults; a nil field is left out.
func complete(t *testing.T, p *mockvllm.Process, fields map[string]any) completion {
	t.Helper()
	a := send(t, p, http.MethodPost, "/v1/completions", body(t, fields))
	if a.status != http.StatusOK || a.err != nil {
		t.Fatalf("status %d, error %v: %s", a.status, a.err, a.body)
	}
	var c completion
	if err := json.Unmarshal([]byte(a.body), &c); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return c
}

func body(t *testing.T, fields map[string]any) string {
	t.Helper()
	all := map[string]any{"model": "mock-model", "prompt": "The capital of France is", "max_tokens": 8}
	for name, value := range fields {
		all[name] = value
		if value == nil {
			delete(all, name)
		}
	}
	encoded, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

type completion struct {
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage"`
}

type choice struct {
	Index    int    `json:"index"`
	Text     string `json:"text"`
	Logprobs *struct {
		TextOffset    []int                `json:"text_offset"`
		TokenLogprobs []*float64           `json:"token_logprobs"`
		Tokens        []string             `json:"tokens"`
		TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	} `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"`
	StopReason     any                 `json:"stop_reason"`
	TokenIDs       []int               `json:"token_ids"`
	PromptTokenIDs []int               `json:"prompt_token_ids"`
	PromptLogprobs []map[string]scored `json:"prompt_logprobs"`
}

type scored struct {
	Logprob      float64 `json:"logprob"`
	Rank         int     `json:"rank"`
	DecodedToken string  `json:"decoded_token"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// stream requests a streamed completion and returns the data of its events, including [DONE].
func stream(t *testing.T, p *mockvllm.Process, fields map[string]any) ([]string, error) {
	t.Helper()
	all := map[string]any{"stream": true}
	maps.Copy(all, fields)
	a := send(t, p, http.MethodPost, "/v1/completions", body(t, all))
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	return events(a.body), a.err
}

func events(body string) []string {
	var found []string
	for event := range strings.SplitSeq(body, "\n\n") {
		if data, ok := strings.CutPrefix(event, "data: "); ok {
			found = append(found, data)
		}
	}
	return found
}

// decodeEvents decodes events other than [DONE].
func decodeEvents(t *testing.T, events []string) []completion {
	t.Helper()
	var found []completion
	for _, event := range events {
		if event == "[DONE]" {
			continue
		}
		var c completion
		if err := json.Unmarshal([]byte(event), &c); err != nil {
			t.Fatalf("%v: %s", err, event)
		}
		found = append(found, c)
	}
	return found
}

// streamedText joins the text of the events, by choice.
func streamedText(events []completion) map[int]string {
	texts := make(map[int]string)
	for _, event := range events {
		for _, c := range event.Choices {
			texts[c.Index] += c.Text
		}
	}
	return texts
}

// open sends a streaming request and returns a reader of the response body and a function that disconnects.
func open(t *testing.T, p *mockvllm.Process, fields map[string]any) (*bufio.Reader, func()) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+"/v1/completions",
		bytes.NewReader([]byte(body(t, fields))))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(response.Body), func() { response.Body.Close() }
}

func isEOF(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }

// awaitMetric waits until a metric of the engine is at least want. Process.Running counts a request from its first byte on,
// before the engine knows it.
func awaitMetric(t *testing.T, p *mockvllm.Process, name string, want float64) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("%s to be %g", name, want), func() bool {
		for line := range strings.Lines(send(t, p, http.MethodGet, "/metrics", "").body) {
			if strings.HasPrefix(line, name+"{") {
				_, value, _ := strings.Cut(line, "} ")
				got, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					t.Fatal(err)
				}
				return got >= want
			}
		}
		return false
	})
}
