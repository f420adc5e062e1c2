package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/admission"
	"basegate/internal/poll"
)

// 200 clients leave, in the middle of a stream, before its first event, and waiting for a plain answer; vLLM must be
// told at once.
func TestDisconnectCancelsTheBackendRequestAtOnce(t *testing.T) {
	var mu sync.Mutex
	closed := map[string]time.Time{} // by prompt
	here := make(chan struct{}, 200)
	backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "begin") {
			respondStream(event(0, "a", "null"))(w, r)
		}
		here <- struct{}{}
		<-r.Context().Done()
		mu.Lock()
		closed[string(body)] = time.Now()
		mu.Unlock()
	})
	h := newHarness(t, nil, backend)
	left := make(chan time.Time, 200)
	var clients sync.WaitGroup
	disconnect := make(chan struct{})
	for i := range 200 {
		what := []string{`begin","stream":true`, `wait","stream":true`, `plain"`}[i%3]
		ctx, cancel := context.WithCancel(t.Context())
		req := h.newRequest(ctx, http.MethodPost, "/v1/completions", `{"model":"m","user":"`+string(rune('a'+i%26))+time.Duration(i).String()+`","prompt":"`+what+`}`)
		clients.Go(func() {
			resp, err := client.Do(req)
			if err == nil {
				defer resp.Body.Close()
				io.Copy(io.Discard, resp.Body)
			}
		})
		clients.Go(func() {
			<-disconnect
			cancel()
			left <- time.Now()
		})
	}
	for range 200 {
		<-here
	}
	began := time.Now()
	close(disconnect)
	clients.Wait()
	poll.Until(t, "every backend request is closed", func() bool { mu.Lock(); defer mu.Unlock(); return len(closed) == 200 })
	var slowest time.Duration
	for _, at := range closed {
		slowest = max(slowest, at.Sub(began))
	}
	t.Logf("the slowest of 200 was closed %v after all began to leave", slowest)
	if slowest > 2*time.Second {
		t.Error("that is no \"at once\" on any machine")
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
}

func TestDisconnectBetweenAttemptsEndsTheRetries(t *testing.T) {
	var attempts atomic.Int64
	ctx, disconnect := context.WithCancel(t.Context())
	h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 10 }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) == 4 {
			disconnect()
		}
		respond(500, "text/plain", "Internal Server Error")(w, r)
	}))
	if _, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", streamRequest)); err == nil {
		t.Error("the client left, and got an answer")
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	if n := attempts.Load(); n > 5 {
		t.Errorf("%d attempts, though the client left at the fourth", n)
	}
	poll.Until(t, "it is in the log", func() bool { return strings.Contains(h.log.String(), `"code":"client_gone"`) })
	if log := h.log.String(); strings.Contains(log, `"level":"error"`) {
		t.Errorf("the log: %s", log)
	}
}

func TestDisconnectWhileSendingTheBodyEndsTheRequest(t *testing.T) {
	h := newHarness(t, nil, startBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("the backend was asked") }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{\"model\":", h.secret)
	poll.Until(t, "it is in flight", func() bool { return h.server.InFlight() == 1 })
	conn.Close()
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	poll.Until(t, "it is in the log", func() bool { return strings.Contains(h.log.String(), `"code":"client_gone"`) })
}

// net/http looks for a client that leaves only once the body has been read to its very end.
func TestDisconnectIsNoticedForEveryFormOfBody(t *testing.T) {
	here, gone := make(chan struct{}), make(chan struct{})
	h := newHarness(t, nil, startBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		here <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	text := plainRequest
	most := text + strings.Repeat(" ", 1<<20-len(text))
	for name, c := range map[string]struct {
		body, encoding string
		chunked        bool
	}{
		"as it is": {text, "", false}, "in chunks": {text, "", true}, "packed": {gzipText(t, text), "gzip", false},
		"packed, in chunks": {gzipText(t, text), "gzip", true}, "as large as may be": {most, "", false},
		"as large as may be, in chunks": {most, "", true}, "as large as may be, packed": {gzipText(t, most), "gzip", false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, disconnect := context.WithCancel(t.Context())
			req := h.newRequest(ctx, http.MethodPost, "/v1/completions", c.body)
			if c.chunked {
				req.ContentLength, req.Body = -1, io.NopCloser(struct{ io.Reader }{strings.NewReader(c.body)})
			}
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			left := make(chan struct{})
			go func() {
				defer close(left)
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			<-here
			disconnect()
			select {
			case <-gone:
			case <-time.NewTimer(5 * time.Second).C:
				t.Fatal("the backend was not told within five seconds")
			}
			<-left
		})
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
}

func TestDisconnectWhileQueuedFreesThePlaceAndIsNotCharged(t *testing.T) {
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	first := h.completeAsync(t.Context(), promptRequest(0))
	<-backend.arrived
	ctx, disconnect := context.WithCancel(t.Context())
	gone := h.completeAsync(ctx, promptRequest(1))
	h.awaitQueue("one waits", admission.Stats{Running: 1, Waiting: 1})
	last := h.completeAsync(t.Context(), promptRequest(2))
	h.awaitQueue("two wait", admission.Stats{Running: 1, Waiting: 2})
	disconnect()
	<-gone
	h.awaitQueue("its place is free", admission.Stats{Running: 1, Waiting: 1})
	backend.open <- struct{}{}
	backend.open <- struct{}{}
	if a, b := (<-first).status, (<-last).status; a != 200 || b != 200 {
		t.Errorf("got %d and %d", a, b)
	}
	h.awaitRows(2)
	if got := <-backend.arrived; got != "p2" {
		t.Errorf("%s was asked for", got)
	}
}
