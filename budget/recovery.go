package budget

import (
	"context"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// recover marks the rows that a crash has left in flight as interrupted, and loads the counters.
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
	if err := l.loadLives(ctx); err != nil {
		return err
	}
	return l.loadMonth(ctx)
}

const (
	// progressInterval is the time between two calls of checkpoint.
	progressInterval = 100 * time.Millisecond
	// openAge is the age at which a request gets its row in flight, so that it has one when it is a second old. Most
	// requests end sooner and are written once, at their end; a crash before that loses them.
	openAge = 900 * time.Millisecond
	// checkpointAge is how old a row in flight becomes before it is written again.
	checkpointAge = time.Second
)

// checkpoint inserts the rows of the open requests that have reached openAge, and writes the progress of those whose
// row is older than checkpointAge and that have advanced.
func (l *Ledger) checkpoint(ctx context.Context) {
	now := time.Now()
	var opened, changed []*reservation
	l.mu.Lock()
	for _, r := range l.open {
		switch {
		case r.rowless:
		case r.writtenAt.IsZero():
			if now.Sub(r.admitted) >= openAge {
				opened = append(opened, r)
			}
		case now.Sub(r.writtenAt) >= checkpointAge && r.checkpointed != r.Progress():
			changed = append(changed, r)
		}
	}
	l.mu.Unlock()
	for _, r := range opened {
		r.writtenAt = now
		if p := r.Progress(); r.open(p) {
			r.checkpointed = p
		}
	}
	for len(changed) > 0 {
		batch := changed[:min(writeBatch, len(changed))]
		changed = changed[len(batch):]
		for _, r := range batch {
			r.writtenAt = now
		}
		if l.writeProgress(ctx, batch) != nil {
			return // package database logs the outage
		}
	}
}

func (l *Ledger) writeProgress(ctx context.Context, batch []*reservation) error {
	written, found := make([]Progress, len(batch)), make([]bool, len(batch))
	for i, r := range batch {
		written[i] = r.Progress()
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
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
