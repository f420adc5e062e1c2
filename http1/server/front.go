package server

import (
	"errors"
	"net"
	"sync"
	"time"
)

// front is the listener that net/http sees: of the connections that come it gets those that are given over to it.
type front struct {
	net.Listener
	given  chan net.Conn
	failed chan error
	closed chan struct{}
	close  func() error
}

func newFront(l net.Listener) *front {
	f := &front{Listener: l, given: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
	f.close = sync.OnceValue(func() error {
		close(f.closed)
		return l.Close() //nolint:wrapcheck // net's own
	})
	return f
}

// The pauses of a listener whose errors pass, as when too many files are open, are net/http's.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = time.Second
)

// acceptAll hands out connections until the front is closed, or accepting fails for good.
func (f *front) acceptAll(take func(net.Conn), passing func(error)) {
	pause := pauseFirst
	for {
		c, err := f.Listener.Accept()
		if err == nil {
			pause = pauseFirst
			take(c)
			continue
		}
		var known interface{ Temporary() bool }
		if !errors.As(err, &known) || !known.Temporary() {
			f.fail(err)
			return
		}
		passing(err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, pauseMost)
		case <-f.closed:
			timer.Stop()
			return
		}
	}
}

// fail ends net/http's Serve, which ends this server's.
func (f *front) fail(err error) {
	select {
	case f.failed <- err:
	case <-f.closed:
	}
}

// give hands a connection over to net/http.
func (f *front) give(c net.Conn) {
	select {
	case f.given <- c:
	case <-f.closed:
		c.Close()
	}
}

// Accept implements net.Listener.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.given:
		return c, nil
	case err := <-f.failed:
		return nil, err
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *front) Close() error { return f.close() }

// begun is a connection of which something has been read already.
type begun struct {
	net.Conn
	read []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.read) > 0 {
		n := copy(p, b.read)
		if b.read = b.read[n:]; len(b.read) == 0 {
			b.read = nil
		}
		return n, nil
	}
	return b.Conn.Read(p) //nolint:wrapcheck // net's own
}

// CloseWrite is asked for by net/http, before it closes a connection of which it has not read everything.
func (b *begun) CloseWrite() error {
	if c, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite() //nolint:wrapcheck // net's own
	}
	return errors.ErrUnsupported
}
