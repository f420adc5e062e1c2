package server

import (
	"errors"
	"net"
	"sync"
	"time"
)

// handoffListener is the listener that net/http serves: it accepts the connections that the fast path hands off.
type handoffListener struct {
	net.Listener
	handoffs chan net.Conn
	failed   chan error
	closed   chan struct{}
	close    func() error
}

func newHandoffListener(l net.Listener) *handoffListener {
	h := &handoffListener{Listener: l, handoffs: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
	h.close = sync.OnceValue(func() error {
		close(h.closed)
		return l.Close()
	})
	return h
}

// The backoff after temporary errors, such as too many open files, has net/http's limits.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
)

// acceptAll calls serve for each connection until the listener is closed or fails with an error that is not temporary.
// Before it retries after a temporary error, it calls onTemporary.
func (h *handoffListener) acceptAll(serve func(net.Conn), onTemporary func(error)) {
	backoff := minBackoff
	for {
		c, err := h.Listener.Accept()
		if err == nil {
			backoff = minBackoff
			serve(c)
			continue
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			h.fail(err)
			return
		}
		onTemporary(err)
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
			backoff = min(2*backoff, maxBackoff)
		case <-h.closed:
			timer.Stop()
			return
		}
	}
}

// fail makes Accept return err, which ends net/http's Serve and with it the server's.
func (h *handoffListener) fail(err error) {
	select {
	case h.failed <- err:
	case <-h.closed:
	}
}

// handoff gives a connection to net/http, or closes it if the listener is closed.
func (h *handoffListener) handoff(c net.Conn) {
	select {
	case h.handoffs <- c:
	case <-h.closed:
		c.Close()
	}
}

func (h *handoffListener) Accept() (net.Conn, error) {
	select {
	case c := <-h.handoffs:
		return c, nil
	case err := <-h.failed:
		return nil, err
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handoffListener) Close() error { return h.close() }
