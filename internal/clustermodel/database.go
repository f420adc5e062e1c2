package clustermodel

// begin is the first part of a call in the database: the gateway's lock, the fence and the lane.
func (l *Ledger) begin(s *State, g int, c *Call) {
	db := &s.DB
	lane := &db.Lane[g]
	switch {
	case c.Epoch != db.Epoch[g] && !l.breaks(FenceCalls):
		c.Phase, c.Fence = committed, true
	case c.Seq == lane.Seq && !l.breaks(ReplayLane):
		c.Phase, c.Reply, c.Skipped = committed, lane.Reply, lane.Skipped
	case c.Seq < lane.Seq && !l.breaks(RefuseOldSequence):
		c.Phase = committed // an error for a connection on which no gateway waits
	default:
		c.Phase = begun
		const rules = FenceCalls | ReplayLane | RefuseOldSequence | ResendSameCall
		if c.Seq != lane.Seq+1 && !l.breaks(rules) {
			s.violate(sequenceGap)
		}
		if l.breaks(LockThenRead) {
			for r := range db.Rows {
				if db.Rows[r].Waiter == undecided {
					c.Seen |= 1 << r
				}
			}
		}
	}
}

// commit is the rest of a call, from the lock of the account to the commit.
func (l *Ledger) commit(s *State, g int, c *Call) {
	db := &s.DB
	if c.Epoch != db.Epoch[g] && l.Ignore&FenceCalls == 0 {
		s.violate(oldEpochWrote)
	}
	rolled := db.rollOver() && !l.breaks(GrantOnRollover)
	settles := false
	ops := c.Ops
	if c.Skip {
		ops = [maxRequests]Op{}
	}
	for r, op := range ops {
		switch op.Kind {
		case settleOp:
			c.Reply[r] = l.settle(s, r, op.Tokens)
			settles = true
		case checkpointOp:
			if db.Rows[r].InFlight {
				db.Rows[r].Progress = op.Tokens
			}
		case cancelOp:
			l.cancel(db, r)
			c.Reply[r] = done
			settles = true
		case noOp, admitOp:
		}
	}
	if rolled || settles && !l.breaks(GrantOnSettle) {
		l.grantAll(s, g, c.Seen)
	}
	for r, op := range ops {
		if op.Kind == admitOp {
			l.admit(s, g, r, c.Seen)
		}
	}
	l.collect(db, g, c)
	c.Phase, c.Skipped = committed, c.Skip
	db.Lane[g] = Lane{Seq: c.Seq, Reply: c.Reply, Skipped: c.Skip}
}

// rollOver begins a new window of the account if there is one.
func (db *Database) rollOver() bool {
	if db.Window == db.Today {
		return false
	}
	db.Past, db.Account, db.Window = db.Account, Counters{}, db.Today
	return true
}

// counters returns the account's counters of a window.
func (db *Database) counters(window uint8) *Counters {
	if window == db.Window {
		return &db.Account
	}
	return &db.Past
}

// settle charges a request and releases its lease.
func (l *Ledger) settle(s *State, r int, tokens uint8) Outcome {
	row := &s.DB.Rows[r]
	if !row.InFlight {
		if !l.breaks(DeleteReturning) {
			return absent
		}
		if row.Ended != notEnded {
			s.violate(chargedTwice)
		}
	}
	l.release(&s.DB, r, tokens)
	row.Ended, row.Charged = settled, tokens
	return done
}

// release deletes the row in flight, and replaces its reservation by a charge.
func (l *Ledger) release(db *Database, r int, tokens uint8) {
	row := &db.Rows[r]
	window := row.Window
	if l.breaks(ChargeInWindow) {
		window = db.Window
	}
	c := db.counters(window)
	c.Reserved -= row.Reserved
	c.Used += tokens
	db.Running[l.Requests[r].Key]--
	row.InFlight, row.Reserved, row.Progress = false, 0, 0
}

// cancel deletes a waiter, and releases the lease that may have been granted to it.
func (l *Ledger) cancel(db *Database, r int) {
	row := &db.Rows[r]
	row.Waiter, row.Ticket = noDecision, 0
	if row.InFlight && !l.breaks(FreeOnCancel) {
		l.release(db, r, 0)
		row.Window = 0
	}
}

// admit evaluates a new request after those that wait, and queues it if they or reservations block it.
func (l *Ledger) admit(s *State, g, r int, seen uint8) {
	db := &s.DB
	row := &db.Rows[r]
	if row.InFlight || row.Waiter != noDecision || row.Ended != notEnded {
		s.violate(admittedTwice)
		return
	}
	db.Ticket++
	row.Waiter, row.Ticket = undecided, db.Ticket
	if l.breaks(QueueBehind) {
		key := l.Requests[r].Key
		if tokens, fits := l.evaluate(db, r); fits && tokens > 0 && l.hasSlot(db.Running, key) {
			l.grant(s, r, tokens)
			return
		}
	}
	l.grantAll(s, g, seen|1<<r)
}

// evaluate returns the tokens that a request may have, 0 if the cap refuses it. It returns false if reservations block it.
func (l *Ledger) evaluate(db *Database, r int) (tokens uint8, fits bool) {
	demand := l.Requests[r].Demand
	if db.Cap == 0 {
		return demand, true
	}
	a := &db.Account
	if a.Used >= db.Cap {
		return 0, true
	}
	tokens = min(demand, db.Cap-a.Used)
	if l.breaks(CountReserved) {
		return tokens, true
	}
	return tokens, a.Used+a.Reserved+tokens <= db.Cap
}

// grantAll decides the waiters in the order of their tickets. It skips those whose key or account has no slot beside its leases and
// the earlier requests that have a slot and wait for tokens. Gateways but the caller's are notified.
func (l *Ledger) grantAll(s *State, caller int, seen uint8) {
	db := &s.DB
	held := db.Running
	blocked := false
	for _, r := range db.queue() {
		row, key := &db.Rows[r], l.Requests[r].Key
		if l.breaks(LockThenRead) && seen&(1<<r) == 0 {
			continue
		}
		if key == 0 && db.Paused {
			row.Waiter = refused
			l.notify(s, caller, r)
			continue
		}
		if !l.hasSlot(held, key) {
			continue
		}
		switch tokens, fits := l.evaluate(db, r); {
		case tokens == 0:
			row.Waiter = refused
		case blocked || !fits:
			blocked = true
			held[key]++
			continue
		default:
			l.grant(s, r, tokens)
			held[key]++
		}
		l.notify(s, caller, r)
	}
}

// queue returns the undecided waiters in the order of their tickets.
func (db *Database) queue() []int {
	var all [maxRequests]int
	n := 0
	for ticket := uint8(1); ticket <= db.Ticket; ticket++ {
		for r := range db.Rows {
			if db.Rows[r].Waiter == undecided && db.Rows[r].Ticket == ticket {
				all[n] = r
				n++
			}
		}
	}
	return all[:n]
}

// grant reserves tokens and a slot for a waiter.
func (l *Ledger) grant(s *State, r int, tokens uint8) {
	db := &s.DB
	row, key := &db.Rows[r], l.Requests[r].Key
	for other := range l.Requests {
		earlier := db.Rows[other].Waiter == undecided && db.Rows[other].Ticket < row.Ticket
		itsKey := l.Requests[other].Key
		if earlier && (itsKey == key || l.hasSlot(db.Running, itsKey)) {
			s.violate(overtaken)
		}
	}
	row.Waiter, row.InFlight, row.Reserved, row.Window = granted, true, tokens, db.Window
	db.Account.Reserved += tokens
	db.Running[key]++
}

// notify wakes the gateway of a waiter that was decided by another one.
func (l *Ledger) notify(s *State, caller, r int) {
	g := l.Requests[r].Gateway
	if int(g) != caller && !l.breaks(NotifyGrants) && !s.Gateways[g].Cut && s.Gateways[g].Process != dead {
		s.Gateways[g].Wake = true
	}
}

// collect moves the decisions on the gateway's waiters into the reply.
func (l *Ledger) collect(db *Database, g int, c *Call) {
	for r := range l.Requests {
		row := &db.Rows[r]
		if int(l.Requests[r].Gateway) != g {
			continue
		}
		switch row.Waiter {
		case granted:
			c.Reply[r] = grants1
			if row.Reserved == 2 {
				c.Reply[r] = grants2
			}
			row.Waiter, row.Ticket = noDecision, 0
		case refused:
			c.Reply[r] = refuses
			row.Waiter, row.Ticket = noDecision, 0
		case undecided:
			if c.Ops[r].Kind == admitOp && !c.Skip {
				c.Reply[r] = waits
			}
		case noDecision:
		}
	}
}

// reap gives a gateway up: it raises the epoch, ends what is in flight, deletes the waiters and grants to others.
func (l *Ledger) reap(s *State, g int) {
	db := &s.DB
	db.rollOver()
	if !l.breaks(RaiseEpoch) {
		db.Epoch[g]++
	}
	for r := range l.Requests {
		row := &db.Rows[r]
		if int(l.Requests[r].Gateway) != g {
			continue
		}
		if row.InFlight {
			progress := row.Progress
			l.release(db, r, progress)
			row.Ended, row.Charged = interrupted, progress
		}
		if !l.breaks(DropWaiters) {
			row.Waiter, row.Ticket = noDecision, 0
		}
	}
	db.Lane[g] = Lane{}
	if !l.breaks(GrantOnReap) {
		l.grantAll(s, -1, ^uint8(0))
	}
}

func (s *State) violate(v Violation) {
	if s.Broken == noViolation {
		s.Broken = v
	}
}
