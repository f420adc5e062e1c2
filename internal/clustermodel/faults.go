package clustermodel

// faults emits what may fail at one gateway.
func (l *Ledger) faults(s *State, g int, emit func(Action, *State)) {
	gw := &s.Gateways[g]
	act := func(kind uint8, change func(*State)) {
		do(s, emit, Action{Kind: kind, Environment: true, A: g}, func(n *State) {
			n.Faults--
			change(n)
		})
	}
	if gw.Process == dead {
		return
	}
	act(crash, func(n *State) { l.crash(n, g) })
	if gw.Process == running {
		act(stopProcess, func(n *State) { n.Gateways[g].Process = stopped })
	}
	if !gw.Cut && !s.DB.Down {
		act(cut, func(n *State) {
			n.Gateways[g].Cut, n.Gateways[g].Wake = true, false
			n.lose(g)
		})
	}
	if gw.Wake {
		act(loseNotification, func(n *State) { n.Gateways[g].Wake = false })
	}
	switch gw.Call.Phase {
	case sent:
		act(loseConnection, func(n *State) { n.lose(g) })
		act(loseRequest, func(n *State) { n.Gateways[g].Call.Phase = lost })
	case begun:
		act(loseConnection, func(n *State) { n.lose(g) })
		act(abortCall, func(n *State) { n.Gateways[g].Call.Phase = lost })
		act(refuseCall, func(n *State) { l.refuse(n, g) })
	case committed:
		act(loseConnection, func(n *State) { n.lose(g) })
	case noCall, lost:
	}
}

// lose loses the connection of the outstanding call. A call that was sent may still be executed.
func (s *State) lose(g int) {
	c := &s.Gateways[g].Call
	if c.Phase == sent || c.Phase == begun {
		s.Late[g] = *c
	}
	if c.Phase != noCall {
		c.Phase = lost
	}
}

// refuse refuses a value in a call: the transaction is rolled back. The gateway uses up the sequence by a call without
// operations, since an earlier copy of the call may still be executed. If one was, the reply is the call's own.
func (l *Ledger) refuse(s *State, g int) {
	gw := &s.Gateways[g]
	c := &gw.Call
	if !l.breaks(SkipRefused) {
		c.Phase, c.Skip = sent, true
		return
	}
	s.restore(c)
	gw.Seq--
	*c = Call{}
}

// crash kills a process: its memory is lost, and its clients see that the connection ends.
func (l *Ledger) crash(s *State, g int) {
	s.lose(g)
	s.Gateways[g] = Gateway{Process: dead, Epoch: s.Gateways[g].Epoch}
	for r := range l.Requests {
		if int(l.Requests[r].Gateway) == g {
			s.Requests[r].fail()
		}
	}
}

// environment emits what happens outside the gateways.
func (l *Ledger) environment(s *State, emit func(Action, *State)) {
	act := func(kind uint8, a int, change func(*State)) {
		do(s, emit, Action{Kind: kind, Environment: true, A: a}, change)
	}
	for g := range s.Gateways {
		gw := &s.Gateways[g]
		if gw.Process == stopped {
			act(continueProcess, g, func(n *State) { n.Gateways[g].Process = running })
		}
		if gw.Cut && gw.Process != dead {
			act(heal, g, func(n *State) { n.Gateways[g].Cut = false })
		}
	}
	for r := range l.Requests {
		l.clientLeaves(s, r, act)
	}
	switch {
	case s.DB.Down:
		do(s, emit, Action{Kind: databaseUp}, func(n *State) { n.DB.Down = false })
	case s.Faults > 0:
		act(databaseDown, 0, func(n *State) {
			n.Faults--
			n.goDown()
		})
	}
	if s.DB.Down {
		return
	}
	if l.Pause && !s.DB.Paused {
		act(pauseKey, 0, func(n *State) {
			n.DB.Paused = true
			l.change(n)
		})
	}
	if l.Raise > s.DB.Cap {
		act(raiseCap, 0, func(n *State) {
			n.DB.Cap = l.Raise
			l.change(n)
		})
	}
	if l.Midnight && s.DB.Today == 0 {
		act(midnight, 0, func(n *State) { n.DB.Today = 1 })
	}
}

// change is the rest of the transaction that changes a cap or a key.
func (l *Ledger) change(s *State) {
	s.DB.rollOver()
	if !l.breaks(GrantOnChange) {
		l.grantAll(s, -1, ^uint8(0))
	}
}

// clientLeaves emits that a client disconnects, or that its response has been without the database for too long.
func (l *Ledger) clientLeaves(s *State, r int, act func(kind uint8, a int, change func(*State))) {
	q, g := &s.Requests[r], int(l.Requests[r].Gateway)
	if q.Client != present || q.Place == absentPlace || q.Place == finished {
		return
	}
	if s.Leaves > 0 {
		act(leaveClient, r, func(n *State) {
			n.Leaves--
			n.Requests[r].Client = left
		})
	}
	silent := s.Gateways[g].Process == running && !s.reachable(g)
	if silent && (q.Place == atBackend || q.Place == toSettle || q.Place == settling) {
		act(timeOut, r, func(n *State) {
			q := &n.Requests[r]
			if q.Place != settling { // what has been sent stands
				q.Place, q.Tokens = toSettle, q.Delivered
			}
			q.Client, q.Failed, q.Checkpoint = sawError, true, false
		})
	}
}

// goDown stops the database: what is not committed is lost, and so are all connections.
func (s *State) goDown() {
	s.DB.Down = true
	s.Late = [gateways]Call{}
	for g := range s.Gateways {
		gw := &s.Gateways[g]
		gw.Wake = false
		if gw.Call.Phase != noCall {
			gw.Call.Phase = lost
		}
	}
}
