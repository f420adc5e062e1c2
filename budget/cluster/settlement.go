package cluster

import (
	"context"
	"encoding/json"
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
}

// Prepare implements budget.Reservation.
func (r *reservation) Prepare(o budget.Outcome) budget.Settlement {
	var s budget.Settlement
	r.once.Do(func() {
		prepared := &deferredSettlement{r, r.newSettlement(usage.Settled, &o)}
		prepared.settle.Time = r.row.time
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

// Write implements budget.Settlement. The request is settled when the transaction is committed. The error is
// budget.ErrNotReserved if the gateway's epoch has ended.
func (s *deferredSettlement) Write(ctx context.Context, tx database.Tx) error {
	return s.WriteAll(ctx, tx, []budget.Settlement{s})
}

// WriteAll writes settlements of one ledger by one statement for each of its epochs.
func (*deferredSettlement) WriteAll(ctx context.Context, tx database.Tx, all []budget.Settlement) error {
	byEpoch := map[*epoch][]*settlement{}
	for _, other := range all {
		d, ok := other.(*deferredSettlement)
		if !ok {
			return errors.New("write settlements: they are of another ledger")
		}
		e := d.reservation.lane.epoch
		byEpoch[e] = append(byEpoch[e], d.settle)
	}
	for e, settle := range byEpoch {
		if err := e.prepare(ctx, tx, settle); err != nil {
			return err
		}
	}
	return nil
}

func (e *epoch) prepare(ctx context.Context, tx database.Tx, settle []*settlement) error {
	text, err := json.Marshal(settle)
	if err != nil {
		return fmt.Errorf("encode settlements: %w", err)
	}
	var status string
	err = tx.QueryRowContext(ctx, `SELECT ledger_prepare_v1($1, $2, $3)`, e.gateway, e.number, string(text)).Scan(&status)
	switch {
	case err != nil:
		return fmt.Errorf("prepare settlements: %w", err)
	case status == "fenced":
		e.fence(ErrFenced)
		return fmt.Errorf("prepare settlements: %w: %w", budget.ErrNotReserved, ErrFenced)
	case status != "ok":
		return fmt.Errorf("prepare settlements: %w", budget.ErrNotReserved)
	}
	return nil
}

// Commit implements budget.Settlement.
func (s *deferredSettlement) Commit() {
	e := s.reservation.lane.epoch
	e.metrics.CountEnded(usage.Settled)
	e.recent.add(s.settle)
}

// Abandon implements budget.Settlement.
func (s *deferredSettlement) Abandon() {
	r := s.reservation
	s.settle.State, s.settle.Prompt, s.settle.Completion = usage.Interrupted, 0, 0
	r.lane.epoch.metrics.CountEnded(usage.Interrupted)
	_ = r.lane.enqueue(s.operation()) // if the epoch has ended, so has the reservation
}
