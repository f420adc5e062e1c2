package clustermodel

// canonical removes from a state what no later action depends on, so that fewer states are different.
func (l *Ledger) canonical(s *State) {
	for r := range l.Requests {
		q := &s.Requests[r]
		if q.Place != finished {
			continue
		}
		c := Local{Place: finished, Client: sawError}
		if q.Client == sawAll || q.Client == present {
			c.Client, c.Tokens = q.Client, q.Tokens
		}
		*q = c
	}
	for g := range s.Gateways {
		l.canonicalLane(s, g)
	}
	queue := s.DB.queue()
	s.DB.Ticket = uint8(len(queue))
	for i, r := range queue {
		s.DB.Rows[r].Ticket = uint8(i + 1)
	}
}

// canonicalLane drops copies of calls that the database will refuse and replies that nothing can ask for, and counts the
// sequences from the least one.
func (l *Ledger) canonicalLane(s *State, g int) {
	gw, late, lane := &s.Gateways[g], &s.Late[g], &s.DB.Lane[g]
	const rules = FenceCalls | ReplayLane | RefuseOldSequence | ResendSameCall
	if late.Phase == sent && l.Broken&rules == 0 && (late.Epoch != s.DB.Epoch[g] || late.Seq <= lane.Seq) {
		*late = Call{}
	}
	if !l.breaks(SkipRefused) && (gw.Call.Phase == noCall || gw.Call.Seq != lane.Seq) {
		lane.Reply, lane.Skipped = Reply{}, false
	}
	if !gw.Joined || gw.Epoch != s.DB.Epoch[g] {
		return
	}
	least := min(gw.Seq, lane.Seq)
	if late.Phase != noCall {
		if late.Epoch != gw.Epoch {
			return
		}
		least = min(least, late.Seq)
	}
	gw.Seq -= least
	lane.Seq -= least
	if gw.Call.Phase != noCall {
		gw.Call.Seq -= least
	}
	if late.Phase != noCall {
		late.Seq -= least
	}
}
