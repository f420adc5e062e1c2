package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// startRawBackend starts a backend whose response to a completion request is whatever respond writes to the connection,
// which it closes afterwards.
func startRawBackend(t *testing.T, respond func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { serveRaw(conn, respond) })
		}
	})
	t.Cleanup(func() { listener.Close(); served.Wait() })
	return "http://" + listener.Addr().String()
}

func serveRaw(conn net.Conn, respond func(net.Conn)) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/v1/completions" {
			respond(conn)
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	}
}

// writeRaw returns a function that writes text to a connection.
func writeRaw(text string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, text) }
}

// chunk returns text as one chunk of a chunked body.
func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

const (
	plainHead  = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)

// The log says why an attempt failed. Errors of net/http quote the bytes that it could not parse, which may be of a
// completion.
func TestInvalidHTTPIsNotQuotedInTheLog(t *testing.T) {
	t.Parallel()
	const marker = "m4rk3r"
	for name, c := range map[string]struct{ sent, body, code string }{
		"no status line":    {marker + "\r\n\r\n", streamRequest, "upstream_unreachable"},
		"a bad status":      {"HTTP/1.1 " + marker + "\r\n\r\n", streamRequest, "upstream_unreachable"},
		"a bad header":      {"HTTP/1.1 200 OK\r\n" + marker + "\r\n\r\n", streamRequest, "upstream_unreachable"},
		"a bad length":      {"HTTP/1.1 200 OK\r\nContent-Length: " + marker + "\r\n\r\n", streamRequest, "upstream_unreachable"},
		"a bad encoding":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + marker + "\r\n\r\n", streamRequest, "upstream_unreachable"},
		"a bad chunk":       {plainHead + marker + "\r\n", plainRequest, "upstream_server_error"},
		"a bad trailer":     {plainHead + chunk(plainResponse) + "0\r\n" + marker + "\r\n\r\n", plainRequest, "upstream_server_error"},
		"a bad event chunk": {streamHead + marker + "\r\n", streamRequest, "upstream_server_error"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 1 }, startRawBackend(t, writeRaw(c.sent)))
			if got := h.complete(c.body); got.status != http.StatusBadGateway || !strings.Contains(got.body, c.code) {
				t.Errorf("got %d %s, want 502 %s", got.status, got.body, c.code)
			}
			if log := h.log.String(); strings.Contains(log, marker) {
				t.Errorf("the log quotes the response: %s", log)
			}
		})
	}
}

func TestTruncatedPlainResponseIsRefused(t *testing.T) {
	t.Parallel()
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(plainResponse)+1) + "\r\n\r\n"
	for name, sent := range map[string]string{
		"short of its length":     head + plainResponse,
		"between two chunks":      plainHead + chunk(plainResponse),
		"inside a chunk":          plainHead + "ffff\r\n" + plainResponse,
		"before the first byte":   plainHead,
		"before the header's end": "HTTP/1.1 200 OK\r\nContent-Ty",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 1 }, startRawBackend(t, writeRaw(sent)))
			if got := h.complete(plainRequest); got.status != http.StatusBadGateway || strings.Contains(got.body, "choices") {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	}
}

// At whatever offset the connection breaks, the client receives all events that were whole, then [DONE] if every choice
// has finished, else one error event.
func TestStreamCutOffAtAnyOffsetEndsUnambiguously(t *testing.T) {
	t.Parallel()
	events := []string{event(0, "caf\u00e9 \u2028", "null"), event(1, "☕", "null"), event(1, "", `"stop"`), event(0, "b", `"length"`), doneEvent}
	sent := strings.Join(events, "")
	finished := len(sent) - len(doneEvent)
	var at int
	h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 1 }, startRawBackend(t, func(c net.Conn) {
		io.WriteString(c, streamHead+chunk(sent[:at]))
	}))
	for at = 1; at <= len(sent); at++ {
		got := h.complete(`{"model":"m","prompt":"x","n":2,"stream":true}`)
		whole := strings.LastIndex(sent[:at], "\n\n") + 2
		if whole < len("\n\n") {
			if got.status != http.StatusBadGateway {
				t.Fatalf("cut at %d, inside the first event: got %d %q", at, got.status, got.body)
			}
			continue
		}
		want := sent[:whole]
		if whole >= finished {
			want = sent
		}
		rest, ok := strings.CutPrefix(got.body, want)
		if !ok || got.status != http.StatusOK {
			t.Fatalf("cut at %d: got %d %q, want it to begin with %q", at, got.status, got.body, want)
		}
		if want == sent {
			if rest != "" {
				t.Fatalf("cut at %d, after every choice has finished: got %q after [DONE]", at, rest)
			}
			continue
		}
		if !strings.HasPrefix(rest, `data: {"error":{"code":"upstream_server_error"`) || strings.Count(rest, "data: ") != 1 || !strings.HasSuffix(rest, "}}\n\n") {
			t.Fatalf("cut at %d: the stream ends with %q, want one error event", at, rest)
		}
	}
}

func TestSilentBackendEndsAStreamWithAnErrorEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.settings.IdleTimeout = 200 * time.Millisecond }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		respondStream(event(0, "a", "null"))(w, r)
		<-r.Context().Done()
	}))
	got := h.complete(streamRequest)
	rest, ok := strings.CutPrefix(got.body, event(0, "a", "null"))
	if !ok || !strings.HasPrefix(rest, `data: {"error":{"code":"upstream_unreachable"`) || strings.Count(rest, "data: ") != 1 {
		t.Errorf("got %q, want one event and one error event", got.body)
	}
}

// A client that stops reading delays only its own stream. The time must not count as silence of the backend, whose
// breaker it would open.
func TestSlowClientIsNotTakenForASilentBackend(t *testing.T) {
	t.Parallel()                                                          // it waits for pause
	const idle, pause = 4 * time.Second, 4500 * time.Millisecond          // idle plus proxy's writeSlack is left for the whole write
	long := event(0, strings.Repeat("word ", 6<<20/len("word ")), "null") // more than the socket buffers hold
	beforePause, afterPause := event(0, "a", "null")+long, event(0, "b", `"stop"`)+doneEvent
	sent, resume := make(chan struct{}), make(chan struct{})
	h := newHarness(t, func(o *harnessOptions) { o.settings.IdleTimeout = idle }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		respondStream(event(0, "a", "null"), long)(w, r)
		close(sent)
		<-resume
		respondStream(afterPause)(w, r)
	}))
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if err := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", streamRequest).Write(conn); err != nil {
		t.Fatal(err)
	}
	<-sent
	<-time.NewTimer(pause).C
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 20); err != nil { // the rest comes through a small one too slowly
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, len(beforePause))
	n, err := io.ReadFull(resp.Body, got)
	close(resume) // at once, because the backend's idle timeout runs
	if err != nil || string(got) != beforePause {
		t.Errorf("got %d of %d bytes before the pause, %v", n, len(beforePause), err)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != afterPause {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
}
