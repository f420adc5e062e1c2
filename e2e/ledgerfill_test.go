//go:build e2e

package e2e_test

import (
	"context"
	"database/sql"
	"math/bits"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// The ledger that fillLedger makes, beside its number of rows.
const (
	pagesMonths   = 3
	pagesAccounts = 20
	pagesKeys     = 3 // of each account
	pagesTags     = 1000
	pagesSpan     = pagesMonths * 30 * 24 * time.Hour

	// rowsAtOnce is the number of requests that one transaction adds. On PostgreSQL those of one are added to the rollups
	// together.
	rowsAtOnce = 10_000
)

// ledgerFill fills a database by statements that both engines understand.
type ledgerFill struct {
	t     *testing.T
	db    *sql.DB
	types *strings.Replacer // replaces what they name differently
}

// fillLedger adds accounts, keys, and the given number of requests, which end now and began pagesMonths ago. The first
// account is the environment's own. The gateway adds the requests to the rollups.
func (e *environment) fillLedger(rows int) {
	e.t.Helper()
	f := e.newLedgerFill()
	f.fill(rows, time.Now().Add(-pagesSpan))
}

// fillLedgerWithRollups is fillLedger with the rollups, which a gateway would take much longer to make.
func (e *environment) fillLedgerWithRollups(rows int) {
	e.t.Helper()
	f := e.newLedgerFill()
	begin := time.Now().Add(-pagesSpan)
	f.fill(rows, begin)
	f.fillRollups(begin)
	if e.postgresURL != "" {
		f.execute(`SELECT ledger_fill_v1()`)
		f.execute(`VACUUM (ANALYZE)`) // autovacuum does it within minutes
		f.execute(`CHECKPOINT`)
	}
}

func (e *environment) newLedgerFill() *ledgerFill {
	e.t.Helper()
	f := &ledgerFill{t: e.t, db: e.openLedger(), types: strings.NewReplacer()}
	if e.postgresURL == "" {
		f.db.SetMaxOpenConns(1) // the settings are those of a connection
		f.execute(`PRAGMA cache_size = -262144`)
		return f
	}
	f.types = strings.NewReplacer("BLOB", "BYTEA")
	for at := time.Now().Add(-pagesSpan); !at.After(time.Now()); at = at.AddDate(0, 0, 28) {
		f.execute(`SELECT ledger_partition_v1($1)`, at.UnixMicro())
	}
	return f
}

func (f *ledgerFill) execute(text string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(f.t.Context(), f.types.Replace(text), args...)
	must(f.t, err)
}

// padded returns an expression for an integer with 13 digits.
func padded(integer string) string {
	return `substr(CAST(10000000000000 + ` + integer + ` AS TEXT), 2)`
}

// scattered returns an expression for a number below limit that i has, by a multiplicative hash. With another multiplier the
// numbers are independent.
func scattered(multiplier, limit int) string {
	return `(i * ` + strconv.Itoa(multiplier) + ` % 2147483647 % ` + strconv.Itoa(limit) + `)`
}

// fill adds accounts, keys and requests.
func (f *ledgerFill) fill(rows int, begin time.Time) {
	f.t.Helper()
	accounts := `
		WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO accounts (id, email, name, admin, state, created_at)
		SELECT 'acc_' || ` + padded(`i`) + `, 'user' || i || '@example.org', '', false, 'active', 0 FROM n`
	keys := `
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
		SELECT 'key_' || ` + padded(`row_number() OVER (ORDER BY a.created_at DESC, a.id, i)`) + `, a.id, 'key ' || i,
			'acs-bm-' || substr(a.id, length(a.id) - 4) || i,
			CAST(substr('00000000000000000000000000000000' || a.id || i, length(a.id || i) + 1) AS BLOB), 'active', 0
		FROM accounts a, n`
	requests := `
		WITH RECURSIVE n (i) AS (SELECT CAST($1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < $2),
		ranked AS (SELECT id, account_id, row_number() OVER (ORDER BY id) - 1 AS rank FROM keys)
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		SELECT 'req_0000000000000' || ` + padded(`i`) + `, $3 + i * $4, k.id, k.account_id,
			'model-' || ` + scattered(950706376, 3) + `, 'gpu' || (i % 4),
			CASE WHEN ` + scattered(1226874159, 4) + ` > 0 THEN '/v1/completions' ELSE '/v1/chat/completions' END,
			CASE WHEN ` + scattered(62089911, 3) + ` > 0 THEN 'interactive' ELSE 'batch' END,
			'user-' || ` + scattered(1343714438, pagesTags) + `, i % 2 = 1,
			CASE WHEN i % 97 > 0 THEN 200 ELSE 502 END, CASE WHEN i % 97 > 0 THEN '' ELSE 'upstream_unreachable' END, 'settled',
			100 + i % 900, 20 + i % 300, i % 1000, i % 2 * (20000 + i * 7919 % 500000), 100000 + i * 7919 % 20000000
		FROM n JOIN ranked k ON k.rank = ` + scattered(742938285, pagesAccounts*pagesKeys)
	f.execute(accounts, pagesAccounts)
	f.execute(keys, pagesKeys)
	for first := 1; first <= rows; first += rowsAtOnce {
		last := min(first+rowsAtOnce-1, rows)
		f.execute(requests, first, last, begin.UnixMicro(), pagesSpan.Microseconds()/int64(rows))
	}
}

// periodSums are the columns of all rollups.
const periodSums = `, count(*), count(*) FILTER (WHERE code <> ''), count(*) FILTER (WHERE stream), sum(prompt_tokens), sum(completion_tokens)`

// fillRollups makes the rollups of all requests, as package usage would.
func (f *ledgerFill) fillRollups(begin time.Time) {
	f.t.Helper()
	f.execute(`
		INSERT INTO usage_series (account_id, key_id, model, endpoint, workload)
		SELECT DISTINCT account_id, key_id, model, endpoint, workload FROM requests`)
	f.execute(`INSERT INTO usage_keys (account_id, key_id) SELECT DISTINCT account_id, key_id FROM usage_series`)
	f.execute(`INSERT INTO usage_tags (tag) SELECT DISTINCT user_tag FROM requests`)
	const tagColumns = ` (key, period, tag, requests, errors, streams, prompt_tokens, completion_tokens) `
	month := time.Date(begin.UTC().Year(), begin.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	for ; !month.After(time.Now()); month = month.AddDate(0, 1, 0) {
		first, end := month.Unix()/86400, month.AddDate(0, 1, 0).Unix()/86400
		for day := first; day < end; day++ {
			f.fillSeries(day)
			f.execute(`
				INSERT INTO usage_tag_days`+tagColumns+`
				SELECT k.id, CAST($1 AS BIGINT), t.id`+periodSums+`
				FROM requests r CROSS JOIN usage_keys k CROSS JOIN usage_tags t
				WHERE r.time >= $2 AND r.time < $3 AND k.account_id = r.account_id AND k.key_id = r.key_id AND t.tag = r.user_tag
				GROUP BY k.id, t.id`, day, day*dayMicros, (day+1)*dayMicros)
		}
		f.execute(`
			INSERT INTO usage_tag_days`+tagColumns+`
			SELECT 0, period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
			FROM usage_tag_days WHERE period >= $1 AND period < $2 GROUP BY period, tag`, first, end)
		f.execute(`
			INSERT INTO usage_tag_months`+tagColumns+`
			SELECT key, CAST($1 AS BIGINT), tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
			FROM usage_tag_days WHERE period >= $2 AND period < $3 GROUP BY key, tag`,
			month.Year()*12+int(month.Month())-1, first, end)
	}
	last := `SELECT max(seq) FROM requests`
	if f.postgres() {
		last = `SELECT xid::text::bigint FROM requests ORDER BY requests.xid DESC LIMIT 1`
	}
	f.execute(`UPDATE usage_watermark SET seq = (` + last + `)`)
}

const (
	hourMicros = int64(time.Hour / time.Microsecond)
	dayMicros  = 24 * hourMicros
)

// seriesPeriod identifies a rollup of a series.
type seriesPeriod struct{ series, period int64 }

type seriesRollups map[seriesPeriod]*seriesRollup

// of returns the rollup of a series in a period.
func (all seriesRollups) of(series, period int64) *seriesRollup {
	id := seriesPeriod{series, period}
	if all[id] == nil {
		all[id] = new(seriesRollup)
	}
	return all[id]
}

// seriesRollup is a rollup of a series in the course of its making.
type seriesRollup struct {
	requests, errors, streams, prompt, completion int64
	latencies                                     [1024]int64 // by symbol: 512 are of the first token, and 512 of the whole
}

// fillSeries makes the rollups of series in a day, by hours and of the whole.
func (f *ledgerFill) fillSeries(day int64) {
	f.t.Helper()
	rows, err := f.db.QueryContext(f.t.Context(), `
		SELECT s.id, r.time, r.code <> '', r.stream, r.prompt_tokens, r.completion_tokens, r.first_token_us, r.total_us
		FROM requests r CROSS JOIN usage_series s
		WHERE r.time >= $1 AND r.time < $2 AND (s.account_id, s.key_id, s.model, s.endpoint, s.workload)
			= (r.account_id, r.key_id, r.model, r.endpoint, r.workload)`, day*dayMicros, (day+1)*dayMicros)
	must(f.t, err)
	defer rows.Close()
	hours, days := seriesRollups{}, seriesRollups{}
	for rows.Next() {
		var (
			series, at, prompt, completion int64
			failed, stream                 bool
			latencies                      [2]int64
		)
		must(f.t, rows.Scan(&series, &at, &failed, &stream, &prompt, &completion, &latencies[0], &latencies[1]))
		hours.of(series, at/hourMicros).add(failed, stream, prompt, completion, latencies)
		days.of(series, day).add(failed, stream, prompt, completion, latencies)
	}
	must(f.t, rows.Err())
	f.insertSeries("usage_hours", hours)
	f.insertSeries("usage_days", days)
	lists := make([][]any, 0, len(days))
	for id, r := range days {
		lists = append(lists, []any{id.series, id.period, r.latencyList()})
	}
	f.insert("usage_latencies", []string{"series", "period", "counts"}, lists)
}

func (r *seriesRollup) add(failed, stream bool, prompt, completion int64, latencies [2]int64) {
	r.requests++
	r.prompt += prompt
	r.completion += completion
	if stream {
		r.streams++
	}
	if failed {
		r.errors++
		return
	}
	for i, us := range latencies {
		if i == 1 || us > 0 {
			r.latencies[i*512+latencyBucket(us)]++
		}
	}
}

// latencyBucket returns the number of the bucket for a duration in microseconds: there are eight for each power of two.
func latencyBucket(us int64) int {
	if us < 16 {
		return int(us)
	}
	octave := bits.Len64(uint64(us)) - 1
	return 16 + (octave-4)*8 + int(us>>(octave-3))&7
}

// latencyList returns the latencies as the table usage_latencies has them.
func (r *seriesRollup) latencyList() string {
	var all []string
	for symbol, n := range r.latencies {
		if n > 0 {
			all = append(all, strconv.FormatInt(n*1024+int64(symbol), 10))
		}
	}
	return strings.Join(all, ",")
}

func (f *ledgerFill) postgres() bool {
	_, ok := f.db.Driver().(*stdlib.Driver)
	return ok
}

func (f *ledgerFill) insertSeries(table string, rollups seriesRollups) {
	f.t.Helper()
	rows := make([][]any, 0, len(rollups))
	for id, r := range rollups {
		rows = append(rows, []any{id.series, id.period, r.requests, r.errors, r.streams, r.prompt, r.completion})
	}
	f.insert(table, []string{"series", "period", "requests", "errors", "streams", "prompt_tokens", "completion_tokens"}, rows)
}

// insert inserts rows, on PostgreSQL by COPY.
func (f *ledgerFill) insert(table string, columns []string, rows [][]any) {
	f.t.Helper()
	ctx := f.t.Context()
	if f.postgres() {
		conn, err := f.db.Conn(ctx)
		must(f.t, err)
		defer conn.Close()
		must(f.t, conn.Raw(func(raw any) error {
			_, err := raw.(*stdlib.Conn).Conn().CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromRows(rows))
			return err
		}))
		return
	}
	must(f.t, insertInTransaction(ctx, f.db, `INSERT INTO `+table+` (`+strings.Join(columns, ", ")+`) VALUES (?`+strings.Repeat(", ?", len(columns)-1)+`)`, rows))
}

// insertInTransaction executes a statement for each of many rows.
func insertInTransaction(ctx context.Context, db *sql.DB, text string, rows [][]any) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit there is nothing to do
	insert, err := tx.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	defer insert.Close()
	for _, row := range rows {
		if _, err := insert.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return tx.Commit()
}
