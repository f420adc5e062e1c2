package proxy

// completion serves POST /v1/completions.
func (s *Server) completion(x *exchange) error { return s.generate(x, s.validateCompletion) }

// generate serves a request that generates text. Its steps are in the order that the HTTP contract defines: the first one
// that fails decides the response.
func (s *Server) generate(x *exchange, rules bodyRules) error {
	defer x.memory.Release()
	defer x.releaseBody()
	withReceipt := false
	if err := s.readRequest(x, s.receiptRules(rules, &withReceipt)); err != nil {
		return err
	}
	if withReceipt {
		s.beginReceipt(x)
	}
	if err := s.checkBudget(x); err != nil {
		return err
	}
	if err := x.checkKnownLength(); err != nil {
		return err
	}
	if err := s.refuseKiller(x); err != nil {
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
	defer x.releaseSlot()
	if err := x.checkLength(); err != nil {
		return err
	}
	if err := x.setRest(); err != nil {
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
	defer x.endWhenLost()()
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
