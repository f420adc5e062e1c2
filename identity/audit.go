package identity

import (
	"context"
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

// AuditLog records the changes that accounts make. Accounts, Keys and Sessions write their own entries, in the
// transactions of the changes.
type AuditLog struct {
	db *database.DB
}

// Find returns entries that a filter selects, at most limit, the newest first: those older than the entry with the id after,
// or from the newest on if after is empty. next is the id of the last entry; empty if there are no more.
func (l *AuditLog) Find(ctx context.Context, f AuditFilter, after string, limit int) (entries []AuditEntry, next string, err error) {
	var (
		conditions []string
		args       []any
	)
	where := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, strings.ReplaceAll(condition, "?", "$"+strconv.Itoa(len(args))))
	}
	if after != "" {
		where("(time, id) < (SELECT time, id FROM audit WHERE id = ?)", after)
	}
	if f.Action != "" {
		where("action = ?", f.Action)
	}
	if f.Search != "" {
		pattern := "%" + likeEscaper.Replace(strings.ToLower(f.Search)) + "%"
		where(`(lower(actor) LIKE ? ESCAPE '\' OR lower(subject) LIKE ? ESCAPE '\' OR lower(detail) LIKE ? ESCAPE '\')`, pattern)
	}
	if !f.Since.IsZero() {
		where("time >= ?", f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		where("time < ?", f.Until.UnixMicro())
	}
	text := "SELECT id, time, actor, action, subject, detail FROM audit"
	if len(conditions) > 0 {
		text += " WHERE " + strings.Join(conditions, " AND ")
	}
	args = append(args, limit+1)
	entries, err = database.List(ctx, l.db.Read(), scanAuditEntry, text+" ORDER BY time DESC, id DESC LIMIT $"+strconv.Itoa(len(args)), args...)
	if err == nil && len(entries) > limit {
		entries = entries[:limit]
		next = entries[limit-1].id
	}
	return entries, next, err
}

// Actions returns the actions that the log has, in alphabetical order.
func (l *AuditLog) Actions(ctx context.Context) ([]string, error) {
	scan := func(row database.Scanner) (action string, err error) { return action, row.Scan(&action) }
	return database.List(ctx, l.db.Read(), scan, `SELECT DISTINCT action FROM audit ORDER BY action`)
}

// Record writes an entry for a change that another package makes.
func (l *AuditLog) Record(ctx context.Context, action, subject, detail string) error {
	return write(ctx, l.db, "record change", func(tx database.Tx) error {
		return insertAuditEntry(ctx, tx, action, subject, detail)
	})
}
