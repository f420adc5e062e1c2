package proxy_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/poll"
)

// keepaliveStream is a stream that was requested with X-Acs-Keepalive and has begun.
type keepaliveStream struct {
	t      *testing.T
	header http.Header
	lines  *bufio.Reader
	leave  func()
}

// beginStream posts a streaming request with X-Acs-Keepalive and returns when its status has arrived.
func (h *harness) beginStream(seconds, body string) *keepaliveStream {
	h.t.Helper()
	ctx, leave := context.WithCancel(h.t.Context())
	h.t.Cleanup(leave)
	req := h.newRequest(ctx, http.MethodPost, "/v1/completions", body)
	req.Header.Set("X-Acs-Keepalive", seconds)
	resp, err := client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		rest, _ := io.ReadAll(resp.Body)
		h.t.Fatalf("got %d %v %s, want a stream", resp.StatusCode, resp.Header, rest)
	}
	return &keepaliveStream{h.t, resp.Header, bufio.NewReader(resp.Body), leave}
}

// line returns the next line, with its end.
func (s *keepaliveStream) line() string {
	s.t.Helper()
	line, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Fatalf("after %q: %v", line, err)
	}
	return line
}

// rest returns what is left of the stream.
func (s *keepaliveStream) rest() string {
	s.t.Helper()
	all, err := io.ReadAll(s.lines)
	if err != nil {
		s.t.Fatalf("after %q: %v", all, err)
	}
	return string(all)
}

func TestKeepaliveSaysWhatAStreamWaitsFor(t *testing.T) {
	t.Parallel() // it waits for comments
	backend := make(chan struct{})
	h := newHarness(t, func(o *harnessOptions) { o.settings.ConcurrencyPerKey = 1 }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-backend:
		case <-r.Context().Done():
			return
		}
		respondStream(event(0, "a", `"stop"`), doneEvent)(w, r)
	}))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(10) }))
	body := `{"model":"m","prompt":[1,2],"stream":true,"user":"ada"}`
	running := h.beginStream("5", body)
	h.awaitQueue("one runs", budget.Stats{Running: 1})
	second := h.beginStream("5", body)
	h.awaitQueue("one waits", budget.Stats{Running: 1, Waiting: 1})
	third := h.beginStream("5", body)
	for _, c := range []struct {
		stream *keepaliveStream
		want   string
	}{
		{running, ": waiting for the first token\n"}, {second, ": queued, 0 before you\n"}, {third, ": queued, 1 before you\n"},
	} {
		if got := c.stream.line(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if h := c.stream.header; h.Get("X-Acs-User") != "ada" || h.Get("X-Ratelimit-Limit-Tokens") != "10" || h.Get("Server-Timing") != "" {
			t.Errorf("got header %v", h)
		}
	}
	second.leave()
	close(backend)
	late := regexp.MustCompile(`^(?:: waiting for the first token\n)*: server-timing queue;dur=.+\n: max-tokens-clamped requested=16,applied=8,reason=budget\n: upstream-gpu H100\n: upstream-model org/Model-8B\n`)
	got := running.rest()
	if events := late.ReplaceAllString(got, ""); !late.MatchString(got) || events != event(0, "a", `"stop"`)+doneEvent {
		t.Errorf("got %q, want the headers as comments, and the events", got)
	}
	if got := third.rest(); !strings.HasSuffix(got, event(0, "a", `"stop"`)+doneEvent) {
		t.Errorf("got %q", got)
	}
}

func TestKeepaliveSaysHowFarABootIs(t *testing.T) {
	t.Parallel() // it waits for a comment
	address, err := url.Parse(refusingBackend(t))
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(o *harnessOptions) {
		o.model.Backends = []config.Backend{{Name: "b", URL: address, Launch: &config.Launch{
			Start: []string{"true"}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: 9 * time.Second,
		}}}
	})
	s := h.beginStream("5", streamRequest)
	if got := s.line(); !regexp.MustCompile(`^: booting, ([4-9]|\d\d) of about 60 s\n$`).MatchString(got) { // the comment may be late
		t.Errorf("got %q", got)
	}
	got := s.rest()
	if !regexp.MustCompile(`^(: booting, ([4-9]|\d\d) of about 60 s\n)*: retry-after `).MatchString(got) || strings.Count(got, "data: ") != 1 || !strings.Contains(got, `data: {"error":{"code":"upstream_unreachable"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("got %q, want the failure of the boot as one error event", got)
	}
	if rows := h.awaitRows(0); len(rows) > 0 {
		t.Errorf("charged %v", rows)
	}
}

// A failure before the first event is an error event, and costs nothing.
func TestFailureUnderKeepaliveIsAnErrorEventAndFree(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(500, "text/plain", "no")))
	got := h.beginStream("60", streamRequest).rest()
	late := regexp.MustCompile(`^(: [a-z-]+ .+\n)+data: \{"error":\{"code":"upstream_server_error".+\}\}\n\n$`)
	if !late.MatchString(got) || !strings.Contains(got, ": upstream-error-kind upstream_server_error\n") {
		t.Errorf("got %q", got)
	}
	if row := summary(h.awaitRows(1)[0]); row != `settled 200 "upstream_server_error" 0+0` {
		t.Errorf("the row is %s", row)
	}
}

// A request that fails a check that needs no backend gets its status. So does a request without a valid header, and one that
// does not stream.
func TestKeepaliveBeginsAfterTheChecksOfTheRequest(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(500, "text/plain", "no")))
	for _, c := range []struct {
		keepalive, body string
		status          int
	}{
		{"5", `{"model":"m","prompt":"x","stream":true,"n":99}`, 400},
		{"5", `{"model":"none","prompt":"x","stream":true}`, 400},
		{"5", `{"model":"m","prompt":"x","stream":true,"max_tokens":4096}`, 400},
		{"5", plainRequest, 502},
		{"4", streamRequest, 502},
		{"61", streamRequest, 502},
		{"5.5", streamRequest, 502},
		{"", streamRequest, 502},
		{"5", streamRequest, 200},
		{"60", streamRequest, 200},
	} {
		req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", c.body)
		req.Header.Set("X-Acs-Keepalive", c.keepalive)
		if got := h.do(req); got.status != c.status {
			t.Errorf("%q, %s: got %d %s, want %d", c.keepalive, c.body, got.status, got.body, c.status)
		}
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.DayTotal] = quota.Limit(0) }))
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", streamRequest)
	req.Header.Set("X-Acs-Keepalive", "5")
	if got := h.do(req); got.status != 429 {
		t.Errorf("got %d, want 429: the budget is spent", got.status)
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
}

// What fails after the stream has begun is one error event under status 200, whatever its own status would have been.
func TestEveryLaterFailureUnderKeepaliveIsOneErrorEvent(t *testing.T) {
	t.Parallel()
	busy := respond(429, "application/json", `{"error":{"message":"Too many requests","code":429}}`)
	long := `{"model":"m","stream":true,"prompt":"` + strings.Repeat("word ", 5000) + `"}`
	for _, c := range []struct {
		code    string
		body    string
		caps    quota.Caps
		backend http.HandlerFunc
		late    string // a comment before the event
	}{
		{"context_length_exceeded", long, quota.Caps{}, busy, ": x-should-retry false\n"},
		{"budget_exceeded", `{"model":"m","stream":true,"prompt":[1,2,3]}`, quota.Caps{quota.MonthTotal: quota.Limit(3)}, busy, ": x-should-retry false\n"},
		{"overloaded", streamRequest, quota.Caps{}, busy, ": retry-after 5\n"},
		{"vllm_oom", streamRequest, quota.Caps{}, respond(500, "application/json", `{"error":{"message":"CUDA out of memory"}}`), ": x-should-retry false\n"},
		{"circuit_open", streamRequest, quota.Caps{}, respond(500, "text/plain", "boom"), ": retry-after 59\n"},
	} {
		h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures, o.breaker.OpenFor = 1, time.Hour }, startBackend(t, c.backend))
		h.updateKey(func(f *identity.Key) { f.Caps = c.caps })
		if c.code == "circuit_open" {
			h.complete(plainRequest) // opens the breaker
		}
		got := h.beginStream("60", c.body).rest()
		if strings.Count(got, "data: ") != 1 || !strings.Contains(got, c.late) || !strings.Contains(got, `data: {"error":{"code":"`+c.code+`"`) || !strings.HasSuffix(got, "}}\n\n") {
			t.Errorf("%s: got %q, want it as one error event after %q", c.code, got, c.late)
		}
	}
}

// Comments go on in the silences between events, and never within an event, of which the backend may have sent a part.
func TestKeepaliveGoesOnBetweenEvents(t *testing.T) {
	t.Parallel() // it waits for comments
	for name, c := range map[string]struct {
		end  string // what the backend sends after the silence
		want string // what follows the comments; the error's members are cut off
	}{
		"a complete stream":   {event(0, "b", `"stop"`) + doneEvent, event(0, "b", `"stop"`) + doneEvent},
		"a stream that fails": {event(0, "b", "null"), event(0, "b", "null") + `data: {"error":{"code":"upstream_server_error"` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silent := make(chan struct{})
			h := newHarness(t, func(o *harnessOptions) { o.settings.IdleTimeout = time.Minute }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				respondStream(event(0, "a", "null"), ": ping\n\n", c.end[:20])(w, r)
				select {
				case <-silent:
				case <-r.Context().Done():
					return
				}
				respondStream(c.end[20:])(w, r)
			}))
			s := h.beginStream("5", streamRequest)
			got := ""
			for !strings.HasSuffix(got, event(0, "a", "null")) {
				got += s.line()
			}
			for range 2 {
				if got := s.line(); got != ": waiting for the next token\n" {
					t.Errorf("got %q, want a comment", got)
				}
			}
			close(silent)
			if got := regexp.MustCompile(`,"message".*`).ReplaceAllString(s.rest(), ""); got != c.want {
				t.Errorf("the stream ends with %q, want %q", got, c.want)
			}
		})
	}
}
