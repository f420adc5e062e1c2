//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// stream is a stream under way.
type stream struct {
	t    *testing.T
	body *bufio.Reader
}

// heldStream opens a stream that the mock holds after its third event, until its faults are cleared. The first event
// has arrived.
func (g *gateway) heldStream(mock *mockvllm.Process) *stream {
	g.t.Helper()
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 3})
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	g.t.Cleanup(cancel)
	resp, err := client.Do(g.request(ctx, http.MethodPost, g.url+"/v1/completions",
		`{"model": "m", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true}`))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { resp.Body.Close() })
	s := &stream{g.t, bufio.NewReader(resp.Body)}
	if line, err := s.body.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		g.t.Fatalf("first event: %v: %q", err, line)
	}
	return s
}

// rest reads to the end, whether that is clean or not.
func (s *stream) rest() string {
	s.t.Helper()
	rest, _ := io.ReadAll(s.body)
	return string(rest)
}

func TestSIGTERMDrainsRunningStreams(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGTERM)
	g.says(g.stderr, `"draining"`)

	poll.Until(t, "new requests are refused", func() bool { return g.complete(small).status == http.StatusServiceUnavailable })
	refused := g.complete(small)
	if refused.fault(t).Code != "overloaded" || refused.header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", refused.status, refused.header, refused.body)
	}
	for _, base := range []string{g.url, g.admin} {
		if ready := g.get(base, "/readyz"); ready.status != http.StatusServiceUnavailable {
			t.Errorf("%s/readyz while draining: %d %s", base, ready.status, ready.body)
		}
		if alive := g.get(base, "/healthz"); alive.status != http.StatusOK {
			t.Errorf("%s/healthz while draining: %d %s", base, alive.status, alive.body)
		}
	}

	mock.ClearFaults()
	if rest := s.rest(); !strings.HasSuffix(rest, "data: [DONE]\n\n") || !strings.Contains(rest, `"finish_reason":"length"`) {
		t.Errorf("the stream ended with %q", rest)
	}
	if code := g.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestASecondSIGTERMStopsAtOnce(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGTERM)
	g.says(g.stderr, `"draining"`)
	begun := time.Now()
	g.signal(syscall.SIGTERM)
	rest := s.rest()
	g.code()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("stopped after %v", took)
	}
	if strings.Contains(rest, "[DONE]") {
		t.Errorf("a stream that was cut off looks whole: %q", rest)
	}
	if !strings.Contains(rest, `data: {"error":`) || !strings.Contains(rest, `"overloaded"`) {
		t.Errorf("the stream does not say why it ended: %q", rest)
	}
}

// A plain request that is cut short has had no byte yet, so it gets an answer and not a broken connection.
func TestAPlainRequestThatAStopCutsShortIsToldSo(t *testing.T) {
	g, mock := gatewayOf(t, settings{server: ", drain_timeout: 0s"}, mockvllm.Options{})
	mock.InjectFault(mockvllm.Fault{Kind: "hang"})
	answers := make(chan reply, 1)
	go func() {
		answer, err := post(g.url, g.secret, small)
		if err != nil {
			t.Errorf("cut off: %v", err)
		}
		answers <- answer
	}()
	poll.Until(t, "the request is at the mock", func() bool {
		return slices.ContainsFunc(mock.Requests(), func(r mockvllm.Recorded) bool { return r.Path == "/v1/completions" })
	})
	g.signal(syscall.SIGTERM)
	answer := <-answers
	if answer.status != http.StatusServiceUnavailable || answer.fault(t).Code != "overloaded" || answer.header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", answer.status, answer.header, answer.body)
	}
	if code := g.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheDrainEndsWithItsTimeout(t *testing.T) {
	g, mock := gatewayOf(t, settings{server: ", drain_timeout: 200ms"}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGTERM)
	if rest := s.rest(); strings.Contains(rest, "[DONE]") {
		t.Errorf("a stream that was cut off looks whole: %q", rest)
	}
	g.code()
}

// A command, or a client, that reads that the gateway listens may at once send it a signal.
func TestASignalRightAfterTheStartIsNotLost(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	place := newSite(t, settings{}, mock.URL())
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		g := place.serve()
		g.signal(s)
		if code := g.code(); code != 0 {
			t.Errorf("%v: exit code %d", s, code)
		}
	}
	g := place.serve()
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `configuration reloaded`)
}

func TestKeysOutliveAKill(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	place := newSite(t, settings{}, mock.URL())
	g := place.serve()
	paused := g.key("paused")
	g.run("key", "pause", paused[:13])
	g.signal(syscall.SIGKILL)
	<-g.ended

	again := place.serve()
	for secret, want := range map[string]int{g.secret: http.StatusOK, paused: http.StatusUnauthorized} {
		if answer, err := post(again.url, secret, small); err != nil || answer.status != want {
			t.Errorf("%v: %d, want %d", err, answer.status, want)
		}
	}
}
