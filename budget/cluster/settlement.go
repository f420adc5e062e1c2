package cluster

import (
	"context"
	"errors"
	"fmt"

	"basegate/budget"
	"basegate/budget/usage"
	"basegate/database"
)

// deferredSettlement is the budget.Settlement of a Ledger.
type deferredSettlement struct {
	reservation *reservation
	settle      *settlement
	written     *transaction // by the latest Write
}

// Prepare implements budget.Reservation.
func (r *reservation) Prepare(o budget.Outcome) budget.Settlement {
	var s budget.Settlement
	r.once.Do(func() {
		prepared := &deferredSettlement{reservation: r, settle: r.newSettlement(usage.Settled, &o)}
		r.ending = prepared.operation()
		r.ending.complete(decision{}) // for a Settle that comes too late
		r.lane.close(r)
		s = prepared
	})
	return s
}

func (s *deferredSettlement) operation() *operation {
	return &operation{account: s.reservation.account, key: s.reservation.key, settle: s.settle, done: make(chan decision, 1)}
}

// Write implements budget.Settlement. Until the transaction ends, the account is locked. The error is budget.ErrNotReserved if the
// gateway's epoch has ended.
func (s *deferredSettlement) Write(ctx context.Context, tx database.Tx) error {
	return s.WriteAll(ctx, tx, []budget.Settlement{s})
}

// WriteAll writes settlements of one ledger by one transaction of the ledger for each of its epochs.
func (*deferredSettlement) WriteAll(ctx context.Context, tx database.Tx, all []budget.Settlement) error {
	query := func(ctx context.Context, text string, args []any, into ...any) error {
		return tx.QueryRowContext(ctx, text, args...).Scan(into...)
	}
	byEpoch := map[*epoch][]*deferredSettlement{}
	for _, other := range all {
		d, ok := other.(*deferredSettlement)
		if !ok {
			return errors.New("write settlements: they are of another ledger")
		}
		e := d.reservation.lane.epoch
		byEpoch[e] = append(byEpoch[e], d)
	}
	for e, settlements := range byEpoch {
		if err := e.write(ctx, query, settlements); err != nil {
			return err
		}
	}
	return nil
}

// write settles in a transaction of the caller's.
func (e *epoch) write(ctx context.Context, q query, all []*deferredSettlement) error {
	batch, t := make([]*operation, len(all)), newTransaction(e.Ledger, e.gateway, e.number, noLane)
	times := make([]int64, len(all))
	for i, s := range all {
		batch[i], times[i] = s.operation(), s.reservation.row.time
	}
	selected := selectionOf(batch)
	selected.wait, selected.times = true, times
	err := t.update(ctx, q, selected, func() { t.apply(batch) })
	switch {
	case errors.Is(err, ErrFenced):
		e.fence(ErrFenced)
		return fmt.Errorf("write settlements: %w: %w", budget.ErrNotReserved, ErrFenced)
	case err != nil:
		return fmt.Errorf("write settlements: %w", err)
	}
	for _, r := range t.results {
		if r.decision.err != nil {
			return fmt.Errorf("write settlements: %w", budget.ErrNotReserved)
		}
	}
	for _, s := range all {
		s.written = t
	}
	return nil
}

// update makes a transaction of the ledger beside the lanes, in a transaction of the database that the caller commits.
func (t *transaction) update(ctx context.Context, q query, s *selection, apply func()) error {
	for {
		if _, err := t.lock(ctx, q, &call{}, s); err != nil {
			return err
		}
		if keys := t.keysOfEnded(s.keys); len(keys) > 0 {
			s.keys = append(s.keys, keys...)
			t.reset()
			continue
		}
		apply()
		if !t.incomplete(s) {
			break
		}
	}
	_, err := t.commit(ctx, q, &call{})
	return err
}

// Commit implements budget.Settlement.
func (s *deferredSettlement) Commit() {
	e := s.reservation.lane.epoch
	e.metrics.CountEnded(usage.Settled)
	e.recent.add(s.settle)
	if t := s.written; t != nil { // of several settlements of one transaction, the first one ends it
		e.raise(t.alarms)
		t.alarms = nil
	}
}

// Abandon implements budget.Settlement.
func (s *deferredSettlement) Abandon() {
	r := s.reservation
	s.settle.State, s.settle.Prompt, s.settle.Completion = usage.Interrupted, 0, 0
	r.lane.epoch.metrics.CountEnded(usage.Interrupted)
	_ = r.lane.enqueue(s.operation()) // if the epoch has ended, so has the reservation
}
