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

	"basegate/http1/pooled"
	"basegate/internal/poll"
)

const patience = 20 * time.Second

func (s *Server) open() (connections, watched int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watcher != nil {
		s.watcher.mu.Lock()
		defer s.watcher.mu.Unlock()
		watched = len(s.watcher.leave)
	}
	return len(s.conns), watched
}

func serve(t *testing.T, handler http.HandlerFunc) (s *Server, dial func() net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = New(t.Context(), linePath, &http.Server{Handler: handler})
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
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
}

func ask(t *testing.T, c net.Conn, request string) {
	t.Helper()
	io.WriteString(c, request)
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, got.Body)
	got.Body.Close()
}

const plainRequest = "POST " + linePath + " HTTP/1.1\r\n" + "Host: a\r\nContent-Length: 2\r\n\r\nhi"

// However a connection ends, nothing of it is left.
func TestNothingIsLeftOfAConnection(t *testing.T) {
	s, dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Abort") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Length", "0")
	})
	for name, then := range map[string]func(c net.Conn){
		"that is left at once":          func(c net.Conn) { c.Close() },
		"that is left in a head":        func(c net.Conn) { io.WriteString(c, plainRequest[:40]); c.Close() },
		"that is left in a body":        func(c net.Conn) { io.WriteString(c, plainRequest[:len(plainRequest)-1]); c.Close() },
		"that is left between requests": func(c net.Conn) { ask(t, c, plainRequest); c.Close() },
		"that is half-closed":           func(c net.Conn) { ask(t, c, plainRequest); c.(*net.TCPConn).CloseWrite() },
		"that is reset":                 func(c net.Conn) { ask(t, c, plainRequest); c.(*net.TCPConn).SetLinger(0); c.Close() },
		"that is given over":            func(c net.Conn) { ask(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") },
		"that is given over later":      func(c net.Conn) { ask(t, c, plainRequest); ask(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") },
		"whose handler gives up": func(c net.Conn) {
			io.WriteString(c, plainRequest[:len(plainRequest)-4]+"X-Abort: 1\r\n\r\nhi")
			io.Copy(io.Discard, c)
		},
		"that the client wants no longer": func(c net.Conn) { ask(t, c, plainRequest[:len(plainRequest)-4]+"Connection: close\r\n\r\nhi") },
	} {
		c := dial()
		then(c)
		poll.Until(t, "nothing is left of a connection "+name, func() bool {
			connections, watched := s.open()
			return connections == 0 && watched == 0
		})
	}
}

// A handler may end its goroutine, as a test that fails in one does. Its client is not to wait for ever.
func TestNothingIsLeftOfAConnectionWhoseHandlerEndsItsGoroutine(t *testing.T) {
	s, dial := serve(t, func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	c := dial()
	io.WriteString(c, plainRequest)
	c.SetReadDeadline(time.Now().Add(patience / 4))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client was told %v", err)
	}
	poll.Until(t, "nothing is left", func() bool {
		connections, watched := s.open()
		return connections == 0 && watched == 0
	})
}

// Each request of a connection has the same watch.
func TestAConnectionIsWatchedOnce(t *testing.T) {
	s, dial := serve(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	c := dial()
	for range 5 {
		ask(t, c, plainRequest)
		if connections, watched := s.open(); connections != 1 || watched != 1 {
			t.Errorf("%d connections, %d watched", connections, watched)
		}
	}
}

// What the kernel tells late of a connection is not to reach another one.
func TestTheEndOfAForgottenConnectionReachesNobody(t *testing.T) {
	w, err := newWatcher(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer w.wait()
	defer w.close()
	_, dial := serve(t, func(http.ResponseWriter, *http.Request) {})
	c := pooled.RawConn(dial())
	first, err := w.watch(c, func() { t.Error("it was told of an end after it was forgotten") })
	if err != nil {
		t.Fatal(err)
	}
	w.unwatch(c, first)
	second, err := w.watch(c, func() { t.Error("it was told of the end of another") })
	if err != nil || second == first {
		t.Fatalf("%d after %d, %v", second, first, err)
	}
	w.tell(first)
	w.unwatch(c, second)
	if _, err := w.watch(c, func() {}); err != nil {
		t.Errorf("it cannot be watched again: %v", err)
	}
}

func TestNumbersOfWatchesFitIntoAnEvent(t *testing.T) {
	for _, n := range []uint64{1, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 + 1<<31 + 1, 1<<64 - 1} {
		if got := join(split(n)); got != n {
			t.Errorf("got %d, want %d", got, n)
		}
	}
}
