package identity

import (
	"context"
	"errors"
	"strconv"
	"strings"
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
	id      string
}

// AuditFilter selects entries of the audit log. Its zero value selects all.
type AuditFilter struct {
	Search string    // in the actor, the subject and the detail, whatever the case of its letters
	Action string    // all of it
	Since  time.Time // zero: no bound
	Until  time.Time // exclusive; zero: no bound
}

// AuditCursor is a place in the audit log; the zero value is its newest end.
type AuditCursor struct {
	time int64
	id   string
}

// String returns the cursor as ParseAuditCursor reads it; empty for the zero value.
func (c AuditCursor) String() string {
	if c.IsZero() {
		return ""
	}
	return strconv.FormatInt(c.time, 10) + "-" + c.id
}

// IsZero reports whether the cursor is the newest end.
func (c AuditCursor) IsZero() bool { return c == AuditCursor{} }

var errBadCursor = errors.New("not a place in the audit log")

// ParseAuditCursor parses what AuditCursor.String returns.
func ParseAuditCursor(text string) (c AuditCursor, err error) {
	if text == "" {
		return c, nil
	}
	at, id, ok := strings.Cut(text, "-")
	if c.time, err = strconv.ParseInt(at, 10, 64); err != nil || !ok {
		return AuditCursor{}, errBadCursor
	}
	c.id = id
	return c, nil
}

// AuditLog records the changes that accounts make. Accounts, Keys and Sessions write their own entries, in the
// transactions of the changes.
type AuditLog struct {
	db *database.DB
}

// Find returns entries that a filter selects, from a place on, at most limit, the newest first. next is the place after
// them; zero if there are no more.
func (l *AuditLog) Find(ctx context.Context, f AuditFilter, from AuditCursor, limit int) (entries []AuditEntry, next AuditCursor, err error) {
	entries, err = findAuditEntries(ctx, l.db.Read(), f, from, limit+1)
	if err != nil {
		return nil, next, err
	}
	if len(entries) > limit {
		entries = entries[:limit]
		last := entries[limit-1]
		next = AuditCursor{last.Time.UnixMicro(), last.id}
	}
	return entries, next, nil
}

// Actions returns the actions that the log has, in alphabetical order.
func (l *AuditLog) Actions(ctx context.Context) ([]string, error) {
	return selectAuditActions(ctx, l.db.Read())
}

// Record writes an entry for a change that another package makes.
func (l *AuditLog) Record(ctx context.Context, action, subject, detail string) error {
	return write(ctx, l.db, "record change", func(tx database.Tx) error {
		return insertAuditEntry(ctx, tx, action, subject, detail)
	})
}
