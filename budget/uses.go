package budget

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// LastUse is when the last request of a key came; zero where there is none. The requests themselves are not looked
// through for it: they may be millions, of other keys.
func (l *Ledger) LastUse(ctx context.Context, key string) (time.Time, error) {
	l.mu.Lock()
	var last time.Time
	if found := l.keys[key]; found != nil {
		last = found.used
	}
	l.mu.Unlock()
	if !last.IsZero() {
		return last, nil
	}
	const text = `SELECT time FROM key_uses WHERE key_id = $1`
	var at int64
	switch err := l.db.Read().QueryRowContext(ctx, text, key).Scan(&at); {
	case errors.Is(err, sql.ErrNoRows):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read last use: %w", err)
	}
	return time.UnixMicro(at).UTC(), nil
}

// use notes that a request has come; the ledger's lock is held.
func (p *party) use(at time.Time) {
	if at = at.Truncate(time.Microsecond); at.After(p.used) {
		p.used = at
	}
}

// writeUses writes down which keys have been used since it last did. What fails is written with the next; what a crash
// loses the next start finds in the requests of the month.
func (l *Ledger) writeUses(ctx context.Context) {
	used := map[string]time.Time{}
	l.mu.Lock()
	for id, key := range l.keys {
		if key.used.After(key.noted) {
			used[id] = key.used
		}
	}
	l.mu.Unlock()
	if len(used) == 0 {
		return
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for id, at := range used {
			if err := upsertUse(context.WithoutCancel(ctx), tx, id, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return // the database has told the log
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range used {
		l.keys[id].noted = at
	}
}

func upsertUse(ctx context.Context, tx database.Tx, key string, at time.Time) error {
	const text = `
		INSERT INTO key_uses (key_id, time) VALUES ($1, $2)
		ON CONFLICT (key_id) DO UPDATE SET time = excluded.time`
	_, err := tx.ExecContext(ctx, text, key, at.UnixMicro())
	return err
}
