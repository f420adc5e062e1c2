package proxy

import "context"

// enter counts a request in; false while draining.
func (s *Server) enter() bool {
	s.inFlight.Add(1)
	if s.draining.Load() {
		s.leave()
		return false
	}
	return true
}

func (s *Server) leave() {
	if s.inFlight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// Draining tells whether Drain has been called.
func (s *Server) Draining() bool { return s.draining.Load() }

// InFlight is the number of requests under way.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Drain refuses new requests with 503 overloaded and waits until those under way have ended, or ctx has.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	for s.inFlight.Load() > 0 {
		select {
		case <-s.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
