package history

import (
	"context"
	"fmt"

	"basegate/database"
)

// selectHours calls use with each row that begins at or after a Unix time.
func selectHours(ctx context.Context, db *database.DB, since int64, use func(begin int64, data []byte)) error {
	const text = `SELECT hour, data FROM history_hours WHERE hour >= $1 ORDER BY hour`
	rows, err := db.Read().QueryContext(ctx, text, since)
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

func upsertHour(ctx context.Context, tx database.Tx, begin int64, data []byte) error {
	const text = `INSERT INTO history_hours (hour, data) VALUES ($1, $2)
		ON CONFLICT (hour) DO UPDATE SET data = excluded.data`
	_, err := tx.ExecContext(ctx, text, begin, data)
	return err
}

func deleteHoursBefore(ctx context.Context, tx database.Tx, begin int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM history_hours WHERE hour < $1`, begin)
	return err
}
