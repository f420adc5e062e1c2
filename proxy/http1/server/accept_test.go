package server_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
)

// temporaryError is an error like that of too many open files.
type temporaryError struct{}

func (temporaryError) Error() string   { return "temporary error" }
func (temporaryError) Timeout() bool   { return false }
func (temporaryError) Temporary() bool { return true }

// failingListener returns its errors before it accepts the first connection.
type failingListener struct {
	net.Listener
	errs chan error
}

func newFailingListener(t *testing.T, errs ...error) *failingListener {
	t.Helper()
	l := &failingListener{listen(t), make(chan error, len(errs))}
	for _, err := range errs {
		l.errs <- err
	}
	return l
}

func (l *failingListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		return nil, err
	default:
		return l.Listener.Accept()
	}
}

func TestAcceptRetriesAfterTemporaryErrors(t *testing.T) {
	s := serve(t, newFailingListener(t, temporaryError{}, temporaryError{}), &http.Server{Handler: http.HandlerFunc(echo)})
	for range 2 {
		dial(t, s.address).roundTrip(post("hello"))
		dial(t, s.address).roundTrip("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
}

func TestPermanentAcceptErrorEndsServe(t *testing.T) {
	permanent := errors.New("permanent error")
	listener := newFailingListener(t, temporaryError{}, permanent)
	s := serve(t, listener, &http.Server{Handler: http.HandlerFunc(echo)})
	if err := receive(t, "Serve returns", s.serveErr); !errors.Is(err, permanent) {
		t.Errorf("Serve returned %v, want %v", err, permanent)
	}
	if _, err := listener.Listener.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

func TestServeEndsWhenTheListenerIsClosed(t *testing.T) {
	listener := listen(t)
	s := serve(t, listener, &http.Server{Handler: http.HandlerFunc(echo)})
	c := dial(t, s.address)
	c.roundTrip(post("hello"))
	listener.Close()
	if err := receive(t, "Serve returns", s.serveErr); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve returned %v, want %v", err, net.ErrClosed)
	}
	c.roundTrip(post("open connections are still served"))
}

// hidingListener accepts connections that do not expose their socket, as those of TLS do not.
type hidingListener struct{ net.Listener }

func (l hidingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

func TestConnectionWithoutASocketIsHandedOff(t *testing.T) {
	s := serve(t, hidingListener{listen(t)}, &http.Server{Handler: http.HandlerFunc(echo)})
	c := dial(t, s.address)
	for range 2 {
		c.roundTrip(post("hello"))
	}
}

func TestBaseContextEndsRequestContexts(t *testing.T) {
	errTest := errors.New("cancelled by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	arrived, causes := make(chan struct{}), make(chan error)
	s := serveWithContext(ctx, t, listen(t), &http.Server{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
			causes <- context.Cause(r.Context())
		}),
	})
	dial(t, s.address).send(post(""))
	receive(t, "the request arrives", arrived)
	cancel(errTest)
	if err := receive(t, "the context ends", causes); !errors.Is(err, errTest) {
		t.Errorf("the cause is %v, want %v", err, errTest)
	}
}
