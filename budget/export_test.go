package budget

import "time"

// SetClock gives a Ledger that has not started a clock that may go backwards, which time in a synctest bubble does not.
func (l *Ledger) SetClock(clock func() time.Time) { l.clock = clock }

// Overdrawn is the first counter of a payer on which used and reserved together pass a cap.
func (l *Ledger) Overdrawn(p Payer) *Exceeded {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seat(l.parties(&p))
	caps := s.gauges(&p)
	for _, g := range caps.all() {
		if g.tally.used+g.tally.reserved > g.limit {
			return g.exceeded(s.now)
		}
	}
	return nil
}

// Waiting is how many wait.
func (l *Ledger) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// Reserved is what is reserved by all.
func (l *Ledger) Reserved() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserved
}

// Backlog is how many rows the ledger sees to.
func (l *Ledger) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.backlog)
}
