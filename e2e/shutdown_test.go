//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// heldStream is the response of a stream that the mock holds.
type heldStream struct {
	t      *testing.T
	reader *bufio.Reader
}

// heldStream opens a stream that the mock holds after its third event, until its faults are cleared. The first event
// has arrived when it returns.
func (g *gateway) heldStream(mock *mockvllm.Process) *heldStream {
	g.t.Helper()
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 3})
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	g.t.Cleanup(cancel)
	resp, err := httpClient.Do(g.request(ctx, http.MethodPost, g.url+"/v1/completions",
		`{"model": "m", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true}`))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { resp.Body.Close() })
	s := &heldStream{g.t, bufio.NewReader(resp.Body)}
	if line, err := s.reader.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		g.t.Fatalf("first event: %v: %q", err, line)
	}
	return s
}

// readAll reads the rest of the stream, which may end with an error.
func (s *heldStream) readAll() string {
	s.t.Helper()
	rest, _ := io.ReadAll(s.reader)
	return string(rest)
}

func TestSIGTERMDrainsRunningStreams(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGTERM)
	g.waitForOutput(g.stderr, `"draining"`)

	poll.Until(t, "new requests are refused", func() bool { return g.complete(smallRequest).status == http.StatusServiceUnavailable })
	refused := g.complete(smallRequest)
	if refused.apiError(t).Code != "overloaded" || refused.header.Get("Retry-After") == "" {
		t.Errorf("got %d %v %s, want 503 overloaded with Retry-After", refused.status, refused.header, refused.body)
	}
	for _, base := range []string{g.url, g.admin} {
		if ready := g.get(base, "/readyz"); ready.status != http.StatusServiceUnavailable {
			t.Errorf("%s/readyz while draining: got %d %s, want 503", base, ready.status, ready.body)
		}
		if alive := g.get(base, "/healthz"); alive.status != http.StatusOK {
			t.Errorf("%s/healthz while draining: got %d %s, want 200", base, alive.status, alive.body)
		}
	}

	mock.ClearFaults()
	if rest := s.readAll(); !strings.HasSuffix(rest, "data: [DONE]\n\n") || !strings.Contains(rest, `"finish_reason":"length"`) {
		t.Errorf("the stream ended with %q", rest)
	}
	g.waitStop()
}

func TestSecondSIGTERMStopsImmediately(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGTERM)
	g.waitForOutput(g.stderr, `"draining"`)
	g.signal(syscall.SIGTERM)
	rest := s.readAll() // the mock never ends the stream
	g.waitExit()
	if strings.Contains(rest, "[DONE]") {
		t.Errorf("an interrupted stream looks complete: %q", rest)
	}
	if !strings.Contains(rest, `data: {"error":`) || !strings.Contains(rest, `"overloaded"`) {
		t.Errorf("the stream has no error event: %q", rest)
	}
}

// A process that reads that the gateway listens may send it a signal immediately.
func TestSignalRightAfterTheStartIsNotLost(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	secret := env.createKey("test")
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		g := env.serveWithKey(secret)
		g.signal(s)
		g.waitStop()
	}
	g := env.serveWithKey(secret)
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `configuration reloaded`)
}
