package cluster

import (
	"context"
	"fmt"
)

// syncPage is how many accounts are synced by one transaction.
const syncPage = 100

// SetConcurrencyPerKey records how many requests may run at once of a key that has no number of its own, for all gateways.
// It is in force for all keys when it returns.
func (l *Ledger) SetConcurrencyPerKey(ctx context.Context, n int) error {
	var outdated bool
	if err := l.db.Pool().QueryRow(ctx, `SELECT ledger_configure_v1($1)`, n).Scan(&outdated); err != nil {
		return fmt.Errorf("set the concurrency of keys: %w", err)
	}
	for after := ""; outdated; {
		var last *string
		if err := l.db.Pool().QueryRow(ctx, `SELECT ledger_sync_v1($1, $2)`, after, syncPage).Scan(&last); err != nil {
			return fmt.Errorf("set the concurrency of keys: %w", err)
		}
		if last == nil {
			return nil
		}
		after = *last
	}
	return nil
}
