package server_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// ways are how a client can leave. To shut its side down is one of them, as it is with net/http.
var ways = map[string]func(*client){
	"closes":      func(c *client) { c.Close() },
	"half-closes": func(c *client) { c.CloseWrite() },
	"resets": func(c *client) {
		c.SetLinger(0)
		c.Close()
	},
}

// waiter is a handler that waits for the end of its request, and tells of both.
type waiter struct{ arrived, left chan struct{} }

func newWaiter() waiter { return waiter{make(chan struct{}, 1000), make(chan struct{}, 1000)} }

func (h waiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	if r.Header.Get("X-Begin") != "" {
		io.WriteString(w, "begun")
		http.NewResponseController(w).Flush()
	}
	h.arrived <- struct{}{}
	<-r.Context().Done()
	h.left <- struct{}{}
}

func TestAClientThatLeavesEndsTheContext(t *testing.T) {
	h := newWaiter()
	s := start(t, h.ServeHTTP)
	for name, leave := range ways {
		for _, begun := range []string{"", "X-Begin: yes\r\n"} {
			for _, size := range []int{0, 10, 100 << 10} {
				c := dial(t, s.address)
				c.say(post(strings.Repeat("x", size), begun))
				wait(t, "the request arrives", h.arrived)
				if begun != "" {
					one := make([]byte, 1)
					if _, err := io.ReadFull(c, one); err != nil {
						t.Fatal(err)
					}
				}
				leave(c)
				wait(t, "the context ends when the client "+name, h.left)
			}
		}
	}
}

// It may have left even before it is watched.
func TestAClientThatLeavesAtOnceEndsTheContext(t *testing.T) {
	h := newWaiter()
	s := start(t, h.ServeHTTP)
	for name, leave := range ways {
		if name == "resets" {
			continue // what it had sent may go with it
		}
		for range 50 {
			c := dial(t, s.address)
			c.say(post("hello"))
			leave(c)
			wait(t, "the context ends when the client "+name, h.left)
			<-h.arrived
		}
	}
}

func TestClientsThatLeaveTogetherEndAllContexts(t *testing.T) {
	h := newWaiter()
	s := start(t, h.ServeHTTP)
	var all []*client
	for range 200 {
		c := dial(t, s.address)
		c.say(post("hello"))
		all = append(all, c)
	}
	for range all {
		wait(t, "all arrive", h.arrived)
	}
	for _, c := range all {
		c.Close()
	}
	for range all {
		wait(t, "all contexts end", h.left)
	}
}

// The watch begins with the first request and holds for all of them.
func TestAClientMayLeaveDuringAnyRequest(t *testing.T) {
	h := newWaiter()
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Wait") != "" {
			h.ServeHTTP(w, r)
		}
		io.Copy(io.Discard, r.Body) // or the answer would be the last
	})
	for n := range 5 {
		c := dial(t, s.address)
		for range n {
			if got := c.ask(post("hello")); got.Line != "HTTP/1.1 200 OK" {
				t.Fatalf("got %+v", got)
			}
		}
		c.say(post("hello", "X-Wait: yes\r\n"))
		wait(t, "the request arrives", h.arrived)
		c.Close()
		wait(t, "the context ends", h.left)
	}
}

// A client that half-closes is still told the answer, if the handler has one.
func TestAClientThatHalfClosesCanStillBeAnswered(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		io.WriteString(w, "farewell")
	})
	c := dial(t, s.address)
	c.say(post(""))
	c.CloseWrite()
	if got := c.mustHear(); got.Body != "farewell" {
		t.Errorf("got %+v", got)
	}
	if rest := c.heard(); rest != "" {
		t.Errorf("got %q", rest)
	}
}

// A body that breaks off is an error, and never a shorter body.
func TestAClientThatLeavesInItsBodyIsAnError(t *testing.T) {
	arrived, errs := make(chan struct{}, 1), make(chan error, 1)
	s := start(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, err := io.ReadAll(r.Body)
		errs <- err
	})
	for name, leave := range ways {
		for _, size := range []int{0, 1, 10 << 10} {
			c := dial(t, s.address)
			request := post(strings.Repeat("x", 20<<10))
			c.say(request[:len(request)-20<<10+size])
			wait(t, "the request arrives", arrived) // a reset may take with it what was sent
			leave(c)
			if err := wait(t, "the handler is told", errs); err == nil {
				t.Errorf("%s after %d bytes: no error", name, size)
			}
		}
	}
}

// A descriptor is used again at once for the next connection, whose requests must not end with those of the one before.
func TestWhoLeavesEndsNobodyElsesRequest(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Leaves") != "" {
			<-r.Context().Done()
			return
		}
		http.NewResponseController(w).Flush()
		for range 3 { // while others come and go
			c, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
			if err != nil {
				t.Errorf("an end that was another's: %v", err)
				return
			}
			io.WriteString(c, post("", "X-Leaves: yes\r\n"))
			c.Close()
		}
		if err := r.Context().Err(); err != nil {
			t.Errorf("an end that was another's: %v", err)
		}
		io.WriteString(w, "well")
	})
	request := strings.Replace(post("hello"), "Host: a", "Host: "+s.address, 1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 40 {
				leaver, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(leaver, post("hello", "X-Leaves: yes\r\n"))
				leaver.Close()
				stays, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(stays, strings.Replace(request, "Content-Length", "Connection: close\r\nContent-Length", 1))
				if got, err := io.ReadAll(stays); err != nil || !strings.Contains(string(got), "well") {
					t.Errorf("got %q, %v", got, err)
				}
				stays.Close()
			}
		})
	}
	all.Wait()
}
