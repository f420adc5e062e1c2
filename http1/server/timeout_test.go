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

func TestAClientThatIsSilentIsGivenUp(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 50 * time.Millisecond})
	request := post("hello")
	for _, begun := range []int{0, 1, 10, len(request) - len("hello") - 1} {
		c := dial(t, s.address)
		c.say(request[:begun])
		if got := c.heard(); got != "" {
			t.Errorf("after %d bytes: got %q", begun, got)
		}
	}
}

// Each byte is a sign of life, and none is a head.
func TestAClientThatTricklesItsHeadIsGivenUp(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 100 * time.Millisecond, IdleTimeout: patience})
	c := dial(t, s.address)
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.heard()
	}()
	trickle := time.NewTicker(5 * time.Millisecond)
	defer trickle.Stop()
	io.WriteString(c, line+"\r\nHost: a\r\n")
	deadline := time.Now().Add(patience)
	for {
		select {
		case <-over:
			return
		case <-trickle.C:
			io.WriteString(c, "X: y\r\n") // 4 KB take longer than the client has
			if time.Now().After(deadline) {
				t.Fatal("it goes on for ever")
			}
		}
	}
}

func TestAConnectionBetweenTwoRequestsIsGivenUp(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: patience, IdleTimeout: 50 * time.Millisecond})
	c := dial(t, s.address)
	c.ask(post("hello"))
	if got := c.heard(); got != "" {
		t.Errorf("got %q", got)
	}
}

// A second head that does not come to its end is bound by the time for heads, and not by that between requests.
func TestASecondHeadIsGivenUp(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Second, IdleTimeout: time.Hour})
	c := dial(t, s.address)
	c.say(post("hello"))
	c.say(post("hello")[:20])
	if got := c.heard(); strings.Count(got, "HTTP/1.1 200 OK") > 1 {
		t.Errorf("got %q", got)
	}
}

// recorder keeps the deadlines for reads of the connections that come by it.
type recorder struct {
	net.Listener
	mu   sync.Mutex
	last time.Time
}

func (r *recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &recorded{c.(*net.TCPConn), r}, nil //nolint:forcetypeassert // the listener is one of TCP
}

func (r *recorder) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

type recorded struct {
	*net.TCPConn
	by *recorder
}

func (r *recorded) SetReadDeadline(at time.Time) error {
	r.by.mu.Lock()
	defer r.by.mu.Unlock()
	r.by.last = at
	return r.TCPConn.SetReadDeadline(at)
}

// The time for a head, or between two, is not the time for a body: that is for the handler to bound, as with net/http.
func TestTheTimeForAHeadIsNotThatForABody(t *testing.T) {
	listener := &recorder{Listener: listen(t)}
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
		c.say(request[:len(request)-4])
		wait(t, "the request arrives", arrived)
		poll.Until(t, "the body has all the time there is", func() bool { return listener.deadline().IsZero() })
		c.say(request[len(request)-4:])
		c.mustHear()
	}
}
