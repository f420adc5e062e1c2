package cluster

import (
	"context"
	"fmt"

	"go.uber.org/zap"
)

// isTaken reports whether an epoch was ended by another process that has begun one under the same name, and not because
// another gateway took this one for dead. Two such processes would end each other's epochs for ever.
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
