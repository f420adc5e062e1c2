package server_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"basegate/internal/poll"
)

func TestIncompleteHeadTimesOut(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 50 * time.Millisecond})
	request := post("hello")
	for _, sent := range []int{0, 1, 10, len(request) - len("hello") - 1} {
		c := dial(t, s.address)
		c.send(request[:sent])
		if got := c.readToEnd(); got != "" {
			t.Errorf("after %d bytes: got %q, want the connection closed", sent, got)
		}
	}
}

// Bytes that do not complete the head must not extend its deadline.
func TestSlowlySentHeadTimesOut(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 100 * time.Millisecond, IdleTimeout: waitLimit})
	c := dial(t, s.address)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c.readToEnd()
	}()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	io.WriteString(c, requestLine(path)+"\r\nHost: a\r\n")
	deadline := time.Now().Add(waitLimit)
	for {
		select {
		case <-closed:
			return
		case <-ticker.C:
			io.WriteString(c, "X: y\r\n") // reaching 4 KB takes longer than the timeout
			if time.Now().After(deadline) {
				t.Fatalf("the server did not close the connection within %v", waitLimit)
			}
		}
	}
}

func TestIdleConnectionTimesOut(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: waitLimit, IdleTimeout: 50 * time.Millisecond})
	c := dial(t, s.address)
	c.roundTrip(post("hello"))
	if got := c.readToEnd(); got != "" {
		t.Errorf("got %q, want the connection closed", got)
	}
}

// Once a second head has begun, ReadHeaderTimeout applies to it and not IdleTimeout.
func TestIncompleteSecondHeadTimesOut(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Second, IdleTimeout: time.Hour})
	c := dial(t, s.address)
	for _, part := range []string{post("hello"), post("hello")[:20]} {
		_, _ = io.WriteString(c, part) // the server may have closed the connection
	}
	if got := c.readToEnd(); strings.Count(got, "HTTP/1.1 200 OK") > 1 {
		t.Errorf("got %q, want at most one response", got)
	}
}

// deadlineRecorder is a listener that records the last read deadline set on any of its connections.
type deadlineRecorder struct {
	net.Listener
	mu   sync.Mutex
	last time.Time
}

func (r *deadlineRecorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &recordedConn{c.(*net.TCPConn), r}, nil
}

func (r *deadlineRecorder) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

type recordedConn struct {
	*net.TCPConn
	recorder *deadlineRecorder
}

func (c *recordedConn) SetReadDeadline(at time.Time) error {
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	c.recorder.last = at
	return c.TCPConn.SetReadDeadline(at)
}

// As in net/http, ReadHeaderTimeout and IdleTimeout do not apply to a body: the handler limits its time.
func TestBodyHasNoDeadlineOfTheServer(t *testing.T) {
	listener := &deadlineRecorder{Listener: listen(t)}
	arrived := make(chan struct{}, 1)
	s := serve(t, listener, &http.Server{
		ReadHeaderTimeout: time.Minute, IdleTimeout: time.Hour,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			io.Copy(io.Discard, r.Body)
		}),
	})
	c := dial(t, s.address)
	for range 2 {
		request := post("hello")
		c.send(request[:len(request)-4])
		receive(t, "the request arrives", arrived)
		poll.Until(t, "the read deadline is cleared", func() bool { return listener.deadline().IsZero() })
		c.send(request[len(request)-4:])
		c.mustReadResponse()
	}
}
