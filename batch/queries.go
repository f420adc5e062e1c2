package batch

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"basegate/database"
	"basegate/proxy"
)

// insertObject inserts the row of an object, 'kept' or one that a holder is about to write; the zero holder is a command. The row may
// be there, by a commit whose reply was lost: nobody else has the name.
func insertObject(ctx context.Context, tx database.Execer, p *newPart, state string, h holder, now int64) error {
	return database.Exec(ctx, tx, `INSERT INTO objects (name, state, file, start, bytes, gateway, epoch, begun_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (name) DO NOTHING`,
		p.object, state, p.file.ID, p.start, p.end-p.start, h.gateway, h.epoch, now)
}

// keepObject makes an object a part of its file. The error is errSwept if it was deleted meanwhile.
func keepObject(ctx context.Context, tx database.Execer, name string) error {
	n, err := database.Change(ctx, tx, `UPDATE objects SET state = 'kept' WHERE name = $1 AND state = 'writing'`, name)
	if err == nil && n == 0 {
		return errSwept
	}
	return err
}

// errSwept is the error of a write of a file whose objects were deleted after their writer was declared dead.
var errSwept = errors.New("the object was deleted while it was written")

// keepParts keeps all objects of an upload.
func keepParts(ctx context.Context, tx database.Tx, f *File) error {
	var written int64
	err := tx.QueryRowContext(ctx, `SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM objects WHERE file = $1 AND state = 'writing'`, f.ID).Scan(&written)
	if err == nil && written != f.Bytes {
		err = errSwept
	}
	if err != nil {
		return err
	}
	return database.Exec(ctx, tx, `UPDATE objects SET state = 'kept' WHERE file = $1 AND state = 'writing'`, f.ID)
}

// partsOf returns the objects of a condition that count, such as the parts of a file in their order.
func partsOf(ctx context.Context, q database.Reader, condition, value string) ([]part, error) {
	return database.List(ctx, q, func(r database.Scanner) (p part, err error) { return p, r.Scan(&p.object, &p.start, &p.end) },
		`SELECT name, start, start + bytes FROM objects WHERE `+condition+` AND state = 'kept' ORDER BY start`, value)
}

// Conditions of partsOf and markDeleted.
const (
	objectNamed   = `name = $1`
	objectsOfFile = `file = $1`
	notKept       = ` AND state = 'writing'`
)

// markDeleted marks objects, whose bytes are deleted soon after.
func markDeleted(ctx context.Context, tx database.Execer, condition, value string) error {
	return database.Exec(ctx, tx, `UPDATE objects SET state = 'deleted' WHERE `+condition, value)
}

// commandTime is how long a command may write an object.
const commandTime = 24 * time.Hour

// deleteOrphans marks the objects whose writers are gone, and returns their number.
func (l *leases) deleteOrphans(ctx context.Context, tx database.Execer, now time.Time) (int64, error) {
	isAlive, args := `gateway = 1 AND epoch = $2`, []any{now.Add(-commandTime).UnixMicro(), l.holder().epoch}
	if l.joined {
		isAlive, args = `EXISTS (SELECT FROM gateway g WHERE g.id = objects.gateway AND g.epoch = objects.epoch AND g.alive)`, args[:1]
	}
	return database.Change(ctx, tx, `UPDATE objects SET state = 'deleted'
		WHERE state <> 'kept' AND state = 'writing' AND NOT (gateway = 0 AND begun_at > $1) AND NOT (`+isAlive+`)`, args...)
}

// deletedObjects names the condition of the index too, which SQLite would not use otherwise.
func deletedObjects(ctx context.Context, q database.Reader) ([]string, error) {
	return database.List(ctx, q, func(r database.Scanner) (name string, err error) { return name, r.Scan(&name) },
		`SELECT name FROM objects WHERE state <> 'kept' AND state = 'deleted'`)
}

func removeObjects(ctx context.Context, tx database.Execer, names []string) error {
	for _, name := range names {
		if err := database.Exec(ctx, tx, `DELETE FROM objects WHERE name = $1`, name); err != nil {
			return err
		}
	}
	return nil
}

const fileColumns = `seq, id, account_id, key_id, purpose, filename, bytes, sha256, created_at, expires_at, coalesce(lines, 0), tokens`

func scanFile(r database.Scanner) (f File, err error) {
	return f, r.Scan(&f.seq, &f.ID, &f.Account, &f.Key, &f.Purpose, &f.Name, &f.Bytes, &f.sha256, &f.CreatedAt, &f.ExpiresAt,
		&f.Lines, &f.Tokens)
}

func selectFiles(ctx context.Context, q database.Reader, where string, args ...any) ([]File, error) {
	return database.List(ctx, q, scanFile, `SELECT `+fileColumns+` FROM files `+where, args...)
}

func insertFile(ctx context.Context, tx database.Execer, f *File) error {
	return database.Exec(ctx, tx, `
		INSERT INTO files (id, account_id, key_id, purpose, filename, bytes, sha256, created_at, expires_at, lines, tokens)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, nullif(CAST($10 AS BIGINT), 0), $11)`,
		f.ID, f.Account, f.Key, string(f.Purpose), f.Name, f.Bytes, f.sha256, f.CreatedAt, f.ExpiresAt, f.Lines, f.Tokens)
}

// findFile returns a file of an account, or of any if that is empty, that has not expired, or that a batch still needs. The error
// is sql.ErrNoRows if there is none.
func findFile(ctx context.Context, q database.Reader, account, id string, now int64) (File, error) {
	return database.One(ctx, q, scanFile, `SELECT `+fileColumns+` FROM files
		WHERE id = $1 AND $2 IN ('', account_id) AND (expires_at > $3 OR EXISTS (`+userOfFile+`))`, id, account, now)
}

// userOfFile selects the batch that has not ended and needs the file of the outer query.
const userOfFile = `SELECT b.id FROM batches b WHERE b.` + isUnfinished + `
	AND files.id IN (b.input_file_id, b.output_file_id, b.error_file_id)`

// batchUsing returns the id of the batch that needs a file, empty if there is none.
func batchUsing(ctx context.Context, q database.Reader, file string) (id string, err error) {
	err = q.QueryRowContext(ctx, `SELECT coalesce((`+userOfFile+` LIMIT 1), '') FROM files WHERE id = $1`, file).Scan(&id)
	return id, err
}

// page selects a part of a list.
type page struct {
	account   string  // empty: of all
	cursor    *string // the id of the object before it; nil: from the beginning
	after     int64   // the seq of cursor
	ascending bool
	limit     int
}

// clause returns the conditions and the order of a page; those of more have the parameters from $4 on.
func (p page) clause(more string, args ...any) (text string, all []any) {
	account, order, compare := "account_id = $1", "DESC", "<"
	if p.account == "" {
		account = "$1 = ''"
	}
	if p.ascending {
		order, compare = "ASC", ">"
	}
	return fmt.Sprintf(`WHERE %s AND ($2 = 0 OR seq %s $2)%s ORDER BY seq %s LIMIT $3`, account, compare, more, order),
		append([]any{p.account, p.after, p.limit + 1}, args...)
}

// cut returns the rows of a page that was read with clause, and whether there are more behind it.
func cut[T any](p page, rows []T, err error) ([]T, bool, error) {
	if len(rows) > p.limit {
		return rows[:p.limit], true, err
	}
	return rows, false, err
}

func listFiles(ctx context.Context, q database.Reader, p page, purpose Purpose, now int64) (_ []File, more bool, err error) {
	text, args := p.clause(` AND ($4 = '' OR purpose = $4) AND (expires_at > $5 OR EXISTS (`+userOfFile+`))`, string(purpose), now)
	files, err := selectFiles(ctx, q, text, args...)
	return cut(p, files, err)
}

// expiredFiles returns files whose time is over and that no batch needs.
func expiredFiles(ctx context.Context, q database.Reader, now int64) ([]File, error) {
	return selectFiles(ctx, q, `WHERE expires_at <= $1 AND NOT EXISTS (`+userOfFile+`) LIMIT 100`, now)
}

// storedOf returns how many files an account has, and their bytes.
func storedOf(ctx context.Context, q database.Reader, account string) (files int, bytes int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT count(*), CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM files WHERE account_id = $1`, account).Scan(&files, &bytes)
	return files, bytes, err
}

// deleteFile deletes a file's row and marks its objects.
func deleteFile(ctx context.Context, tx database.Execer, id string) error {
	if err := database.Exec(ctx, tx, `DELETE FROM files WHERE id = $1`, id); err != nil {
		return err
	}
	return markDeleted(ctx, tx, objectsOfFile, id)
}

// setFileBytes records that a file of results has grown. It returns errLeaseLost if the file has another length than its
// writer believes, as after a failover that has lost commits.
func setFileBytes(ctx context.Context, tx database.Execer, id string, from, to int64) error {
	n, err := database.Change(ctx, tx, `UPDATE files SET bytes = $3 WHERE id = $1 AND bytes = $2`, id, from, to)
	if err == nil && n == 0 {
		return errLeaseLost
	}
	return err
}

// setFileFinal makes a file of results final. It is kept from then on.
func setFileFinal(ctx context.Context, tx database.Execer, id string, sha256 []byte, expires int64) error {
	return database.Exec(ctx, tx, `UPDATE files SET sha256 = $2, expires_at = $3 WHERE id = $1`, id, sha256, expires)
}

const batchColumns = `seq, id, account_id, key_id, endpoint, completion_window, input_file_id, coalesce(output_file_id, ''),
	coalesce(error_file_id, ''), coalesce(output_keep, 0), status, coalesce(errors, ''), coalesce(metadata, 'null'), models, created_at,
	expires_at, coalesce(in_progress_at, 0), coalesce(finalizing_at, 0), coalesce(completed_at, 0), coalesce(failed_at, 0),
	coalesce(expired_at, 0), coalesce(cancelling_at, 0), coalesce(cancelled_at, 0), total, completed, failed, input_tokens,
	cached_tokens, output_tokens, reasoning_tokens, waits_for, resets_at, parked_at, parked_caps, replay, run,
	coalesce((SELECT filename FROM files WHERE files.id = batches.input_file_id), '')`

func scanBatch(r database.Scanner) (b Batch, err error) {
	var models string
	err = r.Scan(&b.seq, &b.ID, &b.Account, &b.Key, &b.Endpoint, &b.Window, &b.InputFile, &b.OutputFile, &b.ErrorFile,
		&b.outputKeep, &b.Status, &b.errorsObject, &b.Metadata, &models, &b.CreatedAt, &b.ExpiresAt, &b.InProgressAt, &b.FinalizingAt,
		&b.CompletedAt, &b.FailedAt, &b.ExpiredAt, &b.CancellingAt, &b.CancelledAt, &b.Total, &b.Completed, &b.Failed, &b.InputTokens,
		&b.CachedTokens, &b.OutputTokens, &b.ReasoningTokens, &b.Wait.Reason, &b.Wait.ResetsAt, &b.parkedAt, &b.parkedCaps, &b.replay, &b.run,
		&b.InputName)
	if err != nil {
		return Batch{}, err
	}
	return b, json.Unmarshal([]byte(models), &b.Models)
}

func selectBatch(ctx context.Context, q database.Reader, where string, args ...any) (Batch, error) {
	return database.One(ctx, q, scanBatch, `SELECT `+batchColumns+` FROM batches `+where, args...)
}

func selectBatches(ctx context.Context, q database.Reader, where string, args ...any) ([]Batch, error) {
	return database.List(ctx, q, scanBatch, `SELECT `+batchColumns+` FROM batches `+where, args...)
}

func insertBatch(ctx context.Context, tx database.Execer, b *Batch) error {
	return database.Exec(ctx, tx, `
		INSERT INTO batches (id, account_id, key_id, endpoint, completion_window, input_file_id, output_keep, status, metadata, models,
			created_at, expires_at, total, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, replay, run)
		VALUES ($1, $2, $3, $4, $5, $6, nullif(CAST($7 AS BIGINT), 0), $8, nullif($9, ''), '[]', $10, $11, 0, 0, 0, 0, 0, 0, 0, $12, $13)`,
		b.ID, b.Account, b.Key, b.Endpoint, b.Window, b.InputFile, b.outputKeep, string(b.Status), string(b.Metadata),
		b.CreatedAt, b.ExpiresAt, b.replay, b.run)
}

// findBatch returns a batch of an account, or of any if that is empty. The error is sql.ErrNoRows if there is none.
func findBatch(ctx context.Context, q database.Reader, account, id string) (Batch, error) {
	return selectBatch(ctx, q, `WHERE id = $1 AND $2 IN ('', account_id)`, id, account)
}

func batchBySeq(ctx context.Context, q database.Reader, seq int64) (Batch, error) {
	return selectBatch(ctx, q, `WHERE seq = $1`, seq)
}

func listBatches(ctx context.Context, q database.Reader, p page) (_ []Batch, more bool, err error) {
	text, args := p.clause("")
	batches, err := selectBatches(ctx, q, text, args...)
	return cut(p, batches, err)
}

// batchesOfFiles returns the batches of an account that read or write one of the files, the oldest first.
func batchesOfFiles(ctx context.Context, q database.Reader, account string, files []string) ([]Batch, error) {
	in, args := " IN "+tuples(1, len(files), ""), []any{}
	for _, id := range files {
		args = append(args, id)
	}
	return selectBatches(ctx, q, fmt.Sprintf(`WHERE account_id = $%d AND (input_file_id%s OR output_file_id%s OR error_file_id%s)
		ORDER BY seq`, len(args)+1, in, in, in), append(args, account)...)
}

// isUnfinished is the condition of the indexes on batches that have not ended.
const isUnfinished = `status IN ('validating', 'in_progress', 'finalizing', 'cancelling')`

// unfinishedOf returns the batches of an account that have not ended.
func unfinishedOf(ctx context.Context, q database.Reader, account string) ([]Batch, error) {
	return selectBatches(ctx, q, `WHERE account_id = $1 AND `+isUnfinished, account)
}

func countUnfinished(ctx context.Context, q database.Reader, account string) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM batches WHERE account_id = $1 AND `+isUnfinished, account).Scan(&n)
	return n, err
}

// unfinishedLines returns how many lines have no result, and when the oldest batch that has such lines was created; 0 if there
// is none.
func unfinishedLines(ctx context.Context, q database.Reader) (lines, oldest int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT CAST(coalesce(sum(total - completed - failed), 0) AS BIGINT),
		coalesce(min(CASE WHEN total > completed + failed THEN created_at END), 0) FROM batches WHERE `+isUnfinished).Scan(&lines, &oldest)
	return lines, oldest, err
}

// dueBatches returns batches with a status that are not parked: up to most of each account, those with the earliest deadlines
// first. It skips the others of an account in the index.
func dueBatches(ctx context.Context, q database.Reader, status Status, most int) (due []Batch, err error) {
	page := 2 * most
	last, n := "", 0 // the account of the last batch, and how many it has in due
	for {
		rows, err := selectBatches(ctx, q, `WHERE status = $1 AND account_id > $2 AND `+isUnfinished+` AND parked_at = 0
				ORDER BY account_id, expires_at, seq LIMIT $3`, string(status), last, page)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].Account != last {
				last, n = rows[i].Account, 0
			}
			if n++; n <= most {
				due = append(due, rows[i])
			}
		}
		if len(rows) < page {
			return due, nil
		}
		if n < most { // the page has ended within the account
			due = due[:len(due)-n]
			last = due[len(due)-1].Account
		}
	}
}

// firstDueOfKeys returns the first batch in progress of each key of an account that is not parked.
func firstDueOfKeys(ctx context.Context, q database.Reader, account string) ([]Batch, error) {
	return selectBatches(ctx, q, `WHERE seq IN (SELECT min(seq) FROM batches
		WHERE status = 'in_progress' AND account_id = $1 AND `+isUnfinished+` AND parked_at = 0 GROUP BY key_id)`, account)
}

// cancelling returns the batches that are to be cancelled.
func cancelling(ctx context.Context, q database.Reader) ([]int64, error) {
	return database.List(ctx, q, func(r database.Scanner) (seq int64, err error) { return seq, r.Scan(&seq) },
		`SELECT seq FROM batches WHERE status = 'cancelling' AND `+isUnfinished)
}

// isParked is the condition of the index on parked batches. A batch that gets another status is not parked.
const isParked = `parked_at > 0`

// waitsForBackend is the condition of waiting.isForBackend.
const waitsForBackend = `waits_for IN ('model', 'capacity', 'window')`

// firstParked returns the parked batch with the earliest deadline of the next key with one, in the order of accounts and keys,
// behind a key. The error is sql.ErrNoRows if there is none.
func firstParked(ctx context.Context, q database.Reader, account, key string) (Batch, error) {
	b, err := selectBatch(ctx, q, `WHERE account_id = $1 AND key_id > $2 AND `+isParked+`
		ORDER BY key_id, expires_at, seq LIMIT 1`, account, key)
	if errors.Is(err, sql.ErrNoRows) {
		b, err = selectBatch(ctx, q, `WHERE account_id > $1 AND `+isParked+`
			ORDER BY account_id, key_id, expires_at, seq LIMIT 1`, account)
	}
	return b, err
}

// parkedOf returns parked batches of a key that may be due, those with the earliest deadlines first: none in progress if the key may
// send no lines, and not those whose lines the same caps have refused.
func parkedOf(ctx context.Context, q database.Reader, account, key string, st *proxy.Standing, now int64, limit int) ([]Batch, error) {
	return selectBatches(ctx, q, `WHERE account_id = $1 AND key_id = $2 AND `+isParked+`
			AND ($3 OR status <> 'in_progress' OR expires_at <= $4
				OR $5 AND (waits_for <> 'budget' OR resets_at <= $4 OR parked_caps <> $6))
			ORDER BY expires_at, seq LIMIT $7`,
		account, key, st.Revoked, now, st.Reason == "", st.Caps, limit)
}

// parkedForBackend reports whether an account has a parked batch that waits for a backend.
func parkedForBackend(ctx context.Context, q database.Reader, account string) (found bool, err error) {
	err = q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM batches WHERE account_id = $1 AND `+isParked+`
		AND `+waitsForBackend+`)`, account).Scan(&found)
	return found, err
}

// park parks a batch, unless it has got another status.
func park(ctx context.Context, tx database.Execer, b *Batch, w waiting, caps, now int64) error {
	return database.Exec(ctx, tx, `UPDATE batches SET parked_at = $3, waits_for = $4, resets_at = $5, parked_caps = $6
		WHERE seq = $1 AND status = $2`, b.seq, string(b.Status), now, string(w.Reason), w.ResetsAt, caps)
}

// unpark makes a batch due, which waits for a backend at most.
func unpark(ctx context.Context, tx database.Execer, seq int64) error {
	return database.Exec(ctx, tx, `UPDATE batches SET parked_at = 0, resets_at = 0,
		waits_for = CASE WHEN `+waitsForBackend+` THEN waits_for ELSE '' END WHERE seq = $1`, seq)
}

// setWait writes what a batch waits for, unless it has been parked since it was in memory: then its row says it.
func setWait(ctx context.Context, tx database.Execer, seq int64, w waiting) error {
	return database.Exec(ctx, tx, `UPDATE batches SET waits_for = $2, resets_at = $3 WHERE seq = $1 AND parked_at = 0`,
		seq, string(w.Reason), w.ResetsAt)
}

// setParkedWait writes what all parked batches of a key wait for.
func setParkedWait(ctx context.Context, tx database.Execer, account, key string, w waiting) error {
	return database.Exec(ctx, tx, `UPDATE batches SET waits_for = $3, resets_at = $4 WHERE account_id = $1 AND key_id = $2 AND `+isParked+`
		AND (waits_for <> $3 OR resets_at <> $4)`, account, key, string(w.Reason), w.ResetsAt)
}

// setStatus changes the status of a batch if it is one of from, and reports whether it was. Each status has a column with the time.
func setStatus(ctx context.Context, tx database.Execer, seq int64, to Status, now int64, from ...Status) (bool, error) {
	was := make([]string, len(from))
	for i, s := range from {
		was[i] = "'" + string(s) + "'"
	}
	n, err := database.Change(ctx, tx, fmt.Sprintf(`UPDATE batches SET status = $2, %s_at = $3, parked_at = 0 WHERE seq = $1 AND status IN (%s)`,
		to, strings.Join(was, ", ")), seq, string(to), now)
	return n > 0, err
}

func setErrors(ctx context.Context, tx database.Execer, seq int64, object string) error {
	return database.Exec(ctx, tx, `UPDATE batches SET errors = nullif($2, '') WHERE seq = $1`, seq, object)
}

// oldErrors returns batches whose errors have been kept since a time.
func oldErrors(ctx context.Context, q database.Reader, failedBefore int64) ([]Batch, error) {
	return selectBatches(ctx, q, `WHERE errors IS NOT NULL AND failed_at <= $1 LIMIT 100`, failedBefore)
}

func setValidated(ctx context.Context, tx database.Execer, seq int64, total int, models []string, output string) error {
	text, err := json.Marshal(models)
	if err != nil {
		return err
	}
	return database.Exec(ctx, tx, `UPDATE batches SET total = $2, models = $3, output_file_id = $4 WHERE seq = $1`, seq, total, string(text), output)
}

func setErrorFile(ctx context.Context, tx database.Execer, seq int64, file string) error {
	return database.Exec(ctx, tx, `UPDATE batches SET error_file_id = $2 WHERE seq = $1`, seq, file)
}

// counts are added to a batch when lines have ended.
type counts struct {
	completed, failed                int64
	input, cached, output, reasoning int64 // tokens
}

func addCounts(ctx context.Context, tx database.Execer, seq int64, c counts) error {
	return database.Exec(ctx, tx, `UPDATE batches SET completed = completed + $2, failed = failed + $3, input_tokens = input_tokens + $4,
		cached_tokens = cached_tokens + $5, output_tokens = output_tokens + $6, reasoning_tokens = reasoning_tokens + $7 WHERE seq = $1`,
		seq, c.completed, c.failed, c.input, c.cached, c.output, c.reasoning)
}

// lineRef is a line that has no result yet: where it stands in the input file, and in the order of its batch.
type lineRef struct {
	model    int // index in Batch.Models
	position int64
	offset   int64 // bytes
	length   int64 // bytes
	attempts int
}

// linesPerInsert keeps a statement under SQLite's limit of parameters.
const linesPerInsert = 500

func insertLines(ctx context.Context, tx database.Execer, seq int64, lines []lineRef) error {
	for some := range slices.Chunk(lines, linesPerInsert) {
		args := make([]any, 0, 5*len(some))
		for _, l := range some {
			args = append(args, seq, l.model, l.position, l.offset, l.length)
		}
		text := `INSERT INTO batch_lines (batch, model, position, "offset", length, attempts) VALUES ` + tuples(len(some), 5, ", 0")
		if err := database.Exec(ctx, tx, text, args...); err != nil {
			return err
		}
	}
	return nil
}

// tuples returns n rows of parameters for VALUES, each with more behind its parameters.
func tuples(n, columns int, more string) string {
	var text strings.Builder
	for i := range n {
		separator := "("
		if i > 0 {
			separator = ", ("
		}
		for column := range columns {
			fmt.Fprintf(&text, "%s$%d", separator, i*columns+column+1)
			separator = ", "
		}
		text.WriteString(more + ")")
	}
	return text.String()
}

// clearLines deletes up to most lines of a batch, and reports whether there are more.
func clearLines(ctx context.Context, tx database.Execer, seq int64, most int) (more bool, err error) {
	n, err := database.Change(ctx, tx, `DELETE FROM batch_lines WHERE (batch, model, position) IN
		(SELECT batch, model, position FROM batch_lines WHERE batch = $1 LIMIT $2)`, seq, most)
	return n == int64(most), err
}

func scanLine(r database.Scanner) (l lineRef, err error) {
	return l, r.Scan(&l.model, &l.position, &l.offset, &l.length, &l.attempts)
}

// nextLines returns the lines of a model behind a position, in order.
func nextLines(ctx context.Context, q database.Reader, seq int64, model int, after int64, limit int) ([]lineRef, error) {
	return database.List(ctx, q, scanLine, `SELECT model, position, "offset", length, attempts FROM batch_lines
		WHERE batch = $1 AND model = $2 AND position > $3 ORDER BY position LIMIT $4`, seq, model, after, limit)
}

// restOfLines returns lines of any model.
func restOfLines(ctx context.Context, q database.Reader, seq int64, limit int) ([]lineRef, error) {
	return database.List(ctx, q, scanLine, `SELECT model, position, "offset", length, attempts FROM batch_lines WHERE batch = $1 LIMIT $2`, seq, limit)
}

// deleteLine deletes a line that has a result, and reports whether it was there.
func deleteLine(ctx context.Context, tx database.Execer, seq int64, l lineRef) (bool, error) {
	n, err := database.Change(ctx, tx, `DELETE FROM batch_lines WHERE batch = $1 AND model = $2 AND position = $3`, seq, l.model, l.position)
	return n > 0, err
}

func setAttempts(ctx context.Context, tx database.Execer, seq int64, l lineRef) error {
	return database.Exec(ctx, tx, `UPDATE batch_lines SET attempts = $4 WHERE batch = $1 AND model = $2 AND position = $3`,
		seq, l.model, l.position, l.attempts)
}

// recall returns what an earlier request has created, and from what. The error is sql.ErrNoRows if there was none.
func recall(ctx context.Context, q database.Reader, o *origin, now int64) (id string, digest []byte, err error) {
	err = q.QueryRowContext(ctx, `SELECT object_id, digest FROM idempotency WHERE key_id = $1 AND token = $2 AND expires_at > $3`,
		o.key, o.token, now).Scan(&id, &digest)
	return id, digest, err
}

// remember records what a request has created.
func remember(ctx context.Context, tx database.Execer, o *origin, id string, now int64) error {
	return database.Exec(ctx, tx, `INSERT INTO idempotency (key_id, token, digest, object_id, expires_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (key_id, token) DO UPDATE SET digest = excluded.digest, object_id = excluded.object_id, expires_at = excluded.expires_at`,
		o.key, o.token, o.digest, id, now+o.until)
}

func forget(ctx context.Context, tx database.Execer, now int64) error {
	return database.Exec(ctx, tx, `DELETE FROM idempotency WHERE expires_at <= $1`, now)
}
