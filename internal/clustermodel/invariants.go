package clustermodel

// Check returns the invariant that a state violates.
func (l *Ledger) Check(s *State) string {
	if s.Broken != noViolation {
		return violations[s.Broken]
	}
	if problem := l.checkCounters(&s.DB); problem != "" {
		return problem
	}
	for r := range l.Requests {
		if problem := checkRow(&s.DB.Rows[r], &s.Requests[r]); problem != "" {
			return problem
		}
	}
	if s.DB.Window == s.DB.Today {
		after := *s
		l.grantAll(&after, -1, ^uint8(0))
		if after.DB != s.DB && l.Ignore&LockThenRead == 0 {
			return "a committed state leaves a request waiting that a free slot and free tokens would admit"
		}
	}
	return ""
}

var violations = [...]string{
	oldEpochWrote: "a call with an old epoch changed the ledger",
	admittedTwice: "a request was admitted twice: unique_violation, for this call and every time it is sent again",
	chargedTwice:  "a request was charged twice",
	overtaken:     "a request was granted before an earlier one that waits for the same",
	sequenceGap:   "a call was answered with lost, and the database has lost no commit",
	unreserved:    "a request was sent to a backend without a reservation",
}

// checkCounters compares the counters with the caps, the limits and the rows.
func (l *Ledger) checkCounters(db *Database) string {
	var runs [maxKeys]uint8
	var today, past Counters
	for r := range l.Requests {
		row := &db.Rows[r]
		c := &today
		if row.Window != db.Window {
			c = &past
		}
		if row.InFlight {
			runs[l.Requests[r].Key]++
			c.Reserved += row.Reserved
		}
		if row.Ended != notEnded {
			c.Used += row.Charged
		}
	}
	for k := range runs {
		if runs[k] > l.Limits[k] {
			return "a key holds more leases than it has slots"
		}
	}
	switch {
	case l.Account > 0 && sum(runs) > l.Account:
		return "an account holds more leases than it has slots"
	case runs != db.Running:
		return "the number of running requests is not that of the rows in flight"
	case today != db.Account || past != db.Past:
		return "the account's counters are not the sums of its rows"
	case db.Cap > 0 && max(today.Used+today.Reserved, past.Used+past.Reserved) > db.Cap:
		return "used and reserved tokens exceed the cap"
	}
	return ""
}

// checkRow compares the row of a request with what its client has seen.
func checkRow(row *Row, q *Local) string {
	switch {
	case row.InFlight && row.Ended != notEnded:
		return "a request has ended and is in flight"
	case q.Client == sawAll && (row.Ended != settled || row.Charged != q.Tokens):
		return "a client has seen a complete response that is not settled"
	}
	return ""
}

// Final returns what is wrong with a state in which only the environment can act.
func (l *Ledger) Final(s *State) string {
	if l.Safety {
		return ""
	}
	for r := range l.Requests {
		row, q := &s.DB.Rows[r], &s.Requests[r]
		gw := &s.Gateways[l.Requests[r].Gateway]
		switch {
		case gw.Process == running && gw.Cut: // it waits until the network heals, and has been reaped
		case gw.Process == running && q.Place != finished:
			return "a request never ends: its gateway runs, and nothing is left to do"
		case gw.Process == running && q.Client == present:
			return "a client never gets the end of a response or an error"
		}
		switch {
		case row.InFlight:
			return "a lease is never released"
		case row.Waiter != noDecision:
			return "a waiter is never removed"
		}
	}
	return ""
}
