package budget

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// Use is when the latest request of a key arrived; zero if there was none.
type Use struct {
	Time    time.Time
	Address string // from which the latest request came that was not a line of a batch; empty if that is not known
}

// NewUse returns a use as a store has kept it: its time is in microseconds since 1970.
func NewUse(micros int64, address string) Use {
	if micros <= 0 {
		return Use{}
	}
	return Use{time.UnixMicro(micros).UTC(), address}
}

// LastUse returns the last use of a key. It does not search the requests: there may be millions, most of them of other keys.
func (l *Ledger) LastUse(ctx context.Context, key string) (Use, error) {
	l.mu.Lock()
	var last Use
	if found := l.keys[key]; found != nil {
		last = found.LastUse
	}
	l.mu.Unlock()
	if last.Address != "" {
		return last, nil
	}
	const text = `SELECT time, address FROM key_uses WHERE key_id = $1`
	var (
		at      int64
		address string
	)
	switch err := l.db.Read().QueryRowContext(ctx, text, key).Scan(&at, &address); {
	case errors.Is(err, sql.ErrNoRows):
		return last, nil
	case err != nil:
		return Use{}, fmt.Errorf("read last use: %w", err)
	}
	if last.Time.IsZero() {
		return NewUse(at, address), nil
	}
	last.Address = address // of a request before the latest start of the gateway
	return last, nil
}

// recordUse records that a request has arrived, unless it asks for a slot alone. A use in the future was recorded while the clock
// was ahead. Of a request that has waited, the address is known only when it begins to wait. The caller holds the ledger's lock.
func (o *Owner) recordUse(w *Waiter, now time.Time) {
	at := w.arrival(now).Truncate(time.Microsecond)
	if w.Demand.SlotOnly || !at.After(o.LastUse.Time) && !o.LastUse.Time.After(now) {
		return
	}
	o.LastUse.Time = at
	if w.Request.Address != "" {
		o.LastUse.Address = w.Request.Address
	}
}

// writeLastUses writes the last use of the keys used since the previous call. Those that fail are written with the next
// call; those that a crash loses are recovered by Start from the requests of the month, without their address.
func (l *Ledger) writeLastUses(ctx context.Context) {
	used := map[string]Use{}
	l.mu.Lock()
	for id, key := range l.keys {
		if key.LastUse != key.writtenLastUse {
			used[id] = key.LastUse
		}
	}
	l.mu.Unlock()
	if len(used) == 0 {
		return
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for id, use := range used {
			if err := upsertLastUse(ctx, tx, id, use); err != nil {
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
	for id, use := range used {
		l.keys[id].writtenLastUse = use
	}
}

// upsertLastUse writes a use, whose address may be one that was written before the latest start.
func upsertLastUse(ctx context.Context, tx database.Tx, key string, use Use) error {
	const text = `
		INSERT INTO key_uses (key_id, time, address) VALUES ($1, $2, $3)
		ON CONFLICT (key_id) DO UPDATE SET time = excluded.time, address = coalesce(nullif(excluded.address, ''), key_uses.address)`
	return database.Exec(ctx, tx, text, key, use.Time.UnixMicro(), use.Address)
}
