//go:build linux

package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/proxy/http1/pooled"
)

const waitLimit = time.Minute

// counts returns the number of open connections and of watches.
func (s *Server) counts() (connections, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangups != nil {
		s.hangups.mu.Lock()
		defer s.hangups.mu.Unlock()
		watches = len(s.hangups.cancels)
	}
	return len(s.conns), watches
}

func serve(t *testing.T, handler http.HandlerFunc) (s *Server, dial func() net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = New(t.Context(), []string{testPath}, &http.Server{Handler: handler})
	go s.Serve(listener)
	t.Cleanup(func() {
		s.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, func() net.Conn {
		t.Helper()
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(waitLimit))
		return c
	}
}

func roundTrip(t *testing.T, c net.Conn, request string) {
	t.Helper()
	io.WriteString(c, request)
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, got.Body)
	got.Body.Close()
}

const plainRequest = "POST " + testPath + " HTTP/1.1\r\n" + "Host: a\r\nContent-Length: 2\r\n\r\nhi"

func TestEveryEndOfAConnectionRemovesItAndItsWatch(t *testing.T) {
	s, dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Abort") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Length", "0")
	})
	for name, end := range map[string]func(c net.Conn){
		"closed at once":          func(c net.Conn) { c.Close() },
		"closed in a head":        func(c net.Conn) { io.WriteString(c, plainRequest[:40]); c.Close() },
		"closed in a body":        func(c net.Conn) { io.WriteString(c, plainRequest[:len(plainRequest)-1]); c.Close() },
		"closed between requests": func(c net.Conn) { roundTrip(t, c, plainRequest); c.Close() },
		"half-closed":             func(c net.Conn) { roundTrip(t, c, plainRequest); c.(*net.TCPConn).CloseWrite() },
		"reset":                   func(c net.Conn) { roundTrip(t, c, plainRequest); c.(*net.TCPConn).SetLinger(0); c.Close() },
		"handed off":              func(c net.Conn) { roundTrip(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") },
		"handed off after a request": func(c net.Conn) {
			roundTrip(t, c, plainRequest)
			roundTrip(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		},
		"aborted by the handler": func(c net.Conn) {
			io.WriteString(c, plainRequest[:len(plainRequest)-4]+"X-Abort: 1\r\n\r\nhi")
			io.Copy(io.Discard, c)
		},
		"closed as the client asked": func(c net.Conn) { roundTrip(t, c, plainRequest[:len(plainRequest)-4]+"Connection: close\r\n\r\nhi") },
	} {
		c := dial()
		end(c)
		poll.Until(t, "the connection "+name+" and its watch are removed", func() bool {
			connections, watches := s.counts()
			return connections == 0 && watches == 0
		})
	}
}

// A handler may end its goroutine with runtime.Goexit, as a test's Fatal does. Its client must not wait for ever.
func TestGoexitOfAHandlerRemovesTheConnectionAndItsWatch(t *testing.T) {
	s, dial := serve(t, func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	c := dial()
	io.WriteString(c, plainRequest)
	c.SetReadDeadline(time.Now().Add(waitLimit / 4))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client's read returned error %v, want EOF or a reset", err)
	}
	poll.Until(t, "the connection and its watch are removed", func() bool {
		connections, watches := s.counts()
		return connections == 0 && watches == 0
	})
}

func TestRequestsOfAConnectionShareOneWatch(t *testing.T) {
	s, dial := serve(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	c := dial()
	for range 5 {
		roundTrip(t, c, plainRequest)
		if connections, watches := s.counts(); connections != 1 || watches != 1 {
			t.Errorf("%d connections, %d watches, want 1 and 1", connections, watches)
		}
	}
}

// The kernel may report the hang-up of a connection after its watch has ended.
func TestLateHangupCancelsNoOtherWatch(t *testing.T) {
	w, err := newHangupWatcher(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer w.wait()
	defer w.close()
	_, dial := serve(t, func(http.ResponseWriter, *http.Request) {})
	c := pooled.RawConn(dial())
	first, err := w.watch(c, func() { t.Error("the removed watch was cancelled") })
	if err != nil {
		t.Fatal(err)
	}
	w.unwatch(c, first)
	second, err := w.watch(c, func() { t.Error("the second watch was cancelled by a hang-up of the first") })
	if err != nil || second == first {
		t.Fatalf("watch returned id %d after %d, error %v, want a new id", second, first, err)
	}
	w.cancel(first)
	w.unwatch(c, second)
	if _, err := w.watch(c, func() {}); err != nil {
		t.Errorf("the connection cannot be watched again: %v", err)
	}
}

func TestWatchIDsFitIntoAnEvent(t *testing.T) {
	for _, id := range []uint64{1, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 + 1<<31 + 1, 1<<64 - 1} {
		if got := joinID(splitID(id)); got != id {
			t.Errorf("got %d, want %d", got, id)
		}
	}
}
