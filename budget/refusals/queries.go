package refusals

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"basegate/database"
)

// rowsPerStatement is how many rows one statement inserts. SQLite allows 32,766 parameters.
const rowsPerStatement = 100

// insertRows inserts rows, many with each statement.
func insertRows(ctx context.Context, tx database.Tx, rows []Refusal) error {
	for len(rows) > 0 {
		part := rows[:min(len(rows), rowsPerStatement)]
		rows = rows[len(part):]
		var text strings.Builder
		text.WriteString(`INSERT INTO refusals (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag,
			stream, status, code, queue_us, boot_us, total_us) VALUES `)
		var args []any
		for i := range part {
			f := &part[i]
			values := []any{
				f.RequestID, f.Time.UnixMicro(), f.KeyID, f.AccountID, f.Model, f.Backend, f.Endpoint, f.Workload, f.User,
				f.Stream, int64(f.Status), f.Code, f.Queue.Microseconds(), f.Boot.Microseconds(), f.Total.Microseconds(),
			}
			if i > 0 {
				text.WriteString(", ")
			}
			addParameters(&text, len(args), len(values))
			args = append(args, values...)
		}
		if _, err := tx.ExecContext(ctx, text.String(), args...); err != nil {
			return fmt.Errorf("insert refusals: %w", err)
		}
	}
	return nil
}

// addParameters adds a list of n parameters in parentheses, after those that the statement has.
func addParameters(text *strings.Builder, before, n int) {
	for i := range n {
		separator := ", $"
		if i == 0 {
			separator = "($"
		}
		text.WriteString(separator + strconv.Itoa(before+i+1))
	}
	text.WriteString(")")
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
		ctx := context.WithoutCancel(ctx)
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
