package budget

import (
	"context"
	"errors"

	"basegate/database"
	"basegate/usage"
)

// ErrReserved is returned by TryReserve if only the reservations of other requests stand in the way.
var ErrReserved = errors.New("other requests have reserved the tokens")

// TryReserve is Reserve without waiting: it returns ErrReserved at once if only reservations of other requests stand in
// the way. Requests that wait in Reserve come first.
func (l *Ledger) TryReserve(ctx context.Context, p Payer, r Request, d Demand, requester Requester) (*Reservation, error) {
	return l.reserveFor(ctx, &waiter{payer: p, request: r, demand: d, impatient: true}, requester)
}

// FitsUnused reports whether a demand would fit all the caps of a payer if nothing of them were used.
func (l *Ledger) FitsUnused(p Payer, d Demand) bool {
	d = d.normalized()
	output := product(d.Candidates, d.MaxTokens)
	caps := bucket{key: new(monthCounters), account: new(monthCounters), date: dateOf(l.clock())}.capChecks(&p)
	for _, c := range caps.all() {
		if !c.fitsBesideReserved(d.PromptTokens, output) {
			return false
		}
	}
	return true
}

// Settlement is the end of a request that its caller writes in a transaction of its own, together with what must be on
// disk with the charge or not at all. Until Commit or Abandon, the tokens stay reserved.
type Settlement struct {
	reservation *Reservation
	row         row
	attempted   bool // Write was called before
}

// Prepare ends the request as Settle does, but writes nothing and charges nothing yet. It returns nil if the reservation
// has been ended. The caller must call Write, in a transaction, and then Commit, or else Abandon.
func (r *Reservation) Prepare(o Outcome) *Settlement {
	var s *Settlement
	r.endOnce.Do(func() {
		r.ended.Store(true)
		r.openOnce.Do(func() {})
		o.Prompt, o.Completion = max(o.Prompt, 0), max(o.Completion, 0)
		if o.Backend == "" {
			o.Backend = r.progress().backend
		}
		s = &Settlement{reservation: r, row: row{request: r.request, state: usage.Settled, outcome: o}}
	})
	return s
}

// Write inserts the request's row. It may be called again if the transaction has failed, even if it is not known whether
// it reached the disk.
func (s *Settlement) Write(ctx context.Context, tx database.Tx) error {
	if !s.attempted {
		s.attempted = true
		if s.reservation.openWrite != nil {
			return moveEnded(ctx, tx, &s.row)
		}
		_, err := insertEnded(ctx, tx, &s.row)
		return err
	}
	if err := deleteInFlight(ctx, tx, &s.row); err != nil {
		return err
	}
	written, err := hasEnded(ctx, tx, &s.row)
	if err != nil || written {
		return err
	}
	_, err = insertEnded(ctx, tx, &s.row)
	return err
}

// Commit replaces the reservation by the charge. It is called once the transaction is on disk.
func (s *Settlement) Commit() { s.end(s.row.outcome.Prompt, s.row.outcome.Completion, usage.Settled) }

// Abandon charges nothing, and closes the request's row as interrupted, if it has one. It is called if the transaction
// will not be tried again.
func (s *Settlement) Abandon() {
	s.end(0, 0, usage.Interrupted)
	s.row.state, s.row.outcome.Prompt, s.row.outcome.Completion = usage.Interrupted, 0, 0
	p := &pendingSettlement{reservation: s.reservation, row: s.row}
	s.reservation.ledger.writeSettlement(p, false)
	s.reservation.ledger.enqueueRetry(p)
}

func (s *Settlement) end(prompt, completion int64, state usage.State) {
	l := s.reservation.ledger
	l.mu.Lock()
	l.release(s.reservation, prompt, completion)
	l.mu.Unlock()
	l.metrics.countEnded(state)
}
