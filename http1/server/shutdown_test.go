package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/http1/server"
)

// within is a context for what must come to its end.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// gated is a handler that waits to be let through.
type gated struct{ arrived, gate chan struct{} }

func newGated() gated { return gated{make(chan struct{}, 100), make(chan struct{})} }

func (h gated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	h.arrived <- struct{}{}
	<-h.gate
	io.WriteString(w, "well")
}

func TestShutdownClosesWhatIsIdle(t *testing.T) {
	s := start(t, echo)
	fresh, kept, given := dial(t, s.address), dial(t, s.address), dial(t, s.address)
	kept.ask(post("hello"))
	given.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if err := s.Shutdown(within(t)); err != nil {
		t.Error(err)
	}
	for _, c := range []*client{fresh, kept, given} {
		if got := c.heard(); got != "" {
			t.Errorf("got %q", got)
		}
	}
	if err := wait(t, "Serve returns", s.served); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
}

// Who sends a part of a head and no more would else hold everybody up who waits for the gateway to stop.
func TestShutdownDoesNotWaitForHalfAHead(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Hour})
	fresh, kept := dial(t, s.address), dial(t, s.address)
	kept.ask(post("hello"))
	for _, c := range []*client{fresh, kept} {
		c.say(post("hello")[:40])
	}
	dial(t, s.address).ask(post("later")) // so that the halves have been read, or nearly
	if err := s.Shutdown(within(t)); err != nil {
		t.Error(err)
	}
	for _, c := range []*client{fresh, kept} {
		if got := c.heard(); got != "" {
			t.Errorf("got %q", got)
		}
	}
}

// Of both kinds: those that are given over to net/http too.
func TestShutdownWaitsForRunningRequests(t *testing.T) {
	for name, request := range map[string]string{
		"a plain one": post("hello"), "one given over": strings.Replace(post("hello"), path, path+"?a=b", 1),
	} {
		h := newGated()
		s := start(t, h.ServeHTTP)
		c := dial(t, s.address)
		c.say(request)
		wait(t, "the request arrives", h.arrived)
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(within(t)) }()
		if err := wait(t, "Serve returns", s.served); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
		select {
		case err := <-down:
			t.Errorf("%s: Shutdown did not wait: %v", name, err)
		default:
		}
		close(h.gate)
		if got := c.mustHear(); got.Body != "well" || !got.Close {
			t.Errorf("%s: got %+v", name, got)
		}
		if err := wait(t, "Shutdown returns", down); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A stream whose head was out before ends with its connection all the same.
func TestShutdownEndsTheConnectionOfAStreamThatHasBegun(t *testing.T) {
	h := newGated()
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		http.NewResponseController(w).Flush()
		h.ServeHTTP(w, r)
	})
	c := dial(t, s.address)
	c.say(post("hello"))
	wait(t, "the request arrives", h.arrived)
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(within(t)) }()
	wait(t, "Serve returns", s.served)
	close(h.gate)
	if got := c.mustHear(); got.Body != "well" {
		t.Errorf("got %+v", got)
	}
	if rest := c.heard(); rest != "" {
		t.Errorf("got %q", rest)
	}
	if err := wait(t, "Shutdown returns", down); err != nil {
		t.Error(err)
	}
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	h := newGated()
	s := start(t, h.ServeHTTP)
	c := dial(t, s.address)
	c.say(post("hello"))
	wait(t, "the request arrives", h.arrived)
	enough, cancel := context.WithCancel(t.Context())
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(enough) }()
	wait(t, "Serve returns", s.served)
	cancel()
	if err := wait(t, "Shutdown returns", down); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(h.gate)
	if got := c.mustHear(); got.Body != "well" {
		t.Errorf("got %+v", got)
	}
	if err := s.Shutdown(within(t)); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestCloseCutsWhatRuns(t *testing.T) {
	h := newGated()
	s := start(t, h.ServeHTTP)
	c := dial(t, s.address)
	c.say(post("hello"))
	wait(t, "the request arrives", h.arrived)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := wait(t, "Serve returns", s.served); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
	if got := c.heard(); got != "" {
		t.Errorf("got %q", got)
	}
	close(h.gate)
	if err := s.Shutdown(within(t)); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// A handler that waits for something must hear that its connection is no more, whoever has closed it.
func TestCloseEndsTheContextsOfWhatRuns(t *testing.T) {
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
	c.say(post("hello"))
	wait(t, "the request arrives", arrived)
	s.Close()
	giveUp := time.AfterFunc(patience/10, func() { close(stop) })
	defer giveUp.Stop()
	if !wait(t, "the handler returns", ended) {
		t.Error("the context does not end")
	}
}

func TestShutdownAndCloseBeforeServe(t *testing.T) {
	for name, end := range map[string]func(*server.Server) error{
		"Shutdown": func(s *server.Server) error { return s.Shutdown(within(t)) },
		"Close":    (*server.Server).Close,
	} {
		s := server.New(t.Context(), path, &http.Server{Handler: http.HandlerFunc(echo)})
		for range 2 {
			if err := end(s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		listener := listen(t)
		if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve after %s: %v", name, err)
		}
		if _, err := listener.Accept(); err == nil {
			t.Errorf("after %s the listener is open", name)
		}
	}
}

// Shutdown may come at any moment of any connection, and forgets none.
func TestShutdownAmongComers(t *testing.T) {
	for range 30 {
		s := start(t, echo)
		var clients []*client
		for i := range 20 {
			c := dial(t, s.address)
			clients = append(clients, c)
			switch i % 4 {
			case 0:
				c.say(post("hello"))
			case 1:
				c.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			case 2:
				c.ask(post("hello"))
			}
		}
		if err := s.Shutdown(within(t)); err != nil {
			t.Fatal(err)
		}
		for _, c := range clients {
			c.heard()
			c.Close()
		}
	}
}
