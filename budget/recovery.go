package budget

import (
	"context"

	"go.uber.org/zap"

	"basegate/database"
)

// recover marks the rows that a crash has left in flight as interrupted, and loads the counters of the current month.
func (l *Ledger) recover(ctx context.Context) error {
	var interrupted int64
	err := l.db.WriteExclusive(ctx, func(tx database.Tx) (err error) {
		if interrupted, err = interruptInFlight(ctx, tx); err != nil {
			return err
		}
		return recoverLastUses(ctx, tx)
	})
	if err != nil {
		return err
	}
	if interrupted > 0 {
		l.log.Info("requests that a crash left in flight are marked as interrupted", zap.Int64("requests", interrupted))
	}
	return l.loadMonth(ctx)
}

// checkpoint writes the progress of the open requests that have advanced since the last checkpoint. Those that fail are
// written with the next one.
func (l *Ledger) checkpoint(ctx context.Context) {
	l.mu.Lock()
	var changed []*Reservation
	for _, r := range l.open {
		if r.checkpointed != r.progress() {
			changed = append(changed, r)
		}
	}
	l.mu.Unlock()
	for len(changed) > 0 {
		batch := changed[:min(writeBatch, len(changed))]
		changed = changed[len(batch):]
		if l.writeProgress(ctx, batch) != nil {
			return // package database logs the outage
		}
	}
}

func (l *Ledger) writeProgress(ctx context.Context, batch []*Reservation) error {
	written, found := make([]progress, len(batch)), make([]bool, len(batch))
	for i, r := range batch {
		written[i] = r.progress()
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		ctx := context.WithoutCancel(ctx)
		for i, r := range batch {
			if r.duplicate {
				continue
			}
			var err error
			if found[i], err = updateProgress(ctx, tx, r.request.ID, written[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, r := range batch {
		if found[i] { // else the row has not been inserted yet, or is settled
			r.checkpointed = written[i]
		}
	}
	return nil
}
