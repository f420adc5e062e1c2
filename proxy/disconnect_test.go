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

	"basegate/budget"
	"basegate/internal/poll"
)

// withoutTimeouts makes sure that nothing but a disconnect cancels a request while a test runs.
func withoutTimeouts(o *harnessOptions) {
	o.settings.FirstByteTimeout, o.settings.IdleTimeout = time.Hour, time.Hour
}

// 200 clients disconnect: in the middle of a stream, before its first event, or while they wait for a plain response.
func TestDisconnectCancelsTheBackendRequestAtOnce(t *testing.T) {
	t.Parallel()
	var cancelled atomic.Int64
	arrived := make(chan struct{}, 200)
	backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "begin") {
			respondStream(event(0, "a", "null"))(w, r)
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		cancelled.Add(1)
	})
	h := newHarness(t, withoutTimeouts, backend)
	var clients sync.WaitGroup
	disconnect := make(chan struct{})
	for i := range 200 {
		members := []string{`begin","stream":true`, `wait","stream":true`, `plain"`}[i%3]
		ctx, cancel := context.WithCancel(t.Context())
		req := h.newRequest(ctx, http.MethodPost, "/v1/completions", `{"model":"m","user":"`+string(rune('a'+i%26))+time.Duration(i).String()+`","prompt":"`+members+`}`)
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
		})
	}
	for range 200 {
		<-arrived
	}
	began := time.Now()
	close(disconnect)
	clients.Wait()
	poll.Until(t, "every backend request is cancelled", func() bool { return cancelled.Load() == 200 })
	t.Logf("the last of 200 requests was cancelled %v after the first disconnect", time.Since(began))
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
}

func TestDisconnectBetweenAttemptsEndsTheRetries(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int64
	ctx, disconnect := context.WithCancel(t.Context())
	h := newHarness(t, func(o *harnessOptions) { o.settings.Attempts = 10 }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		switch attempts.Add(1) {
		case 4:
			disconnect()
		case 5: // begins if its pause is over before the disconnect is noticed, which then ends it
			_, _ = io.Copy(io.Discard, r.Body) // or the server would not notice
			<-r.Context().Done()
		}
		respond(502, "text/plain", "Bad Gateway")(w, r)
	}))
	if _, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", streamRequest)); err == nil {
		t.Error("the client received a response after it had disconnected")
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	if n := attempts.Load(); n > 5 {
		t.Errorf("got %d attempts, want no more than 5: the client disconnected during the fourth", n)
	}
	poll.Until(t, "the request is logged", func() bool { return strings.Contains(h.log.String(), `"code":"client_gone"`) })
	if log := h.log.String(); strings.Contains(log, `"level":"error"`) {
		t.Errorf("the log contains an error: %s", log)
	}
}

func TestDisconnectWhileSendingTheBodyEndsTheRequest(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("the backend received a request") }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{\"model\":", h.secret)
	poll.Until(t, "the request is in flight", func() bool { return h.server.InFlight() == 1 })
	conn.Close()
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	poll.Until(t, "the request is logged", func() bool { return strings.Contains(h.log.String(), `"code":"client_gone"`) })
}

// net/http detects a disconnect only after the body has been read to its end.
func TestDisconnectIsNoticedForEveryFormOfBody(t *testing.T) {
	t.Parallel()
	arrived, cancelled := make(chan struct{}), make(chan struct{})
	h := newHarness(t, withoutTimeouts, startBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		cancelled <- struct{}{}
	}))
	largest := plainRequest + strings.Repeat(" ", 1<<20-len(plainRequest))
	for name, c := range map[string]struct {
		body, encoding string
		chunked        bool
	}{
		"small": {plainRequest, "", false}, "small, chunked": {plainRequest, "", true}, "small, gzip": {gzipText(t, plainRequest), "gzip", false},
		"small, gzip, chunked": {gzipText(t, plainRequest), "gzip", true}, "largest": {largest, "", false},
		"largest, chunked": {largest, "", true}, "largest, gzip": {gzipText(t, largest), "gzip", false},
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
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			<-arrived
			disconnect()
			select {
			case <-cancelled:
			case <-time.NewTimer(time.Minute).C:
				t.Fatal("the backend's request was not cancelled within a minute")
			}
			<-done
		})
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
}

func TestDisconnectWhileQueuedFreesThePlaceAndIsNotCharged(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, concurrency(1), startBackend(t, backend.ServeHTTP))
	first := h.completeAsync(t.Context(), promptRequest(0))
	<-backend.arrived
	ctx, disconnect := context.WithCancel(t.Context())
	disconnected := h.completeAsync(ctx, promptRequest(1))
	h.awaitQueue("one request waits", budget.Stats{Running: 1, Waiting: 1})
	last := h.completeAsync(t.Context(), promptRequest(2))
	h.awaitQueue("two requests wait", budget.Stats{Running: 1, Waiting: 2})
	disconnect()
	<-disconnected
	h.awaitQueue("the place of the disconnected client is free", budget.Stats{Running: 1, Waiting: 1})
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	if a, b := (<-first).status, (<-last).status; a != 200 || b != 200 {
		t.Errorf("got %d and %d, want 200 and 200", a, b)
	}
	h.awaitRows(2)
	if got := <-backend.arrived; got != "p2" {
		t.Errorf("the backend received %s, want p2", got)
	}
}
