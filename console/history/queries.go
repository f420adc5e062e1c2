package history

import (
	"context"
	"fmt"

	"basegate/database"
)

// selectHours calls use with each row of a gateway that begins at or after a Unix time. On SQLite there is one gateway.
func selectHours(ctx context.Context, db *database.DB, gateway string, since int64, use func(begin int64, data []byte)) error {
	const (
		sqlite   = `SELECT hour, data FROM history_hours WHERE hour >= $1 ORDER BY hour`
		postgres = `SELECT hour, data FROM history_hours WHERE hour >= $1 AND gateway = $2 ORDER BY hour`
	)
	if db.Postgres() != nil {
		return queryHours(ctx, db, use, postgres, since, gateway)
	}
	return queryHours(ctx, db, use, sqlite, since)
}

// selectOthers calls use with the rows of an hour that other gateways have saved, on PostgreSQL.
func selectOthers(ctx context.Context, db *database.DB, gateway string, begin int64, use func(begin int64, data []byte)) error {
	const text = `SELECT hour, data FROM history_hours WHERE hour = $1 AND gateway <> $2 ORDER BY gateway`
	return queryHours(ctx, db, use, text, begin, gateway)
}

func queryHours(ctx context.Context, db *database.DB, use func(begin int64, data []byte), text string, args ...any) error {
	rows, err := db.Read().QueryContext(ctx, text, args...)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var begin int64
		var data []byte
		if err := rows.Scan(&begin, &data); err != nil {
			return fmt.Errorf("read history: %w", err)
		}
		use(begin, data)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	return nil
}

// selectSaved returns the hours at or after a Unix time that other gateways have saved since a time of the server's clock,
// and the latest such time.
func selectSaved(ctx context.Context, db *database.DB, gateway string, since, savedSince int64) (hours []int64, latest int64, err error) {
	const text = `
		SELECT hour, max(saved_at) FROM history_hours WHERE hour >= $1 AND gateway <> $2
		GROUP BY hour HAVING max(saved_at) > $3`
	rows, err := db.Read().QueryContext(ctx, text, since, gateway, savedSince)
	if err != nil {
		return nil, 0, fmt.Errorf("find history: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var begin, savedAt int64
		if err := rows.Scan(&begin, &savedAt); err != nil {
			return nil, 0, fmt.Errorf("find history: %w", err)
		}
		hours, latest = append(hours, begin), max(latest, savedAt)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("find history: %w", err)
	}
	return hours, latest, nil
}

func (h *History) upsertHour(ctx context.Context, tx database.Tx, begin int64, data []byte) error {
	const (
		sqlite = `INSERT INTO history_hours (hour, data) VALUES ($1, $2)
			ON CONFLICT (hour) DO UPDATE SET data = excluded.data`
		postgres = `INSERT INTO history_hours (hour, data, gateway, saved_at)
			VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
			ON CONFLICT (gateway, hour) DO UPDATE SET data = excluded.data, saved_at = excluded.saved_at`
	)
	var err error
	if h.db.Postgres() != nil {
		_, err = tx.ExecContext(ctx, postgres, begin, data, h.gateway)
	} else {
		_, err = tx.ExecContext(ctx, sqlite, begin, data)
	}
	return err
}

func deleteHoursBefore(ctx context.Context, tx database.Tx, begin int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM history_hours WHERE hour < $1`, begin)
	return err
}
