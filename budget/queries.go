package budget

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"basegate/database"
)

// querier runs queries: a *sql.DB or a transaction.
type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// State is the state of a request's row.
type State string

// The states.
const (
	Settled     State = "settled"     // ended by Settle, successfully or not
	Interrupted State = "interrupted" // ended by Release, or left in flight by a crash

	inFlight State = "in_flight"
)

// row is the row of a request.
type row struct {
	request Request
	state   State
	outcome Outcome
}

func insertRequest(ctx context.Context, tx database.Execer, r row) error {
	const text = `
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`
	q, o := &r.request, &r.outcome
	_, err := tx.ExecContext(ctx, text,
		q.ID, q.Time.UnixMicro(), q.KeyID, q.AccountID, q.Model, o.Backend, q.Endpoint, q.Workload, q.User, q.Stream,
		int64(o.Status), o.Code, string(r.state), o.Prompt, o.Completion,
		o.Queue.Microseconds(), o.FirstToken.Microseconds(), o.Total.Microseconds())
	return err
}

// updateRequest completes a row, and reports whether it exists.
func updateRequest(ctx context.Context, tx database.Execer, r row) (found bool, err error) {
	const text = `
		UPDATE requests SET backend = $2, status = $3, code = $4, state = $5, prompt_tokens = $6, completion_tokens = $7,
			queue_us = $8, first_token_us = $9, total_us = $10
		WHERE request_id = $1`
	o := &r.outcome
	result, err := tx.ExecContext(ctx, text,
		r.request.ID, o.Backend, int64(o.Status), o.Code, string(r.state), o.Prompt, o.Completion,
		o.Queue.Microseconds(), o.FirstToken.Microseconds(), o.Total.Microseconds())
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows > 0, err
}

// updateProgress writes a checkpoint, and reports whether the row exists and is in flight.
func updateProgress(ctx context.Context, tx database.Execer, id string, p progress) (found bool, err error) {
	const text = `
		UPDATE requests SET backend = $2, prompt_tokens = $3, completion_tokens = $4
		WHERE request_id = $1 AND state = 'in_flight'`
	result, err := tx.ExecContext(ctx, text, id, p.backend, p.prompt, p.completion)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// interruptRequests marks all rows in flight as interrupted.
func interruptRequests(ctx context.Context, tx database.Tx) (rows int64, err error) {
	const text = `UPDATE requests SET state = 'interrupted' WHERE state = 'in_flight'`
	result, err := tx.ExecContext(ctx, text)
	if err != nil {
		return 0, fmt.Errorf("mark requests in flight as interrupted: %w", err)
	}
	return result.RowsAffected()
}

// dailyUsage is the usage of one key on one day.
type dailyUsage struct {
	key, account       string
	day                time.Time
	prompt, completion int64
	lastRequest        time.Time // when the latest request arrived
}

// dayMicros is a day in microseconds, the unit of the tables.
const dayMicros = int64(24 * time.Hour / time.Microsecond)

// selectDailyUsage calls each with the usage of every key and day, from the day that starts at since.
func selectDailyUsage(ctx context.Context, q querier, since time.Time, each func(dailyUsage)) error {
	const text = `
		SELECT key_id, account_id, time / $2, sum(prompt_tokens), sum(completion_tokens), max(time)
		FROM requests WHERE time >= $1
		GROUP BY key_id, account_id, time / $2`
	rows, err := q.QueryContext(ctx, text, since.UnixMicro(), dayMicros)
	if err != nil {
		return fmt.Errorf("read daily usage: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			u         dailyUsage
			day, last int64
		)
		if err := rows.Scan(&u.key, &u.account, &day, &u.prompt, &u.completion, &last); err != nil {
			return fmt.Errorf("read daily usage: %w", err)
		}
		u.day, u.lastRequest = time.UnixMicro(day*dayMicros).UTC(), time.UnixMicro(last).UTC()
		each(u)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read daily usage: %w", err)
	}
	return nil
}

// scanner scans the current row of a result.
type scanner interface {
	Scan(to ...any) error
}

// usageQuery is the query for one Grouping.
type usageQuery struct {
	columns string // of SELECT
	tail    string // GROUP BY and ORDER BY, after the conditions
	scan    func(scanner) (Row, error)
}

func usageQueryFor(by Grouping) (q usageQuery, ok bool) {
	const (
		sums      = `, count(*), sum(prompt_tokens), sum(completion_tokens)`
		mostFirst = ` ORDER BY sum(prompt_tokens + completion_tokens) DESC, `
	)
	switch by {
	case ByRequest:
		return usageQuery{
			columns: `request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us`,
			tail: ` ORDER BY time DESC, request_id DESC`, scan: scanRequest,
		}, true
	case ByKey:
		return usageQuery{`key_id, account_id` + sums, ` GROUP BY key_id, account_id` + mostFirst + `key_id`, scanKey}, true
	case ByAccount:
		return usageQuery{`account_id` + sums, ` GROUP BY account_id` + mostFirst + `account_id`, scanAccount}, true
	case ByModel:
		return usageQuery{`model` + sums, ` GROUP BY model` + mostFirst + `model`, scanModel}, true
	case ByWorkload:
		return usageQuery{`workload` + sums, ` GROUP BY workload` + mostFirst + `workload`, scanWorkload}, true
	case ByUser:
		return usageQuery{`user_tag` + sums, ` GROUP BY user_tag` + mostFirst + `user_tag`, scanUser}, true
	case ByDayModel:
		return usageQuery{`time / 86400000000, model` + sums, ` GROUP BY 1, model ORDER BY 1 DESC, model`, scanDayModel}, true
	case ByDay:
		return usageQuery{`time / 86400000000` + sums, ` GROUP BY 1 ORDER BY 1 DESC`, scanDay}, true
	}
	return usageQuery{}, false
}

// selectUsage runs a usage query. Its text consists of constants; all values of the filter are parameters.
func selectUsage(ctx context.Context, db querier, f Filter, q usageQuery) (*sql.Rows, error) {
	var (
		text strings.Builder
		args []any
	)
	text.WriteString(`SELECT ` + q.columns + ` FROM requests WHERE state <> 'in_flight'`)
	param := func(before string, value any) {
		args = append(args, value)
		text.WriteString(before + "$" + strconv.Itoa(len(args)))
	}
	if !f.Since.IsZero() {
		param(` AND time >= `, f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		param(` AND time < `, f.Until.UnixMicro())
	}
	if f.Account != "" {
		param(` AND account_id = `, f.Account)
	}
	if f.Key != "" {
		param(` AND key_id = `, f.Key)
	}
	if f.Model != "" {
		param(` AND model = `, f.Model)
	}
	if f.Failed {
		text.WriteString(` AND (code <> '' OR state = 'interrupted')`)
	}
	if f.Search != "" {
		args = append(args, f.Search, len([]rune(f.Search)))
		text.WriteString(searchCondition(len(args)-1, len(args)))
	}
	text.WriteString(q.tail)
	if f.Limit > 0 {
		param(` LIMIT `, f.Limit)
	}
	return db.QueryContext(ctx, text.String(), args...)
}

// searchCondition returns the condition for Filter.Search. The arguments are the numbers of the parameters that hold
// the text and its length in characters. It does not use LIKE, because the text may contain its wildcards.
func searchCondition(text, length int) string {
	startsWith := func(column string) string { return fmt.Sprintf(`substr(%s, 1, $%d) = $%d`, column, length, text) }
	contains := func(column string) string { return fmt.Sprintf(`replace(%s, $%d, '') <> %s`, column, text, column) }
	return ` AND (` + strings.Join([]string{
		startsWith("request_id"), startsWith("code"), contains("user_tag"), contains("workload"), contains("backend"),
	}, ` OR `) + `)`
}

func scanRequest(from scanner) (r Row, err error) {
	var at, queue, first, total int64
	err = from.Scan(&r.RequestID, &at, &r.KeyID, &r.AccountID, &r.Model, &r.Backend, &r.Endpoint, &r.Workload, &r.User,
		&r.Stream, &r.Status, &r.Code, &r.State, &r.PromptTokens, &r.CompletionTokens, &queue, &first, &total)
	r.Requests, r.Time = 1, time.UnixMicro(at).UTC()
	r.Queue = time.Duration(queue) * time.Microsecond
	r.FirstToken = time.Duration(first) * time.Microsecond
	r.Total = time.Duration(total) * time.Microsecond
	return r, err
}

func scanKey(from scanner) (r Row, err error) {
	err = from.Scan(&r.KeyID, &r.AccountID, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	return r, err
}

func scanAccount(from scanner) (r Row, err error) {
	err = from.Scan(&r.AccountID, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	return r, err
}

func scanModel(from scanner) (r Row, err error) {
	err = from.Scan(&r.Model, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	return r, err
}

func scanWorkload(from scanner) (r Row, err error) {
	err = from.Scan(&r.Workload, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	return r, err
}

func scanUser(from scanner) (r Row, err error) {
	err = from.Scan(&r.User, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	return r, err
}

func scanDayModel(from scanner) (r Row, err error) {
	var day int64
	err = from.Scan(&day, &r.Model, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	r.Time = time.UnixMicro(day * dayMicros).UTC()
	return r, err
}

func scanDay(from scanner) (r Row, err error) {
	var day int64
	err = from.Scan(&day, &r.Requests, &r.PromptTokens, &r.CompletionTokens)
	r.Time = time.UnixMicro(day * dayMicros).UTC()
	return r, err
}
