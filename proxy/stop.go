package proxy

import (
	"context"
	"errors"
	"sync"
)

// errStopped is the cause of the end of a request whose run was stopped, or whose key was revoked together with what it runs.
var errStopped = errors.New("the requests of the key were ended")

// children are the requests of children (see identity.Principal.Parent) in progress, with what cancels each. Other keys cannot
// be stopped, so their requests are not among them.
type children struct {
	mu       sync.Mutex
	requests map[*exchange]context.CancelCauseFunc
}

// cancelWhenStopped cancels a request of a child when its key is stopped, until the function that it returns is called.
func (s *Server) cancelWhenStopped(x *exchange) (over func()) {
	if x.caller.identity.Parent == nil {
		return func() {}
	}
	cancel, end := x.cancellable()
	c := &s.children
	c.mu.Lock()
	c.requests[x] = cancel
	c.mu.Unlock()
	if s.isStopped(x) { // EndStopped has not seen it
		cancel(errStopped)
	}
	return func() {
		c.mu.Lock()
		delete(c.requests, x)
		c.mu.Unlock()
		end()
	}
}

// isStopped reports whether the key of a request has been stopped since the request was authenticated.
func (s *Server) isStopped(x *exchange) bool {
	now, _ := s.deps.Keys.Lookup(x.caller.identity.KeyID) // a key that may not be used has stops too
	return now.Stops > x.caller.identity.Stops
}

// EndStopped ends the requests of keys that were stopped since the requests began, as if their clients had disconnected: they are
// charged for what was sent. Call it when keys have changed.
func (s *Server) EndStopped() {
	s.children.mu.Lock()
	defer s.children.mu.Unlock()
	for x, cancel := range s.children.requests {
		if s.isStopped(x) {
			cancel(errStopped)
		}
	}
}
