package budget

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// LastUse returns when the latest request of a key arrived, or the zero time if there was none. It does not search the
// requests: there may be millions, most of them of other keys.
func (l *Ledger) LastUse(ctx context.Context, key string) (time.Time, error) {
	l.mu.Lock()
	var last time.Time
	if found := l.keys[key]; found != nil {
		last = found.LastUse
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

// recordUse records that a request has arrived. A use in the future was recorded while the clock was ahead. The caller
// holds the ledger's lock.
func (o *Owner) recordUse(at, now time.Time) {
	if at = at.Truncate(time.Microsecond); at.After(o.LastUse) || o.LastUse.After(now) {
		o.LastUse = at
	}
}

// writeLastUses writes the last use of the keys used since the previous call. Those that fail are written with the next
// call; those that a crash loses are recovered by Start from the requests of the month.
func (l *Ledger) writeLastUses(ctx context.Context) {
	used := map[string]time.Time{}
	l.mu.Lock()
	for id, key := range l.keys {
		if !key.LastUse.Equal(key.writtenLastUse) {
			used[id] = key.LastUse
		}
	}
	l.mu.Unlock()
	if len(used) == 0 {
		return
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for id, at := range used {
			if err := upsertLastUse(ctx, tx, id, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return // package database logs the outage
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range used {
		l.keys[id].writtenLastUse = at
	}
}

func upsertLastUse(ctx context.Context, tx database.Tx, key string, at time.Time) error {
	const text = `
		INSERT INTO key_uses (key_id, time) VALUES ($1, $2)
		ON CONFLICT (key_id) DO UPDATE SET time = excluded.time`
	return database.Exec(ctx, tx, text, key, at.UnixMicro())
}
