package budget

import (
	"context"
	"errors"

	"basegate/budget/usage"
	"basegate/database"
)

// ErrReserved is returned by TryReserve if only the reservations of other requests stand in the way.
var ErrReserved = errors.New("other requests have reserved the tokens")

// TryReserve is Reserve without waiting: it returns ErrReserved at once if only reservations of other requests stand in
// the way. Requests that wait in Reserve come first.
func (l *Ledger) TryReserve(ctx context.Context, p Payer, r Request, d Demand, requester Requester) (Reservation, error) {
	return l.reserve(ctx, &p, &Waiter{Request: r, Demand: d, NoWait: true}, requester)
}

// Settlement is the end of a request that its caller writes in a transaction of its own, together with what must be on
// disk with the charge or not at all. Until Commit or Abandon, the tokens stay reserved. The caller must call Write, in a
// transaction, and then Commit, or else Abandon.
type Settlement interface {
	// Write inserts the request's row. It may be called again if the transaction has failed, even if it is
	// not known whether it reached the disk. The error is ErrDuplicate if another request has the same id, and
	// ErrNotReserved if another gateway has ended the reservation.
	Write(ctx context.Context, tx database.Tx) error

	// Commit replaces the reservation by the charge. It is called once the transaction is on disk.
	Commit()

	// Abandon charges nothing, and closes the request's row as interrupted, if it has one. It is called if the transaction
	// will not be tried again.
	Abandon()
}

// WriteSettlements writes settlements of one ledger in one transaction, by one statement if the ledger can.
func WriteSettlements(ctx context.Context, tx database.Tx, all []Settlement) error {
	var charged []Settlement
	for _, s := range all {
		if _, free := s.(*replayedSettlement); !free {
			charged = append(charged, s)
		} else if err := s.Write(ctx, tx); err != nil {
			return err
		}
	}
	if len(charged) == 0 {
		return nil
	}
	group, ok := charged[0].(interface {
		WriteAll(ctx context.Context, tx database.Tx, all []Settlement) error
	})
	if ok {
		return group.WriteAll(ctx, tx, charged)
	}
	for _, s := range charged {
		if err := s.Write(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (r *reservation) Prepare(o Outcome) Settlement {
	var s Settlement
	r.endOnce.Do(func() {
		s = &pendingSettlement{reservation: r, row: r.close(usage.Settled, o), deferred: true}
	})
	return s
}

func (s *pendingSettlement) Write(ctx context.Context, tx database.Tx) error {
	if s.attempted {
		return s.rewrite(ctx, tx)
	}
	s.attempted = true
	return s.insert(ctx, tx)
}

func (s *pendingSettlement) Commit() {
	s.reservation.charge(s.row.outcome.Prompt, s.row.outcome.Completion, usage.Settled)
}

func (s *pendingSettlement) Abandon() {
	s.reservation.charge(0, 0, usage.Interrupted)
	s.row.state, s.row.outcome.Prompt, s.row.outcome.Completion = usage.Interrupted, 0, 0
	s.reservation.ledger.writeSettlement(s, false)
	s.reservation.ledger.enqueueRetry(s)
}
