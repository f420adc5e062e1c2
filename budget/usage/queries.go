package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"basegate/database"
)

// failedCondition is true for the rows of requests that count as errors. The index requests_failed has exactly these.
const failedCondition = `(code <> '' OR state = 'interrupted')`

// statement is a query under construction. Its text consists of constants; all values are parameters.
type statement struct {
	text strings.Builder
	args []any
}

func (s *statement) add(text string) { s.text.WriteString(text) }

// addParam adds text, followed by a parameter.
func (s *statement) addParam(text string, value any) {
	s.args = append(s.args, value)
	s.text.WriteString(text + "$" + strconv.Itoa(len(s.args)))
}

// addFilter adds the conditions on account, key and model, whose columns have the given prefix.
func (s *statement) addFilter(f *Filter, prefix string) {
	for _, c := range []struct{ column, value string }{
		{"account_id", f.Account}, {"key_id", f.Key}, {"model", f.Model},
	} {
		if c.value != "" {
			s.addParam(` AND `+prefix+c.column+` = `, c.value)
		}
	}
}

// addRowFilter adds the conditions of a filter on rows of requests.
func (s *statement) addRowFilter(f *Filter) {
	from, to := f.bounds()
	if from > minTime {
		s.addParam(` AND time >= `, from)
	}
	if to < maxTime {
		s.addParam(` AND time < `, to)
	}
	s.addFilter(f, "")
	if f.Failed {
		s.add(` AND ` + failedCondition)
	}
	if f.Search != "" {
		s.args = append(s.args, f.Search, len([]rune(f.Search)))
		s.add(searchCondition(len(s.args)-1, len(s.args)))
	}
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

func (s *statement) query(ctx context.Context, from source) (*sql.Rows, error) {
	return from.QueryContext(ctx, s.text.String(), s.args...)
}

// queryInt runs a query whose result is one integer; found is false if it is NULL or there is none.
func (s *statement) queryInt(ctx context.Context, from source) (n int64, found bool, err error) {
	var result sql.NullInt64
	err = from.QueryRowContext(ctx, s.text.String(), s.args...).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return result.Int64, result.Valid, err
}

// each calls do with every row of a result.
func each(rows *sql.Rows, do func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := do(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// watermark is the state of the rollups.
type watermark struct {
	seq         int64 // the last row that they include
	corrections int64 // how many rows were changed after their insertion
}

func selectWatermark(ctx context.Context, from source) (w watermark, err error) {
	const text = `SELECT seq, corrections FROM usage_watermark`
	err = from.QueryRowContext(ctx, text).Scan(&w.seq, &w.corrections)
	return w, err
}

// advanceWatermark moves the watermark, and reports whether it was where the caller has read it.
func advanceWatermark(ctx context.Context, tx database.Execer, from watermark, to int64) (moved bool, err error) {
	const text = `UPDATE usage_watermark SET seq = $1 WHERE seq = $2 AND corrections = $3`
	result, err := tx.ExecContext(ctx, text, to, from.seq, from.corrections)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func countCorrection(ctx context.Context, tx database.Execer) error {
	_, err := tx.ExecContext(ctx, `UPDATE usage_watermark SET corrections = corrections + 1`)
	return err
}

// requestColumns are the columns that scanRequest scans.
const requestColumns = `request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
	status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us`

// scanner is a row of a result.
type scanner interface {
	Scan(targets ...any) error
}

func scanRequest(rows scanner) (r Row, err error) {
	var at, queue, first, total int64
	err = rows.Scan(&r.RequestID, &at, &r.KeyID, &r.AccountID, &r.Model, &r.Backend, &r.Endpoint, &r.Workload, &r.User,
		&r.Stream, &r.Status, &r.Code, &r.State, &r.PromptTokens, &r.CompletionTokens, &queue, &first, &total)
	r.Requests, r.Time = 1, time.UnixMicro(at).UTC()
	if r.Code != "" || r.State == Interrupted { // a refused request has a code
		r.Errors = 1
	}
	if r.Stream {
		r.Streams = 1
	}
	r.Queue = time.Duration(queue) * time.Microsecond
	r.FirstToken = time.Duration(first) * time.Microsecond
	r.Total = time.Duration(total) * time.Microsecond
	return r, err
}

// position is that of a row in the order of requests, which is from the newest.
type position struct {
	time int64
	id   string
}

// selectRequests returns up to limit rows after a position, among those before a mark, and the position of the last one.
func selectRequests(ctx context.Context, from source, f *Filter, at mark, after *position, limit int) (
	page []Row, end position, err error,
) {
	within := *f
	if after != nil { // SQLite seeks by the bound of the time, not by the comparison of two columns
		within.Until = time.UnixMicro(after.time + 1)
	}
	found, err := selectPlaced(ctx, from, ledgerTable, &within, "", at, after, limit)
	for _, r := range found {
		page, end = append(page, r.row), position{time: r.at.time, id: r.at.id}
	}
	return page, end, err
}

// selectNthTime returns the time of the nth newest request that Account, Failed and the range of times select; found is
// false if there are fewer.
func selectNthTime(ctx context.Context, from source, f Filter, n int) (at int64, found bool, err error) {
	f.Key, f.Model, f.Search = "", "", ""
	var s statement
	s.add(`SELECT time FROM requests WHERE true`)
	s.addRowFilter(&f)
	s.addParam(` ORDER BY time DESC LIMIT 1 OFFSET `, n-1)
	return s.queryInt(ctx, from)
}

// selectLastDay returns the newest day for which there are rollups.
func selectLastDay(ctx context.Context, from source, f *Filter) (day int64, found bool, err error) {
	var s statement
	s.add(`SELECT max(u.period) FROM usage_series s JOIN usage_days u ON u.series = s.id WHERE true`)
	s.addFilter(f, "s.")
	return s.queryInt(ctx, from)
}

// hasTail reports whether the filter selects rows after the watermark.
func hasTail(ctx context.Context, from source, f *Filter, w watermark) (bool, error) {
	var s statement
	s.add(`SELECT 1 FROM requests` + from.noIndex + ` WHERE true`)
	s.addCondition(from.above, w.seq)
	s.addRowFilter(f)
	s.add(` LIMIT 1`)
	_, found, err := s.queryInt(ctx, from)
	return found, err
}

// selectByID returns the rows whose id is the given one: one or none.
func selectByID(ctx context.Context, from source, f Filter, id string) ([]Row, error) {
	f.Search = ""
	var s statement
	s.addParam(`SELECT `+requestColumns+` FROM requests WHERE request_id = `, id)
	s.addRowFilter(&f)
	found, err := s.query(ctx, from)
	if err != nil {
		return nil, err
	}
	var all []Row
	err = each(found, func() error {
		r, err := scanRequest(found)
		all = append(all, r)
		return err
	})
	return all, err
}
