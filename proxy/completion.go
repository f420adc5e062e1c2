package proxy

import apierr "basegate/errors"

// completion serves POST /v1/completions. Its steps are in the order that the HTTP contract defines: the first one that
// fails decides the response.
func (s *Server) completion(x *exchange) error {
	defer x.memory.Release()
	defer x.releaseBody()
	if err := s.readRequest(x, s.validateCompletion); err != nil {
		return err
	}
	if err := s.checkBudget(x); err != nil {
		return err
	}
	if err := x.checkKnownLength(); err != nil {
		return err
	}
	if err := s.beginKeepalive(x); err != nil {
		return err
	}
	defer x.delivery.keepalive.stop()
	if err := x.awaitModel(); err != nil {
		return err
	}
	if err := s.acquireSlot(x); err != nil {
		return err
	}
	defer x.slot.Release()
	if err := x.checkLength(); err != nil {
		return err
	}
	if err := s.reserve(x); err != nil {
		return err
	}
	defer x.reservation.Release()
	return s.settleFailure(x, s.serve(x))
}

// serve obtains a response from a backend and relays it.
func (s *Server) serve(x *exchange) error {
	x.memory.SetRunning()
	if x.request.Stream {
		x.charge.echoed = x.echoedTokens()
	}
	x.startCounting()
	defer x.stopCounting()
	x.delivery.keepalive.waitingFor(waitingForFirstEvent)
	response, err := s.forward(x, (*Server).complete)
	x.delivery.keepalive.stop()
	if err != nil {
		return err
	}
	defer response.close()
	if x.request.Stream {
		return s.relayStream(x, response)
	}
	return s.relayPlain(x, response)
}

// chat serves POST /v1/chat/completions, which no model supports, whatever the body.
func (s *Server) chat(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	return apierr.NoChat()
}
