package server_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
)

// temporary is an error that passes, such as that of too many open files.
type temporary struct{}

func (temporary) Error() string   { return "not at present" }
func (temporary) Timeout() bool   { return false }
func (temporary) Temporary() bool { return true }

// faulty is a listener that fails before it accepts anything.
type faulty struct {
	net.Listener
	errs chan error
}

func newFaulty(t *testing.T, errs ...error) *faulty {
	t.Helper()
	f := &faulty{listen(t), make(chan error, len(errs))}
	for _, err := range errs {
		f.errs <- err
	}
	return f
}

func (f *faulty) Accept() (net.Conn, error) {
	select {
	case err := <-f.errs:
		return nil, err
	default:
		return f.Listener.Accept()
	}
}

func TestAListenerThatFailsForATimeGoesOn(t *testing.T) {
	s := serve(t, newFaulty(t, temporary{}, temporary{}), &http.Server{Handler: http.HandlerFunc(echo)})
	for range 2 {
		dial(t, s.address).ask(post("hello"))
		dial(t, s.address).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
}

func TestAListenerThatFailsForGoodEndsServe(t *testing.T) {
	broken := errors.New("broken")
	listener := newFaulty(t, temporary{}, broken)
	s := serve(t, listener, &http.Server{Handler: http.HandlerFunc(echo)})
	if err := wait(t, "Serve returns", s.served); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := listener.Listener.Accept(); err == nil {
		t.Error("the listener is open")
	}
}

// Its owner may close a listener too.
func TestAListenerThatIsClosedEndsServe(t *testing.T) {
	listener := listen(t)
	s := serve(t, listener, &http.Server{Handler: http.HandlerFunc(echo)})
	c := dial(t, s.address)
	c.ask(post("hello"))
	listener.Close()
	if err := wait(t, "Serve returns", s.served); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	c.ask(post("who is there is still served"))
}

// veiled is a listener whose connections show no socket, as those of TLS do.
type veiled struct{ net.Listener }

func (v veiled) Accept() (net.Conn, error) {
	c, err := v.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

func TestAConnectionWithoutASocketIsGivenOver(t *testing.T) {
	s := serve(t, veiled{listen(t)}, &http.Server{Handler: http.HandlerFunc(echo)})
	c := dial(t, s.address)
	for range 2 {
		c.ask(post("hello"))
	}
}

// The end of the server's own context ends those of its requests.
func TestRequestsHaveTheContextOfTheServer(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	arrived, causes := make(chan struct{}), make(chan error)
	s := serveWithin(ctx, t, listen(t), &http.Server{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
			causes <- context.Cause(r.Context())
		}),
	})
	dial(t, s.address).say(post(""))
	wait(t, "the request arrives", arrived)
	cancel(enough)
	if err := wait(t, "the context ends", causes); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}
