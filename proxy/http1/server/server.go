// Package server is an HTTP/1.1 fast path: it serves plain POSTs of a few paths without net/http's
// per-connection goroutine and buffers, and hands every other connection to net/http.
//
// A plain POST has a head of at most 4 KiB with ordinary fields, and a body of known length. Other paths, HTTP/2,
// chunked bodies, pipelining, and everything malformed or ambiguous go to net/http with their connection, so that
// only one parser decides about them. A client sees no difference between the two.
//
// net/http holds 10 KB of buffers for each waiting stream, and a goroutine that waits for the client to disconnect,
// which it has to wake at the end of each request. The meaning of a request is left to the handler.
package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"basegate/proxy/http1/pooled"
	"basegate/proxy/http1/strict"
)

// Server serves one listener. Its handler must set the Content-Type of a response that has a body. The context of a
// request is that of its connection: it ends when the client disconnects, and not when the handler returns.
type Server struct {
	baseContext context.Context
	routes      []route
	fallback    *http.Server
	closing     atomic.Bool
	done        chan struct{} // closed once closing is set and the last connection is removed

	mu      sync.Mutex
	conns   map[*conn]struct{} // without those handed to net/http
	hangups *hangupWatcher     // nil before Serve, and on systems without it
}

// New returns a server that serves POST requests of the paths itself, with the Handler, ReadHeaderTimeout and IdleTimeout
// of fallback; fallback serves everything else. The contexts of the requests served here are derived from baseContext.
func New(baseContext context.Context, paths []string, fallback *http.Server) *Server {
	return &Server{
		baseContext: baseContext, routes: newRoutes(paths), fallback: fallback,
		done: make(chan struct{}), conns: map[*conn]struct{}{},
	}
}

// Serve accepts connections until Shutdown or Close, and closes the listener. Its error is never nil; after Shutdown or
// Close it is http.ErrServerClosed. Even if Serve fails, the caller must call Shutdown or Close.
func (s *Server) Serve(listener net.Listener) error {
	l := newHandoffListener(listener)
	w, err := newHangupWatcher(l.fail)
	if errors.Is(err, errors.ErrUnsupported) {
		return s.fallback.Serve(strict.NewListener(listener))
	}
	if err != nil {
		listener.Close()
		return err
	}
	if !s.setHangups(w) {
		w.close()
		w.wait()
		listener.Close()
		return http.ErrServerClosed
	}
	var acceptor sync.WaitGroup
	acceptor.Go(func() {
		l.acceptAll(func(c net.Conn) { s.serveConn(l, c) }, func(err error) { logf(s.fallback, "http: accept: %v; retrying", err) })
	})
	err = s.fallback.Serve(l)
	acceptor.Wait()
	return err
}

// setHangups sets the watcher, which finishIfDone closes. It returns false after Shutdown or Close.
func (s *Server) setHangups(w *hangupWatcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.hangups = w
	return true
}

// serveConn starts the goroutine of an accepted connection. A connection that exposes no socket is handed off.
func (s *Server) serveConn(l *handoffListener, accepted net.Conn) {
	raw := pooled.RawConn(accepted)
	if raw == nil {
		l.handoff(strict.NewConn(accepted, nil))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		accepted.Close()
		return
	}
	c := newConn(s, l, accepted, raw)
	s.conns[c] = struct{}{}
	go c.serve()
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.finishIfDone()
}

// finishIfDone closes the watcher and done if the server is closing and has no connection left. The caller holds mu.
func (s *Server) finishIfDone() {
	if !s.closing.Load() || len(s.conns) > 0 {
		return
	}
	select {
	case <-s.done: // finished before
		return
	default:
	}
	if s.hangups != nil {
		s.hangups.close()
	}
	close(s.done)
}

// Shutdown stops accepting, closes idle connections, and waits until the requests in flight have ended or ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closeConns((*conn).closeIfIdle)
	err := s.fallback.Shutdown(ctx) // its error may be the listener's alone
	select {
	case <-s.done:
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
	if w := s.hangups; w != nil { // not written after closing is set
		w.wait()
	}
	return err
}

// Close closes every connection, including those with a request in flight.
func (s *Server) Close() error {
	s.closeConns((*conn).abort)
	return s.fallback.Close()
}

// closeConns sets closing and calls closeConn for each connection.
func (s *Server) closeConns(closeConn func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for c := range s.conns {
		closeConn(c)
	}
	s.finishIfDone()
}

// logf writes to the server's error log, if it has one.
func logf(s *http.Server, format string, values ...any) {
	if l := s.ErrorLog; l != nil {
		l.Printf(format, values...)
	}
}
