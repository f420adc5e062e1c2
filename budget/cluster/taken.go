package cluster

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"basegate/budget"
)

// Ready returns database.ErrUnavailable if requests cannot be admitted at present: the database does not reply, or the
// gateway's epoch has ended and the next one has not begun.
func (l *Ledger) Ready() error {
	e := l.epoch.Load()
	if e == nil || l.closed.Load() {
		return budget.ErrClosed
	}
	for _, lane := range e.lanes {
		if err := lane.ready(); err != nil {
			return err
		}
	}
	return nil
}

// ready returns why the lane can send no call at present.
func (l *lane) ready() error {
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	if failed != nil {
		return failed
	}
	return l.unavailable()
}

// isTaken reports whether an epoch was ended by another process that has begun one under the same name, and not because
// another gateway declared this one dead. Two such processes would end each other's epochs for ever.
func (l *Ledger) isTaken(ctx context.Context, ended *epoch) (taken bool, err error) {
	const text = `SELECT alive AND epoch > $2 FROM gateway WHERE id = $1`
	if err := l.db.Pool().QueryRow(ctx, text, ended.gateway, ended.number).Scan(&taken); err != nil {
		return false, fmt.Errorf("read the gateway's epoch: %w", err)
	}
	if taken {
		l.log.Error("another process has this gateway's name", zap.String("name", l.settings.Name))
		if l.settings.NameTaken != nil {
			l.settings.NameTaken()
		}
	}
	return taken, nil
}
