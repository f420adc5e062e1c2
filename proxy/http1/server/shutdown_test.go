package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/proxy/http1/server"
)

// waitContext returns a context that ends after waitLimit.
func waitContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	t.Cleanup(cancel)
	return ctx
}

// blockingHandler is a handler that waits until released is closed.
type blockingHandler struct{ arrived, released chan struct{} }

func newBlockingHandler() blockingHandler {
	return blockingHandler{make(chan struct{}, 100), make(chan struct{})}
}

func (h blockingHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	h.arrived <- struct{}{}
	<-h.released
	io.WriteString(w, "response")
}

func TestShutdownClosesIdleConnections(t *testing.T) {
	s := start(t, echo)
	unused, reusable, handedOff := dial(t, s.address), dial(t, s.address), dial(t, s.address)
	reusable.roundTrip(post("hello"))
	handedOff.roundTrip("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if err := s.Shutdown(waitContext(t)); err != nil {
		t.Error(err)
	}
	for _, c := range []*client{unused, reusable, handedOff} {
		if got := c.readToEnd(); got != "" {
			t.Errorf("got %q, want the connection closed", got)
		}
	}
	if err := receive(t, "Serve returns", s.serveErr); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve returned %v, want %v", err, http.ErrServerClosed)
	}
}

// A client that sends a part of a head and then nothing must not delay a shutdown.
func TestShutdownDoesNotWaitForPartialHeads(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Hour})
	unused, reusable := dial(t, s.address), dial(t, s.address)
	reusable.roundTrip(post("hello"))
	for _, c := range []*client{unused, reusable} {
		c.send(post("hello")[:40])
	}
	dial(t, s.address).roundTrip(post("later")) // by then the server has most likely read the partial heads
	if err := s.Shutdown(waitContext(t)); err != nil {
		t.Error(err)
	}
	for _, c := range []*client{unused, reusable} {
		if got := c.readToEnd(); got != "" {
			t.Errorf("got %q, want the connection closed", got)
		}
	}
}

func TestShutdownWaitsForRequestsInFlight(t *testing.T) {
	for name, request := range map[string]string{
		"fast path": post("hello"), "handed off": strings.Replace(post("hello"), path, path+"?a=b", 1),
	} {
		h := newBlockingHandler()
		s := start(t, h.ServeHTTP)
		c := dial(t, s.address)
		c.send(request)
		receive(t, "the request arrives", h.arrived)
		shutdown := make(chan error, 1)
		go func() { shutdown <- s.Shutdown(waitContext(t)) }()
		if err := receive(t, "Serve returns", s.serveErr); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve returned %v, want %v", err, http.ErrServerClosed)
		}
		select {
		case err := <-shutdown:
			t.Errorf("%s: Shutdown returned %v before the request ended", name, err)
		default:
		}
		close(h.released)
		if got := c.mustReadResponse(); got.Body != "response" || !got.Close {
			t.Errorf("%s: got %+v, want the handler's body and Connection: close", name, got)
		}
		if err := receive(t, "Shutdown returns", shutdown); err != nil {
			t.Errorf("%s: Shutdown returned %v", name, err)
		}
	}
}

// The head of such a stream has been sent without Connection: close.
func TestShutdownClosesTheConnectionAfterAStream(t *testing.T) {
	h := newBlockingHandler()
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		http.NewResponseController(w).Flush()
		h.ServeHTTP(w, r)
	})
	c := dial(t, s.address)
	c.send(post("hello"))
	receive(t, "the request arrives", h.arrived)
	shutdown := make(chan error, 1)
	go func() { shutdown <- s.Shutdown(waitContext(t)) }()
	receive(t, "Serve returns", s.serveErr)
	close(h.released)
	if got := c.mustReadResponse(); got.Body != "response" {
		t.Errorf("got %+v, want the handler's body", got)
	}
	if rest := c.readToEnd(); rest != "" {
		t.Errorf("after the response: got %q, want the connection closed", rest)
	}
	if err := receive(t, "Shutdown returns", shutdown); err != nil {
		t.Error(err)
	}
}

func TestShutdownReturnsWhenItsContextEnds(t *testing.T) {
	h := newBlockingHandler()
	s := start(t, h.ServeHTTP)
	c := dial(t, s.address)
	c.send(post("hello"))
	receive(t, "the request arrives", h.arrived)
	ctx, cancel := context.WithCancel(t.Context())
	shutdown := make(chan error, 1)
	go func() { shutdown <- s.Shutdown(ctx) }()
	receive(t, "Serve returns", s.serveErr)
	cancel()
	if err := receive(t, "Shutdown returns", shutdown); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown returned %v, want %v", err, context.Canceled)
	}
	close(h.released)
	if got := c.mustReadResponse(); got.Body != "response" {
		t.Errorf("got %+v, want the handler's body", got)
	}
	if err := s.Shutdown(waitContext(t)); err != nil {
		t.Errorf("the second Shutdown returned %v", err)
	}
}

func TestCloseClosesConnectionsInFlight(t *testing.T) {
	h := newBlockingHandler()
	s := start(t, h.ServeHTTP)
	c := dial(t, s.address)
	c.send(post("hello"))
	receive(t, "the request arrives", h.arrived)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := receive(t, "Serve returns", s.serveErr); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve returned %v, want %v", err, http.ErrServerClosed)
	}
	if got := c.readToEnd(); got != "" {
		t.Errorf("got %q, want the connection closed", got)
	}
	close(h.released)
	if err := s.Shutdown(waitContext(t)); err != nil {
		t.Errorf("Shutdown returned %v", err)
	}
}

// The kernel reports no hang-up of a connection that the server itself closes.
func TestCloseEndsTheContextsOfRequestsInFlight(t *testing.T) {
	stop := make(chan struct{})
	arrived, ended := make(chan struct{}), make(chan bool)
	s := start(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		select {
		case <-r.Context().Done():
			ended <- true
		case <-stop:
			ended <- false
		}
	})
	c := dial(t, s.address)
	c.send(post("hello"))
	receive(t, "the request arrives", arrived)
	s.Close()
	timeout := time.AfterFunc(waitLimit/10, func() { close(stop) })
	defer timeout.Stop()
	if !receive(t, "the handler returns", ended) {
		t.Error("the context did not end")
	}
}

func TestShutdownAndCloseBeforeServe(t *testing.T) {
	for name, stop := range map[string]func(*server.Server) error{
		"Shutdown": func(s *server.Server) error { return s.Shutdown(waitContext(t)) },
		"Close":    (*server.Server).Close,
	} {
		s := server.New(t.Context(), []string{path, chatPath}, &http.Server{Handler: http.HandlerFunc(echo)})
		for range 2 {
			if err := stop(s); err != nil {
				t.Errorf("%s returned %v", name, err)
			}
		}
		listener := listen(t)
		if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve after %s returned %v, want %v", name, err, http.ErrServerClosed)
		}
		if _, err := listener.Accept(); err == nil {
			t.Errorf("Serve after %s left the listener open", name)
		}
	}
}

// Whatever state a connection is in, Shutdown closes it.
func TestShutdownClosesConnectionsInEveryState(t *testing.T) {
	for range 30 {
		s := start(t, echo)
		var clients []*client
		for i := range 20 {
			c := dial(t, s.address)
			clients = append(clients, c)
			switch i % 4 {
			case 0:
				c.send(post("hello"))
			case 1:
				c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			case 2:
				c.roundTrip(post("hello"))
			}
		}
		if err := s.Shutdown(waitContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, c := range clients {
			c.readToEnd()
			c.Close()
		}
	}
}
