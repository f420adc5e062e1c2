package identity

import (
	"context"
	"fmt"
	"time"

	"basegate/database"
)

// Change is one line of the audit log: who changed what.
type Change struct {
	Time    time.Time
	Actor   string // an account's address, or CommandLine
	Action  string // in words, such as "pause key"
	Subject string // an account's address, or a key's id
	Detail  string // what it is now; may be empty
}

// CommandLine is the Actor of changes that nobody signed in for.
const CommandLine = "command line"

// actorKey is under which a context carries who acts.
type actorKey struct{}

// WithActor says in whose name the operations are made that are given this context. Without it, it is CommandLine's.
func WithActor(ctx context.Context, email string) context.Context {
	return context.WithValue(ctx, actorKey{}, email)
}

func actor(ctx context.Context) string {
	if email, ok := ctx.Value(actorKey{}).(string); ok {
		return email
	}
	return CommandLine
}

// Changes lists the last changes, the newest first.
func (d *Directory) Changes(ctx context.Context, most int) ([]Change, error) {
	const text = `SELECT time, actor, action, subject, detail FROM audit ORDER BY time DESC, id DESC LIMIT $1`
	return collect(ctx, d.db.Read(), scanChange, text, most)
}

// Record writes a change that is not one of accounts and keys to the audit log.
func (d *Directory) Record(ctx context.Context, action, subject, detail string) error {
	err := d.db.WriteGrouped(ctx, func(tx database.Tx) error { return record(ctx, tx, action, subject, detail) })
	if err != nil {
		return fmt.Errorf("record change: %w", err)
	}
	return nil
}

// record writes a change to the audit log, in the transaction that makes it.
func record(ctx context.Context, tx database.Tx, action, subject, detail string) error {
	const text = `INSERT INTO audit (id, time, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6)`
	_, err := tx.ExecContext(ctx, text, newID("chg"), now().UnixMicro(), actor(ctx), action, subject, detail)
	return err
}

func scanChange(row scanner) (c Change, err error) {
	var at int64
	err = row.Scan(&at, &c.Actor, &c.Action, &c.Subject, &c.Detail)
	c.Time = time.UnixMicro(at).UTC()
	return c, err
}
