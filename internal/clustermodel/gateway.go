package clustermodel

// The kinds of actions.
const (
	arrive uint8 = iota
	sendCall
	beginCall
	commitCall
	beginLate
	commitLate
	receive
	resend
	dispatch
	deliver
	answer1 // the backend's response is complete, with one token
	answer2
	endResponse // the last byte
	noticeLeave
	heartbeat
	rejoin
	reapGateway
	databaseUp

	leaveClient
	timeOut // 60 seconds without the database
	crash
	stopProcess
	continueProcess
	cut
	heal
	loseConnection
	loseRequest // as loseConnection, and the call never arrives
	abortCall   // a serialization failure, a deadlock or a timeout
	refuseCall  // a value in the call
	databaseDown
	loseNotification
	pauseKey
	raiseCap
	midnight

	// Kinds is the number of kinds of actions of a Ledger.
	Kinds = int(midnight) + 1
)

// reachable reports whether a gateway runs and can reach the database.
func (s *State) reachable(g int) bool {
	gw := &s.Gateways[g]
	return gw.Process == running && !gw.Cut && !s.DB.Down
}

// Next emits the actions of requests, gateways, the database and the environment.
func (l *Ledger) Next(s *State, emit func(Action, *State)) {
	if s.Broken != noViolation {
		return
	}
	all := emit
	emit = func(a Action, next *State) {
		l.canonical(next)
		all(a, next)
	}
	for r := range l.Requests {
		l.nextOfRequest(s, r, emit)
	}
	for g := range s.Gateways {
		l.nextOfGateway(s, g, emit)
		l.nextInDatabase(s, g, emit)
		if s.Faults > 0 {
			l.faults(s, g, emit)
		}
	}
	l.environment(s, emit)
}

// do emits an action that changes a copy of a state.
func do(s *State, emit func(Action, *State), a Action, change func(*State)) {
	next := *s
	change(&next)
	emit(a, &next)
}

func (l *Ledger) nextOfRequest(s *State, r int, emit func(Action, *State)) {
	g := l.Requests[r].Gateway
	if s.Gateways[g].Process != running {
		return
	}
	step := func(kind uint8, change func(*Local)) {
		do(s, emit, Action{Kind: kind, A: r}, func(n *State) { change(&n.Requests[r]) })
	}
	q := &s.Requests[r]
	if q.Client == left {
		q.noticeLeave(step)
	}
	switch q.Place {
	case absentPlace:
		step(arrive, func(n *Local) { n.Place = toAdmit })
	case leased:
		do(s, emit, Action{Kind: dispatch, A: r}, func(n *State) {
			n.Requests[r].Place = atBackend
			if row := &n.DB.Rows[r]; !row.InFlight && row.Ended != interrupted {
				n.violate(unreserved)
			}
		})
	case atBackend:
		if q.Delivered == 0 {
			step(deliver, func(n *Local) { n.Delivered, n.Checkpoint = 1, true })
		}
		step(answer1, func(n *Local) { n.Place, n.Tokens, n.Checkpoint = toSettle, 1, false })
		if q.Tokens == 2 && l.Cap > 0 {
			step(answer2, func(n *Local) { n.Place, n.Checkpoint = toSettle, false })
		}
	case toEnd:
		step(endResponse, (*Local).end)
	case toSettle, settling:
		if l.breaks(CommitBeforeEnd) && q.Client == present && !q.Failed {
			step(endResponse, func(n *Local) { n.Client, n.Delivered, n.Failed = sawAll, n.Tokens, true })
		}
	case toAdmit, admitting, waiting, toCancel, cancelling, finished:
	}
}

// end sends the last byte.
func (q *Local) end() {
	if q.Client == present {
		q.Client, q.Delivered = sawAll, q.Tokens
	}
	q.Place = finished
}

// noticeLeave emits what a gateway does when it notices that a client has disconnected.
func (q *Local) noticeLeave(step func(uint8, func(*Local))) {
	switch q.Place {
	case toAdmit:
		step(noticeLeave, func(n *Local) { n.Place = finished })
	case waiting:
		step(noticeLeave, func(n *Local) { n.Place = toCancel })
	case leased, atBackend:
		step(noticeLeave, func(n *Local) {
			n.Place, n.Tokens, n.Failed, n.Checkpoint = toSettle, n.Delivered, true, false
		})
	case absentPlace, admitting, toSettle, settling, toEnd, toCancel, cancelling, finished:
	}
}

func (l *Ledger) nextOfGateway(s *State, g int, emit func(Action, *State)) {
	gw := &s.Gateways[g]
	if gw.Process != running {
		return
	}
	act := func(kind uint8, change func(*State)) {
		do(s, emit, Action{Kind: kind, A: g}, change)
	}
	if gw.Call.Phase == committed && !gw.Cut {
		act(receive, func(n *State) { l.receive(n, g) })
	}
	if !s.reachable(g) {
		return
	}
	switch {
	case !gw.Joined:
		act(rejoin, func(n *State) {
			n.Gateways[g] = Gateway{Joined: true, Epoch: n.DB.Epoch[g]}
		})
		return
	case gw.Epoch != s.DB.Epoch[g]:
		act(heartbeat, func(n *State) { l.fenced(n, g) })
	}
	if gw.Call.Phase == lost {
		act(resend, func(n *State) {
			c := &n.Gateways[g].Call
			c.Phase, c.Fence, c.Reply, c.Seen, c.Skipped = sent, false, Reply{}, 0, false
			if l.breaks(ResendSameCall) {
				n.Gateways[g].Seq++
				c.Seq = n.Gateways[g].Seq
			}
		})
	}
	if gw.Call.Phase == noCall {
		if next := *s; l.fill(&next, g) {
			emit(Action{Kind: sendCall, A: g}, &next)
		}
	}
}

// fill sends a call with all operations that wait for the lane, or a poll. It returns false if there is nothing to send.
func (l *Ledger) fill(s *State, g int) bool {
	gw := &s.Gateways[g]
	any := l.pollDue(s, g)
	for r := range l.Requests {
		q := &s.Requests[r]
		if int(l.Requests[r].Gateway) != g {
			continue
		}
		op := &gw.Call.Ops[r]
		switch {
		case q.Place == toAdmit && q.Client == present:
			q.Place, *op = admitting, Op{Kind: admitOp}
		case q.Place == toSettle:
			q.Place, *op = settling, Op{Kind: settleOp, Tokens: q.Tokens}
		case q.Place == toCancel:
			q.Place, *op = cancelling, Op{Kind: cancelOp}
		case q.Place == atBackend && q.Checkpoint:
			q.Checkpoint, *op = false, Op{Kind: checkpointOp, Tokens: q.Delivered}
		}
		any = any || op.Kind != noOp
	}
	if any {
		gw.Seq++
		gw.Wake = false
		gw.Call.Phase, gw.Call.Epoch, gw.Call.Seq = sent, gw.Epoch, gw.Seq
	}
	return any
}

// pollDue reports whether a poll of the gateway would change something. It polls at other times too; that has no effect.
func (l *Ledger) pollDue(s *State, g int) bool {
	for r := range l.Requests {
		if int(l.Requests[r].Gateway) != g || s.Requests[r].Place != waiting {
			continue
		}
		if s.Gateways[g].Wake {
			return true
		}
		decided := s.DB.Rows[r].Waiter > undecided
		if !l.breaks(PollGrants) && (decided || s.DB.Window != s.DB.Today) { // a new day has no transaction of its own
			return true
		}
	}
	return false
}

// receive handles the reply to the outstanding call.
func (l *Ledger) receive(s *State, g int) {
	gw := &s.Gateways[g]
	c := gw.Call
	gw.Call = Call{}
	if c.Fence {
		l.fenced(s, g)
		return
	}
	if c.Skipped {
		s.restore(&c)
	}
	for r := range l.Requests {
		if int(l.Requests[r].Gateway) == g {
			s.Requests[r].apply(c.Reply[r])
		}
	}
}

// restore makes the operations of a call wait for the next one.
func (s *State) restore(c *Call) {
	for r, op := range c.Ops {
		q := &s.Requests[r]
		switch op.Kind {
		case admitOp:
			q.Place = toAdmit
		case settleOp:
			q.Place = toSettle
		case cancelOp:
			q.Place = toCancel
		case checkpointOp:
			q.Checkpoint = q.Place == atBackend
		case noOp:
		}
	}
}

// apply moves a request on by the result of its operation, or by the decision on its wait.
func (q *Local) apply(result Outcome) {
	switch q.Place {
	case admitting, waiting:
		switch result {
		case grants1, grants2:
			q.Place, q.Tokens = leased, uint8(result-grants1)+1
		case refuses:
			q.fail()
		case waits:
			q.Place = waiting
		case noOutcome, done, absent:
		}
	case settling:
		switch {
		case result == absent:
			q.fail()
		case q.Failed:
			q.Place = finished
		default:
			q.Place = toEnd
		}
	case cancelling:
		q.Place = finished
	case absentPlace, toAdmit, leased, atBackend, toSettle, toEnd, toCancel, finished:
	}
}

// fail ends a request with an error.
func (q *Local) fail() {
	if q.Client == present {
		q.Client = sawError
	}
	q.Place, q.Checkpoint = finished, false
}

// fenced ends all that a gateway has begun in an epoch that has ended.
func (l *Ledger) fenced(s *State, g int) {
	gw := &s.Gateways[g]
	if gw.Call.Phase == sent || gw.Call.Phase == begun {
		s.Late[g] = gw.Call
	}
	for r := range l.Requests {
		q := &s.Requests[r]
		if int(l.Requests[r].Gateway) != g || q.Place == absentPlace || q.Place == toAdmit || q.Place == finished {
			continue
		}
		if l.breaks(FailOnFence) && q.Place == settling {
			q.end()
		}
		q.fail()
	}
	*gw = Gateway{Epoch: gw.Epoch}
}

// nextInDatabase emits the steps of the calls of one gateway in the database, and its reaping.
func (l *Ledger) nextInDatabase(s *State, g int, emit func(Action, *State)) {
	if s.DB.Down {
		return
	}
	act := func(kind uint8, change func(*State)) {
		do(s, emit, Action{Kind: kind, A: g}, change)
	}
	call, late := &s.Gateways[g].Call, &s.Late[g]
	locked := call.Phase == begun || late.Phase == begun // the row of the lane
	if call.Phase == sent && !locked {
		act(beginCall, func(n *State) { l.begin(n, g, &n.Gateways[g].Call) })
	}
	if call.Phase == begun {
		act(commitCall, func(n *State) { l.commit(n, g, &n.Gateways[g].Call) })
	}
	if late.Phase == sent && !locked {
		act(beginLate, func(n *State) {
			l.begin(n, g, &n.Late[g])
			n.dropReply(g)
		})
	}
	if late.Phase == begun {
		act(commitLate, func(n *State) {
			l.commit(n, g, &n.Late[g])
			n.dropReply(g)
		})
	}
	if l.mayReap(s, g) && (!locked || l.breaks(HoldGatewayLock)) {
		act(reapGateway, func(n *State) { l.reap(n, g) })
	}
}

// dropReply drops the reply to a late call: its connection is lost.
func (s *State) dropReply(g int) {
	if s.Late[g].Phase == committed {
		s.Late[g] = Call{}
	}
}

// mayReap reports whether a gateway's heartbeats have stopped, and it has not been reaped since.
func (l *Ledger) mayReap(s *State, g int) bool {
	gw := &s.Gateways[g]
	silent := gw.Process != running || gw.Cut
	if !silent || gw.Epoch != s.DB.Epoch[g] {
		return false
	}
	if !l.breaks(RaiseEpoch) {
		return true
	}
	for r := range l.Requests { // without a raised epoch, there is something to reap or not
		row := &s.DB.Rows[r]
		if int(l.Requests[r].Gateway) == g && (row.InFlight || row.Waiter != noDecision) {
			return true
		}
	}
	return false
}
