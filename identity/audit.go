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
	Detail  string // the new state; may be empty
}

// CommandLine is the Actor of changes that were made without signing in.
const CommandLine = "command line"

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

// actorKey is the context key of the actor's address.
type actorKey struct{}

// WithActor returns a context whose operations are recorded with the account of this address as the actor. Without it,
// the actor is CommandLine.
func WithActor(ctx context.Context, email string) context.Context {
	return context.WithValue(ctx, actorKey{}, email)
}

func actorOf(ctx context.Context) string {
	if email, ok := ctx.Value(actorKey{}).(string); ok {
		return email
	}
	return CommandLine
}
