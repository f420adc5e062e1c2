package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/database/postgres"
	"basegate/internal/wait"
)

// EndLeft does what a gateway does when another one has ended: it ends what epochs have left that have ended. It is for commands.
func EndLeft(ctx context.Context, db *postgres.DB) (interrupted int64, err error) {
	return New(db, zap.NewNop(), Settings{}).endLeft(ctx)
}

// endLeft ends what the ended epochs of any gateway have left: requests in flight, as interrupted and charged by their last
// checkpoint, and requests that wait. It returns how many were in flight. Each account is a transaction, so that others are not delayed.
func (l *Ledger) endLeft(ctx context.Context) (interrupted int64, err error) {
	rows, _ := l.db.Pool().Query(ctx, `SELECT account FROM ledger_left_v1()`) // CollectRows returns its error
	accounts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("look for what ended epochs have left: %w", err)
	}
	for _, id := range accounts {
		n, err := l.endLeftIn(ctx, id)
		if err != nil {
			return interrupted, fmt.Errorf("end what ended epochs have left in account %s: %w", id, err)
		}
		interrupted += n
	}
	if len(accounts) > 0 {
		if _, err := l.db.Pool().Exec(ctx, `SELECT ledger_left_v1()`); err != nil {
			return interrupted, fmt.Errorf("record that nothing is left: %w", err)
		}
	}
	if interrupted > 0 {
		l.log.Info("requests of epochs that have ended are marked as interrupted", zap.Int64("requests", interrupted))
	}
	return interrupted, nil
}

// endLeftIn does it in one account.
func (l *Ledger) endLeftIn(ctx context.Context, id string) (interrupted int64, err error) {
	var t *transaction
	for {
		t = newTransaction(l, 0, 0, noLane)
		s := &selection{accounts: []string{id}, heads: maxHeads, wait: true, ended: true}
		err = l.inTransaction(ctx, func(q query) error {
			return t.update(ctx, q, s, func() {
				interrupted = 0
				for _, a := range t.accounts {
					interrupted += t.expire(a)
				}
			})
		})
		if !errors.Is(err, errConflict) && !postgres.IsLock(err) || !wait.For(ctx, resendBackoff) {
			break
		}
	}
	if err == nil {
		l.raise(t.alarms)
	}
	return interrupted, err
}
