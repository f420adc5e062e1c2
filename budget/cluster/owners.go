package cluster

import (
	"context"
	"fmt"
)

// syncPage is how many accounts are synced by one transaction.
const syncPage = 100

// SetConcurrency records how many requests may run at once of a key that has no number of its own, and of an account, for all
// gateways. It is in force for all keys and accounts when it returns.
func (l *Ledger) SetConcurrency(ctx context.Context, perKey, perAccount int) error {
	var outdated bool
	if err := l.db.Pool().QueryRow(ctx, `SELECT ledger_configure_v1($1, $2)`, perKey, perAccount).Scan(&outdated); err != nil {
		return fmt.Errorf("set the concurrency of keys and accounts: %w", err)
	}
	for after := ""; outdated; {
		var last *string
		if err := l.db.Pool().QueryRow(ctx, `SELECT ledger_sync_v1($1, $2)`, after, syncPage).Scan(&last); err != nil {
			return fmt.Errorf("set the concurrency of keys and accounts: %w", err)
		}
		if last == nil {
			return nil
		}
		after = *last
	}
	return nil
}
