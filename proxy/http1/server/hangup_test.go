package server_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// disconnects are the ways in which a client can disconnect. Closing only its sending side is one of them, as in
// net/http.
var disconnects = map[string]func(*client){
	"closes":      func(c *client) { c.Close() },
	"half-closes": func(c *client) { c.CloseWrite() },
	"resets": func(c *client) {
		c.SetLinger(0)
		c.Close()
	},
}

// contextWaiter is a handler that waits for the end of its request's context, and reports both the request and the end.
type contextWaiter struct{ arrived, ended chan struct{} }

func newContextWaiter() contextWaiter {
	return contextWaiter{make(chan struct{}, 1000), make(chan struct{}, 1000)}
}

func (h contextWaiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	if r.Header.Get("X-Flush") != "" {
		io.WriteString(w, "partial")
		http.NewResponseController(w).Flush()
	}
	h.arrived <- struct{}{}
	<-r.Context().Done()
	h.ended <- struct{}{}
}

func TestClientDisconnectEndsTheContext(t *testing.T) {
	h := newContextWaiter()
	s := start(t, h.ServeHTTP)
	for name, disconnect := range disconnects {
		for _, flush := range []string{"", "X-Flush: yes\r\n"} {
			for _, size := range []int{0, 10, 100 << 10} {
				c := dial(t, s.address)
				c.send(post(strings.Repeat("x", size), flush))
				receive(t, "the request arrives", h.arrived)
				if flush != "" {
					one := make([]byte, 1)
					if _, err := io.ReadFull(c, one); err != nil {
						t.Fatal(err)
					}
				}
				disconnect(c)
				receive(t, "the context ends after the client "+name, h.ended)
			}
		}
	}
}

// The client may disconnect even before its connection is watched.
func TestImmediateDisconnectEndsTheContext(t *testing.T) {
	h := newContextWaiter()
	s := start(t, h.ServeHTTP)
	for name, disconnect := range disconnects {
		if name == "resets" {
			continue // a reset may discard the request
		}
		for range 50 {
			c := dial(t, s.address)
			c.send(post("hello"))
			disconnect(c)
			receive(t, "the context ends after the client "+name, h.ended)
			<-h.arrived
		}
	}
}

func TestSimultaneousDisconnectsEndAllContexts(t *testing.T) {
	h := newContextWaiter()
	s := start(t, h.ServeHTTP)
	var all []*client
	for range 200 {
		c := dial(t, s.address)
		c.send(post("hello"))
		all = append(all, c)
	}
	for range all {
		receive(t, "all requests arrive", h.arrived)
	}
	for _, c := range all {
		c.Close()
	}
	for range all {
		receive(t, "all contexts end", h.ended)
	}
}

// The watch starts with the first request and covers all requests of the connection.
func TestDisconnectDuringALaterRequestEndsTheContext(t *testing.T) {
	h := newContextWaiter()
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Wait") != "" {
			h.ServeHTTP(w, r)
		}
		io.Copy(io.Discard, r.Body) // the connection is reused only if the body is read
	})
	for n := range 5 {
		c := dial(t, s.address)
		for range n {
			if got := c.roundTrip(post("hello")); got.Line != "HTTP/1.1 200 OK" {
				t.Fatalf("got %+v, want status 200", got)
			}
		}
		c.send(post("hello", "X-Wait: yes\r\n"))
		receive(t, "the request arrives", h.arrived)
		c.Close()
		receive(t, "the context ends", h.ended)
	}
}

func TestHalfClosedClientStillReceivesTheResponse(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		io.WriteString(w, "response")
	})
	c := dial(t, s.address)
	c.send(post(""))
	c.CloseWrite()
	if got := c.mustReadResponse(); got.Body != "response" {
		t.Errorf("got %+v, want the handler's body", got)
	}
	if rest := c.readToEnd(); rest != "" {
		t.Errorf("after the response: got %q, want the end", rest)
	}
}

// A truncated body must not look like a shorter one.
func TestDisconnectDuringTheBodyIsAReadError(t *testing.T) {
	arrived, errs := make(chan struct{}, 1), make(chan error, 1)
	s := start(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, err := io.ReadAll(r.Body)
		errs <- err
	})
	for name, disconnect := range disconnects {
		for _, size := range []int{0, 1, 10 << 10} {
			c := dial(t, s.address)
			request := post(strings.Repeat("x", 20<<10))
			c.send(request[:len(request)-20<<10+size])
			receive(t, "the request arrives", arrived) // a reset before that may discard the request
			disconnect(c)
			if err := receive(t, "the handler's read fails", errs); err == nil {
				t.Errorf("the client %s after %d bytes of the body: the read returned no error", name, size)
			}
		}
	}
}

// The kernel reuses a closed descriptor for the next connection, whose requests must not be cancelled by the hang-up
// of the previous one.
func TestDisconnectDoesNotCancelRequestsOfOtherConnections(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Wait") != "" {
			<-r.Context().Done()
			return
		}
		http.NewResponseController(w).Flush()
		for range 3 { // other connections come and go in the meantime
			c, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
			if err != nil {
				t.Errorf("the request was cancelled by another connection's hang-up: %v", err)
				return
			}
			io.WriteString(c, post("", "X-Wait: yes\r\n"))
			c.Close()
		}
		if err := r.Context().Err(); err != nil {
			t.Errorf("the request was cancelled by another connection's hang-up: %v", err)
		}
		io.WriteString(w, "not cancelled")
	})
	request := strings.Replace(post("hello"), "Host: a", "Host: "+s.address, 1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 40 {
				closing, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(closing, post("hello", "X-Wait: yes\r\n"))
				closing.Close()
				staying, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(staying, strings.Replace(request, "Content-Length", "Connection: close\r\nContent-Length", 1))
				if got, err := io.ReadAll(staying); err != nil || !strings.Contains(string(got), "not cancelled") {
					t.Errorf("got %q, error %v, want a complete response", got, err)
				}
				staying.Close()
			}
		})
	}
	all.Wait()
}
