package budget

import (
	"context"
	"time"

	"basegate/database"
)

// SetClock sets the clock of a Ledger that has not started. Unlike the time of a synctest bubble, it may be set back.
func (l *Ledger) SetClock(clock func() time.Time) { l.clock = clock }

// Overdrawn returns the first cap of a payer that used and reserved tokens together exceed, or nil.
func (l *Ledger) Overdrawn(p Payer) *Exceeded {
	for _, c := range l.Balance(p).Caps() {
		if c.Used+c.Reserved > c.Limit {
			return &c
		}
	}
	return nil
}

// Reserved returns the tokens reserved by all requests.
func (l *Ledger) Reserved() int64 {
	return l.Load().Reserved
}

// Backlog returns the number of settlements queued for retry.
func (l *Ledger) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.backlog)
}

// Database returns the database of the ledger.
func (l *Ledger) Database() *database.DB { return l.db }

// LoadMonth loads the counters of the current month, as Reserve does.
func (l *Ledger) LoadMonth(ctx context.Context) error { return l.loadMonth(ctx) }

// Months returns the number of months of which the ledger holds the counters.
func (l *Ledger) Months() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.months)
}

// OpenRow inserts the request's row in flight at once, as checkpoint does later, and waits until it is on disk.
func OpenRow(ctx context.Context, held Reservation) error {
	r := held.(*reservation)
	r.open(r.Progress())
	if r.openWrite == nil {
		return nil // the request has ended
	}
	return r.openWrite.Wait(ctx)
}

// Rollover evaluates the requests that have waited since before a new window began, as the maintenance does each second.
func (l *Ledger) Rollover(ctx context.Context) { l.rollover(ctx) }
