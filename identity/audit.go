package identity

import (
	"context"
	"fmt"
	"time"

	"basegate/database"
)

// AuditEntry is one entry of the audit log.
type AuditEntry struct {
	Time    time.Time
	Actor   string // the account that made the change, by its address, or CommandLine
	Action  string // in words, such as "pause key"
	Subject string // an account's address, or a key's id
	Detail  string // what was created, or what changed, as "before → after"; may be empty
}

// AuditLog records the changes that accounts make. Accounts, Keys and Sessions write their own entries, in the
// transactions of the changes.
type AuditLog struct {
	db *database.DB
}

// List returns the latest entries, at most limit, the newest first.
func (l *AuditLog) List(ctx context.Context, limit int) ([]AuditEntry, error) {
	return selectAuditEntries(ctx, l.db.Read(), limit)
}

// Record writes an entry for a change that another package makes.
func (l *AuditLog) Record(ctx context.Context, action, subject, detail string) error {
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		return insertAuditEntry(ctx, tx, action, subject, detail)
	})
	if err != nil {
		return fmt.Errorf("record change: %w", err)
	}
	return nil
}
