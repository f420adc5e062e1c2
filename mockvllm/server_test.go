package mockvllm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

func TestDisconnectStopsGeneration(t *testing.T) {
	p := start(t, mockvllm.Options{TokenDelay: 2 * time.Millisecond})
	reader, disconnect := open(t, p, map[string]any{"stream": true, "max_tokens": 8000, "ignore_eos": true})
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if p.Running() != 1 {
		t.Errorf("got %d running requests, want 1", p.Running())
	}
	disconnected := time.Now()
	disconnect()
	poll.Until(t, "the disconnect to be recorded", func() bool { return p.Requests()[0].ClientDisconnected() })
	record := p.Requests()[0]
	if p.Running() != 0 || record.Disconnected.Before(disconnected) {
		t.Errorf("disconnected at %v, recorded as %v", disconnected, record.Disconnected)
	}
	if got := generated(t, p); got == "8000" {
		t.Errorf("generated %s tokens, want generation to stop", got)
	}
}

func generated(t *testing.T, p *mockvllm.Process) string {
	t.Helper()
	for line := range strings.Lines(send(t, p, http.MethodGet, "/metrics", "").body) {
		if number, ok := strings.CutPrefix(line, `vllm:generation_tokens_total{engine="0",model_name="mock-model"} `); ok {
			return strings.TrimSpace(number)
		}
	}
	t.Fatal("/metrics has no vllm:generation_tokens_total")
	return ""
}

func TestRequestsAreRecordedByteForByte(t *testing.T) {
	p := start(t, mockvllm.Options{})
	const odd = "{ \"model\":\"mock-model\",\t\"prompt\" : \"\\u00e9\", \"max_tokens\":1}\n"
	send(t, p, http.MethodPost, completions, odd)
	r := p.Requests()[0]
	if string(r.Body) != odd || r.Method != http.MethodPost || r.Path != completions || r.Header.Get("X-Request-Id") != "test" || r.ClientDisconnected() {
		t.Errorf("got record %+v", r)
	}
	var listed []struct{ Method, Path, Body string }
	if err := json.Unmarshal([]byte(send(t, p, http.MethodGet, "/mock/requests", "").body), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 1 || listed[0].Body != odd {
		t.Errorf("/mock/requests: got %+v, want body %q", listed, odd)
	}
}

func TestHeadersMatchUvicorn(t *testing.T) {
	p := start(t, mockvllm.Options{})
	plain := send(t, p, http.MethodPost, completions, body(t, nil))
	if plain.header.Get("Server") != "uvicorn" || plain.header.Get("Content-Length") != fmt.Sprint(len(plain.body)) ||
		plain.header.Get("Content-Type") != "application/json" {
		t.Errorf("plain response: got headers %v", plain.header)
	}
	streamed := send(t, p, http.MethodPost, completions, body(t, map[string]any{"stream": true}))
	if streamed.header.Get("Content-Type") != "text/event-stream; charset=utf-8" || streamed.header.Get("Content-Length") != "" {
		t.Errorf("stream: got headers %v", streamed.header)
	}
}

func TestStreamHeadersPrecedeTheFirstToken(t *testing.T) {
	p := start(t, mockvllm.Options{FirstDelay: time.Hour})
	_, disconnect := open(t, p, map[string]any{"stream": true}) // returns with the headers
	disconnect()
	poll.Until(t, "the request to end", func() bool { return p.Running() == 0 })
}

func TestRoutesRespondLikeFastAPI(t *testing.T) {
	p := start(t, mockvllm.Options{Models: []string{"first", "second"}, Version: "0.23.0"})
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/health", 200, ""},
		{"GET", "/version", 200, `{"version":"0.23.0"}`},
		{"GET", "/load", 200, `{"server_load":0}`},
		{"GET", "/nowhere", 404, `{"detail":"Not Found"}`},
		{"GET", completions, 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/v1/models", 405, `{"detail":"Method Not Allowed"}`},
		{"POST", completions + "/", 307, ""},
	} {
		a := send(t, p, test.method, test.path, "")
		if a.status != test.status || a.body != test.body {
			t.Errorf("%s %s: got %d %s, want %d %s", test.method, test.path, a.status, a.body, test.status, test.body)
		}
	}
	if a := send(t, p, "GET", completions, ""); a.header.Get("Allow") != "POST" {
		t.Errorf("Allow: got %q, want POST", a.header.Get("Allow"))
	}
	if a := send(t, p, "GET", "/v1/models", ""); !strings.Contains(a.body, `{"id":"second","object":"model","created":`) {
		t.Errorf("/v1/models: got %s, want the second model listed", a.body)
	}
	second := send(t, p, http.MethodPost, completions, body(t, map[string]any{"model": "second"}))
	if !strings.Contains(second.body, `"model":"first"`) {
		t.Errorf("got %s, want the first served model's name", second.body)
	}
}

func TestAPIKeyProtectsOnlyV1(t *testing.T) {
	p := start(t, mockvllm.Options{APIKey: "secret"})
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 401 || a.body != `{"error":"Unauthorized"}` {
		t.Errorf("without the key: got %d %s, want 401", a.status, a.body)
	}
	if a := send(t, p, http.MethodPost, "/tokenize", `{"prompt":"x"}`); a.status != 200 {
		t.Errorf("/tokenize without the key: got %d %s, want 200", a.status, a.body)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "bearer secret")
	response, err := client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("with the key: got %d, want 200", response.StatusCode)
	}
}

func TestSleepAbortsRunningRequestsAndDelaysNewOnes(t *testing.T) {
	p := start(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	running := make(chan result)
	go func() {
		running <- trySend(t, p, http.MethodPost, completions, body(t, map[string]any{"max_tokens": 5000, "ignore_eos": true}))
	}()
	awaitMetric(t, p, "vllm:generation_tokens_total", 1)
	send(t, p, http.MethodPost, "/sleep?level=2", "")
	if a := <-running; a.status != 200 || !strings.Contains(a.body, `"finish_reason":"abort"`) {
		t.Errorf("running request: got %d %s, want 200 with finish_reason abort", a.status, a.body)
	}
	if a := send(t, p, http.MethodGet, "/is_sleeping", ""); a.body != `{"is_sleeping":true}` {
		t.Errorf("/is_sleeping: got %s, want true", a.body)
	}
	go func() {
		running <- trySend(t, p, http.MethodPost, completions, body(t, map[string]any{"temperature": 0}))
	}()
	awaitMetric(t, p, "vllm:num_requests_running", 1)
	send(t, p, http.MethodPost, "/wake_up", "")
	if a := <-running; a.status != 200 || !strings.Contains(a.body, "Paris") {
		t.Errorf("after wake-up: got %d %s, want 200 with Paris", a.status, a.body)
	}
}

func TestCloseEndsRunningRequests(t *testing.T) {
	s := mockvllm.New(mockvllm.Options{FirstDelay: time.Hour})
	web := httptest.NewServer(s)
	var clients sync.WaitGroup
	for _, streamed := range []string{"true", "false"} {
		clients.Go(func() {
			response, err := client().Post(web.URL+completions, "application/json",
				strings.NewReader(`{"prompt":"x","stream":`+streamed+`}`))
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
		})
	}
	poll.Until(t, "both requests to run", func() bool { return s.Running() == 2 })
	s.Close()
	if s.Running() != 0 {
		t.Errorf("%d requests run after Close, want 0", s.Running())
	}
	clients.Wait()
	web.Close()
	if s.Requests()[0].ClientDisconnected() {
		t.Error("Close is recorded as a client disconnect")
	}
}

func TestHalfClosedConnectionCountsAsDisconnect(t *testing.T) {
	p := start(t, mockvllm.Options{FirstDelay: time.Hour})
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	content := body(t, nil)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		completions, len(content), content)
	poll.Until(t, "the request to run", func() bool { return p.Running() == 1 })
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the request to end", func() bool { return p.Running() == 0 })
}

func TestInstantResponsesReportUsage(t *testing.T) {
	p := start(t, mockvllm.Options{Instant: true})
	plain := complete(t, p, map[string]any{"max_tokens": 3})
	if diff := cmp.Diff(&usage{6, 3, 9}, plain.Usage); diff != "" || plain.Choices[0].Text != " word word word" {
		t.Errorf("usage (-want +got): %s, choices %+v, want \" word\" three times", diff, plain.Choices)
	}
	for _, delay := range []time.Duration{0, time.Microsecond} {
		p := start(t, mockvllm.Options{Instant: true, TokenDelay: delay})
		events, err := stream(t, p, map[string]any{"max_tokens": 5, "stream_options": map[string]any{"include_usage": true}})
		if err != nil || len(events) != 7 || !strings.Contains(events[4], `"length"`) || !strings.Contains(events[5], `"usage"`) {
			t.Errorf("got error %v and events %q, want five tokens, usage and [DONE]", err, events)
		}
	}
}
