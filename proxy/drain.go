package proxy

import "context"

// begin counts a request as in flight; it returns false while draining.
func (s *Server) begin() bool {
	s.inFlight.Add(1)
	if s.draining.Load() {
		s.end()
		return false
	}
	return true
}

func (s *Server) end() {
	if s.inFlight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// Draining reports whether Drain has been called.
func (s *Server) Draining() bool { return s.draining.Load() }

// InFlight returns the number of requests in flight.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Drain refuses new requests with 503 overloaded and waits until those in flight have ended or ctx is done.
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
