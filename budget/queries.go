package budget

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"basegate/budget/usage"
	"basegate/database"
)

// selectParents returns the parents of keys that have one, by the keys.
func selectParents(ctx context.Context, q database.Reader) (map[string]string, error) {
	parents := map[string]string{}
	err := database.Each(ctx, q, func(r *sql.Rows) error {
		var key, parent string
		err := r.Scan(&key, &parent)
		parents[key] = parent
		return err
	}, `SELECT id, parent FROM keys WHERE parent IS NOT NULL`)
	return parents, err
}

// row is the row of a request.
type row struct {
	request Request
	state   usage.State
	outcome Outcome
}

// insertEnded inserts the row of a request that has ended, unless another request that has the same id is in flight. It
// reports whether it did.
func insertEnded(ctx context.Context, tx database.Execer, r *row) (inserted bool, err error) {
	const text = insertRequests + ` SELECT ` + requestParameters + `
		WHERE NOT EXISTS (SELECT 1 FROM inflight WHERE request_id = $1)`
	n, err := database.Change(ctx, tx, text, r.AppendValues(nil)...)
	return n > 0, err
}

// moveEnded inserts the row of a request that has ended, and then deletes its row in flight. Only a storage failure,
// which fails the whole transaction, can fail the second statement.
func moveEnded(ctx context.Context, tx database.Execer, r *row) error {
	const text = insertRequests + ` VALUES (` + requestParameters + `)`
	if _, err := tx.ExecContext(ctx, text, r.AppendValues(nil)...); err != nil {
		return err
	}
	return deleteInFlight(ctx, tx, r)
}

const (
	insertRequests = `
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts, batch_id, run,
			` + usage.ReportedColumns + `)`
	requestParameters = `$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
		nullif($21, ''), $22, $23, $24, $25, $26, $27`
	requestColumns = 27
)

// insertEndedRows does what insertEnded does, for several rows. If one of them has the id of a request in flight, none is
// inserted, because its id is null.
var insertEndedRows = database.NewInsert(insertRequests,
	`CASE WHEN NOT EXISTS (SELECT 1 FROM inflight WHERE request_id = $1) THEN $1 END`+strings.TrimPrefix(requestParameters, "$1"), requestColumns)

// AppendValues appends the values of requestParameters.
func (r *row) AppendValues(to []any) []any {
	q, o := &r.request, &r.outcome
	return o.Reported.AppendValues(append(slices.Grow(to, requestColumns),
		q.ID, q.Time.UnixMicro(), q.KeyID, q.AccountID, q.Model, o.Backend, q.Endpoint, q.Workload, q.User, q.Stream,
		int64(o.Status), o.Code, string(r.state), o.Prompt, o.Completion,
		o.Queue.Microseconds(), o.FirstToken.Microseconds(), o.Total.Microseconds(), o.Boot.Microseconds(),
		usage.EncodeDetails(o.Attempts, q.ChainID), q.Batch, q.Run))
}

// updateEnded changes the outcome of a row that an earlier attempt has inserted.
func updateEnded(ctx context.Context, tx database.Execer, r *row) error {
	const text = `
		UPDATE requests SET backend = $2, status = $3, code = $4, state = $5, prompt_tokens = $6, completion_tokens = $7,
			queue_us = $8, first_token_us = $9, total_us = $10,
			cached_tokens = $11, created_tokens = $12, engine_queue_us = $13, engine_prefill_us = $14, engine_between_us = $15
		WHERE request_id = $1`
	o := &r.outcome
	return database.Exec(ctx, tx, text, o.Reported.AppendValues([]any{
		r.request.ID, o.Backend, int64(o.Status), o.Code, string(r.state), o.Prompt, o.Completion,
		o.Queue.Microseconds(), o.FirstToken.Microseconds(), o.Total.Microseconds(),
	})...)
}

// hasEnded reports whether the row of this request, and not of another one with the same id, is in requests.
func hasEnded(ctx context.Context, tx database.Tx, r *row) (found bool, err error) {
	const text = `SELECT EXISTS (SELECT 1 FROM requests WHERE request_id = $1 AND key_id = $2 AND time = $3)`
	q := &r.request
	err = tx.QueryRowContext(ctx, text, q.ID, q.KeyID, q.Time.UnixMicro()).Scan(&found)
	return found, err
}

// insertInFlight inserts the row of a request that is in flight, unless another request has the same id. It reports
// whether it did.
func insertInFlight(ctx context.Context, tx database.Execer, q *Request, p Progress) (inserted bool, err error) {
	const text = `
		INSERT INTO inflight (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			prompt_tokens, completion_tokens, batch_id, run)
		SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, nullif($13, ''), $14
		WHERE NOT EXISTS (SELECT 1 FROM requests WHERE request_id = $1)`
	n, err := database.Change(ctx, tx, text,
		q.ID, q.Time.UnixMicro(), q.KeyID, q.AccountID, q.Model, p.Backend, q.Endpoint, q.Workload, q.User, q.Stream,
		p.Prompt, p.Completion, q.Batch, q.Run)
	return n > 0, err
}

// updateProgress writes a checkpoint, and reports whether the request is in flight.
func updateProgress(ctx context.Context, tx database.Execer, id string, p Progress) (found bool, err error) {
	const text = `UPDATE inflight SET backend = $2, prompt_tokens = $3, completion_tokens = $4 WHERE request_id = $1`
	n, err := database.Change(ctx, tx, text, id, p.Backend, p.Prompt, p.Completion)
	return n > 0, err
}

// deleteInFlight deletes the row in flight of this request, and not of another one with the same id.
func deleteInFlight(ctx context.Context, tx database.Execer, r *row) error {
	const text = `DELETE FROM inflight WHERE request_id = $1 AND key_id = $2 AND time = $3`
	return database.Exec(ctx, tx, text, r.request.ID, r.request.KeyID, r.request.Time.UnixMicro())
}

// interruptInFlight moves the rows in flight to requests, as interrupted, and returns their number.
func interruptInFlight(ctx context.Context, tx database.Tx) (rows int64, err error) {
	const text = insertRequests + `
		SELECT request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			0, '', 'interrupted', prompt_tokens, completion_tokens, 0, 0, 0, 0, '', batch_id, run, NULL, NULL, NULL, NULL, NULL
		FROM inflight WHERE true ORDER BY time
		ON CONFLICT (request_id) DO NOTHING`
	rows, err = database.Change(ctx, tx, text)
	if err == nil {
		err = database.Exec(ctx, tx, `DELETE FROM inflight`)
	}
	if err != nil {
		return 0, fmt.Errorf("mark requests in flight as interrupted: %w", err)
	}
	return rows, nil
}

// recentRequests is the number of requests among which recovery looks for uses of keys that a crash has lost: many more
// than end in a second.
const recentRequests = 20_000

// recoverLastUses updates the last use of keys from the latest requests.
func recoverLastUses(ctx context.Context, tx database.Tx) error {
	const text = `
		INSERT INTO key_uses (key_id, time)
		SELECT key_id, max(time) FROM requests
		WHERE seq > (SELECT coalesce(max(seq), 0) FROM requests) - $1 GROUP BY key_id
		ON CONFLICT (key_id) DO UPDATE SET time = excluded.time WHERE excluded.time > key_uses.time`
	if _, err := tx.ExecContext(ctx, text, recentRequests); err != nil {
		return fmt.Errorf("recover the last uses of keys: %w", err)
	}
	return nil
}

// InsertReceipt inserts the entry of an Outcome's Receipt into the receipt log, once: a settlement is sent again after a failover.
// Only a storage failure can fail it.
func InsertReceipt(ctx context.Context, tx database.Execer, key string, receipt []byte) error {
	const text = `
		INSERT INTO receipts (leaf_hash, nonce, entry, key_id) VALUES ($1, $2, $3, $4) ON CONFLICT (leaf_hash) DO NOTHING`
	return database.Exec(ctx, tx, text, receipt[:32], receipt[32:64], receipt[64:], key)
}
