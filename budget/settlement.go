package budget

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/database"
)

// pendingSettlement is the final state of a row until it is on disk. If its first write fails, it goes to the backlog,
// which the maintenance goroutine retries. It is the Settlement of a Ledger if deferred is set.
type pendingSettlement struct {
	reservation *reservation
	row         row
	write       *database.Pending // the latest attempt; owned by the maintenance goroutine once queued is set
	queued      bool              // it is or was in the backlog; guarded by the ledger's lock
	attempted   bool              // an earlier attempt may have reached the disk although it failed
	deferred    bool              // a row on disk is kept, since the rest of its transaction is on disk too
	finished    bool              // on disk, or given up; owned by the maintenance goroutine
}

// writeSettlement submits an attempt to write the settlement. If wait is true, the caller goes on to wait for it.
func (l *Ledger) writeSettlement(s *pendingSettlement, wait bool) {
	if s.attempted {
		s.write = l.db.Enqueue(func(tx database.Tx) error { return s.rewrite(l.ctx, tx) })
		return
	}
	s.attempted = true
	insert := func(tx database.Execer) error { return s.insert(l.ctx, tx) }
	switch {
	case !wait:
		s.write = l.db.SubmitStatement(insert)
	case s.reservation.openWrite == nil && s.row.outcome.Receipt == nil: // its row is all that is written
		s.write = l.db.EnqueueInsert(insertEndedRows, &s.row, insert)
	default:
		s.write = l.db.EnqueueStatement(insert)
	}
}

// insert writes the settlement for the first time.
func (s *pendingSettlement) insert(ctx context.Context, tx database.Execer) error {
	r := s.reservation
	var err error
	switch {
	case r.duplicate:
		return ErrDuplicate
	case r.openWrite != nil:
		err = r.asDuplicate(true, moveEnded(ctx, tx, &s.row))
	default:
		err = r.asDuplicate(insertEnded(ctx, tx, &s.row))
	}
	if err != nil || s.row.outcome.Receipt == nil {
		return err
	}
	return InsertReceipt(ctx, tx, s.row.request.KeyID, s.row.outcome.Receipt)
}

// rewrite writes the settlement after an attempt that has failed, but may have reached the disk.
func (s *pendingSettlement) rewrite(ctx context.Context, tx database.Tx) error {
	if s.reservation.duplicate {
		return ErrDuplicate
	}
	if err := deleteInFlight(ctx, tx, &s.row); err != nil {
		return err
	}
	written, err := hasEnded(ctx, tx, &s.row)
	if err != nil {
		return err
	}
	switch {
	case written && s.deferred:
		return nil
	case written:
		return usage.Correct(ctx, tx, s.row.request.ID, func() error { return updateEnded(ctx, tx, &s.row) })
	}
	return s.reservation.asDuplicate(insertEnded(ctx, tx, &s.row))
}

// enqueueRetry adds a settlement to the backlog, unless it is there or the backlog is full.
func (l *Ledger) enqueueRetry(s *pendingSettlement) {
	l.mu.Lock()
	full := !s.queued && len(l.backlog) >= maxBacklog
	if !s.queued && !full {
		s.queued = true
		l.backlog = append(l.backlog, s)
	}
	l.mu.Unlock()
	if full {
		l.giveUp(s, errBacklogFull)
	}
}

var errBacklogFull = errors.New("the backlog of rows that could not be written is full")

// giveUp logs a settlement that will not be written. Its row stays in flight, or does not exist.
func (l *Ledger) giveUp(s *pendingSettlement, err error) {
	l.metrics.Lost.Inc()
	l.log.Error("a request's settlement could not be written to the ledger", zap.String("request_id", s.row.request.ID),
		zap.Int64("prompt_tokens", s.row.outcome.Prompt), zap.Int64("completion_tokens", s.row.outcome.Completion),
		zap.Error(err))
}

// writeBatch is how many rows the maintenance goroutine writes at a time: half of what fits into one transaction.
const writeBatch = 256

// retryBacklog writes the backlog again. It tries one settlement first, and the others only while that succeeds.
func (l *Ledger) retryBacklog(ctx context.Context) {
	l.mu.Lock()
	backlog := slices.Clone(l.backlog)
	l.mu.Unlock()
	if len(backlog) == 0 {
		return
	}
	failed := l.waitForWrites(ctx, backlog)
	for n := 1; len(failed) > 0; n = writeBatch {
		batch := failed[:min(n, len(failed))]
		failed = failed[len(batch):]
		for _, s := range batch {
			l.writeSettlement(s, true)
		}
		if len(l.waitForWrites(ctx, batch)) > 0 {
			break
		}
	}
	l.mu.Lock()
	l.backlog = slices.DeleteFunc(l.backlog, func(s *pendingSettlement) bool { return s.finished })
	l.mu.Unlock()
}

// waitForWrites waits for the latest attempts and returns the settlements to retry: those that were cancelled, or failed because
// the database could not be written. It gives up those that failed otherwise.
func (l *Ledger) waitForWrites(ctx context.Context, all []*pendingSettlement) (failed []*pendingSettlement) {
	for _, s := range all {
		err := s.write.Wait(ctx)
		switch {
		case err == nil:
			s.finished = true
		case errors.Is(err, database.ErrUnavailable), errors.Is(err, database.ErrCancelled):
			failed = append(failed, s)
		default:
			s.finished = true
			l.giveUp(s, err)
		}
	}
	return failed
}
