// Package downstream is the HTTP/1.1 server that completions come in by. It answers requests of one form: POST of one
// path, with a plain head and a body of known length. Whatever else comes, it gives over to net/http with its connection:
// so other paths, HTTP/2, chunks, pipelining, and all that is malformed or doubtful are judged there and nowhere else.
//
// For what it does itself net/http takes more: each held stream has 10 KB of buffers and a goroutine that waits for the
// client to leave, and each request wakes such a goroutine to end it. What is asked is for the handler to judge.
package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"basegate/http1/pooled"
)

// Server serves one listener. Its handler must set the Content-Type of what it answers. The context of a request is that
// of its connection: it ends when the client leaves, and not with the request.
type Server struct {
	requests context.Context //nolint:containedctx // what every request's is made of
	path     string
	line     string // that requests of it begin with
	rest     *http.Server
	closing  atomic.Bool
	ended    chan struct{} // closing, and the last connection is

	mu      sync.Mutex
	conns   map[*conn]struct{} // but those given over
	watcher *watcher           // nil before Serve, and where the system has none
}

// New makes a server that answers POST requests of path by itself, with the handler of rest and its ReadHeaderTimeout and
// IdleTimeout; rest answers all others. The contexts of what it answers by itself end with requests.
func New(requests context.Context, path string, rest *http.Server) *Server {
	return &Server{
		requests: requests, path: path, line: requestLine(path), rest: rest,
		ended: make(chan struct{}), conns: map[*conn]struct{}{},
	}
}

// Serve accepts connections until Shutdown or Close, which must follow, whatever ends it; its error is never nil, and
// then http.ErrServerClosed. It closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	f := newFront(listener)
	w, err := newWatcher(f.fail)
	if errors.Is(err, errors.ErrUnsupported) {
		return s.rest.Serve(listener) //nolint:wrapcheck // net/http's own
	}
	if err != nil {
		listener.Close()
		return err
	}
	if !s.begin(w) {
		w.close()
		w.wait()
		listener.Close()
		return http.ErrServerClosed
	}
	var acceptor sync.WaitGroup
	acceptor.Go(func() {
		f.acceptAll(func(c net.Conn) { s.take(f, c) }, func(err error) { s.logf("http: accept: %v; again soon", err) })
	})
	err = s.rest.Serve(f)
	acceptor.Wait()
	return err //nolint:wrapcheck // net/http's own
}

// begin takes the watcher over; false after Shutdown and Close.
func (s *Server) begin(w *watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.watcher = w
	return true
}

// take begins to serve a connection.
func (s *Server) take(f *front, accepted net.Conn) {
	raw := pooled.RawConn(accepted)
	if raw == nil {
		f.give(accepted)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		accepted.Close()
		return
	}
	c := newConn(s, f, accepted, raw)
	s.conns[c] = struct{}{}
	go c.serve()
}

// drop forgets a connection that is closed, or given over.
func (s *Server) drop(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.endIfLast()
}

// endIfLast ends what all connections share, when there are none and there will be none. The caller holds mu.
func (s *Server) endIfLast() {
	if !s.closing.Load() || len(s.conns) > 0 {
		return
	}
	select {
	case <-s.ended: // before
		return
	default:
	}
	if s.watcher != nil {
		s.watcher.close()
	}
	close(s.ended)
}

// Shutdown accepts no more connections, closes those that are idle, and waits until the last request has been answered,
// or ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop((*conn).closeIdle)
	err := s.rest.Shutdown(ctx) // it may be that of the listener alone
	select {
	case <-s.ended:
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
	if w := s.watcher; w != nil { // nobody writes it any more
		w.wait()
	}
	return err //nolint:wrapcheck // net/http's own
}

// Close closes every connection, whatever it is at.
func (s *Server) Close() error {
	s.stop((*conn).cut)
	return s.rest.Close() //nolint:wrapcheck // net/http's own
}

// stop lets nothing begin any more, and has each connection ended in the given way.
func (s *Server) stop(end func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for c := range s.conns {
		end(c)
	}
	s.endIfLast()
}

// logf says what went wrong, where rest has a log of its own.
func (s *Server) logf(format string, values ...any) {
	if l := s.rest.ErrorLog; l != nil {
		l.Printf(format, values...)
	}
}
