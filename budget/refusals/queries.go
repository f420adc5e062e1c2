package refusals

import (
	"context"
	"fmt"
	"time"

	"basegate/database"
)

func insertRows(ctx context.Context, tx database.Tx, rows []Refusal) error {
	const text = `
		INSERT INTO refusals (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag,
			stream, status, code, queue_us, boot_us, total_us, run, param, expected)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`
	for i := range rows {
		f := &rows[i]
		_, err := tx.ExecContext(ctx, text,
			f.RequestID, f.Time.UnixMicro(), f.KeyID, f.AccountID, f.Model, f.Backend, f.Endpoint, f.Workload, f.User,
			f.Stream, int64(f.Status), f.Code, f.Queue.Microseconds(), f.Boot.Microseconds(), f.Total.Microseconds(), f.Run, f.Param, f.Expected)
		if err != nil {
			return fmt.Errorf("insert refusals: %w", err)
		}
	}
	return nil
}

// addCounts adds numbers of refusals.
func addCounts(ctx context.Context, tx database.Tx, counts map[count]int64) error {
	const text = `
		INSERT INTO refusal_hours (account_id, period, code, requests) VALUES ($1, $2, $3, $4)
		ON CONFLICT (account_id, period, code) DO UPDATE SET requests = refusal_hours.requests + excluded.requests`
	for c, n := range counts {
		if _, err := tx.ExecContext(ctx, text, c.account, c.hour, c.code, n); err != nil {
			return fmt.Errorf("count refusals: %w", err)
		}
	}
	return nil
}

// maxPruned limits the rows that one statement deletes, because every settlement waits meanwhile.
const maxPruned = 500

// pruneAt deletes the rows and numbers that are too old at a time, and the oldest rows of the accounts and of the table if
// they have too many: at most a few hundred of each, which is more than is recorded in the meantime.
func (r *Recorder) pruneAt(ctx context.Context, now time.Time) error {
	const (
		old = `
			DELETE FROM refusals WHERE seq IN (SELECT seq FROM refusals WHERE time < $1 ORDER BY time LIMIT $2)`
		excess = `
			DELETE FROM refusals WHERE seq IN (
				SELECT seq FROM refusals WHERE seq <= (SELECT max(seq) FROM refusals) - $1 ORDER BY seq LIMIT $2)`
		ofAccount = `
			DELETE FROM refusals WHERE seq IN (
				SELECT seq FROM refusals
				WHERE account_id = $1 AND time <= (SELECT time FROM refusals WHERE account_id = $1 ORDER BY time DESC LIMIT 1 OFFSET $2)
				ORDER BY time LIMIT $3)`
		oldCounts = `
			DELETE FROM refusal_hours WHERE (account_id, period, code) IN (
				SELECT account_id, period, code FROM refusal_hours WHERE period < $1 ORDER BY period LIMIT $2)`
	)
	s := r.settings
	accounts := r.written
	r.written = map[string]bool{}
	err := r.db.WriteGrouped(ctx, func(tx database.Tx) error {
		if _, err := tx.ExecContext(ctx, old, now.Add(-s.Keep).UnixMicro(), maxPruned); err != nil {
			return err
		}
		for id := range accounts {
			if _, err := tx.ExecContext(ctx, ofAccount, id, s.AccountRows, maxPruned); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, excess, s.Rows, maxPruned); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, oldCounts, now.Add(-s.KeepCounts).Unix()/3600, maxPruned)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete old refusals: %w", err)
	}
	return nil
}
