package usage

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/database"
	"basegate/internal/wait"
)

// Difference is a rollup that is not the sum of its rows.
type Difference struct {
	Table  string
	Period time.Time // its start
	Group  string    // what the requests of the rollup have in common
	Detail string
}

// String returns the difference as one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s, %s, %s: %s", d.Table, d.Period.Format("2006-01-02 15:04"), d.Group, d.Detail)
}

// Check compares all rollups with the rows that they include, and calls report with each difference. A gateway may be
// running: Check reads one day or month at a time, each in a snapshot of its own.
func (s *Store) Check(ctx context.Context, report func(Difference)) error {
	for _, levels := range [][]*level{{days, hours, latencies}, {tagDays}, {tagMonths}} { // periods of the first of each are read one by one
		periods, err := s.periods(ctx, levels)
		if err != nil {
			return fmt.Errorf("check rollups: %w", err)
		}
		for _, period := range periods {
			from, to := levels[0].start(period), levels[0].start(period+1)
			if err := s.checkTimes(ctx, levels, from, to, report); err != nil {
				return fmt.Errorf("check rollups of %s: %w", time.UnixMicro(from).UTC().Format(time.DateOnly), err)
			}
		}
	}
	return nil
}

// periods returns the periods of the first level for which there are rollups of any level, or rows that these include, unless
// their rows are not kept.
func (s *Store) periods(ctx context.Context, levels []*level) ([]int64, error) {
	found := map[int64]bool{}
	var kept int64
	if err := s.db.Read().QueryRowContext(ctx, s.dialect.kept).Scan(&kept); err != nil {
		return nil, err
	}
	included := fmt.Sprintf(s.dialect.upTo, `(SELECT seq FROM usage_watermark)`)
	queries := map[string]*level{`SELECT DISTINCT ` + days.column(s.dialect) + ` FROM requests WHERE ` + included: days}
	for _, l := range levels {
		queries[`SELECT DISTINCT period FROM `+l.table] = l
	}
	for text, l := range queries {
		err := database.Each(ctx, s.db.Read(), func(rows *sql.Rows) error {
			var n int64
			err := rows.Scan(&n)
			if at := l.start(n); at >= kept {
				found[levels[0].number(at)] = true
			}
			return err
		}, text)
		if err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// checkTimes compares the rollups of a range of times while they do not change.
func (s *Store) checkTimes(ctx context.Context, levels []*level, from, to int64, report func(Difference)) error {
	return inSnapshot(ctx, s.db, func(reads source, now state) error {
		for _, l := range levels {
			if err := reads.compare(ctx, l, from, to, now.watermark, report); err != nil {
				return fmt.Errorf("%s: %w", l.table, err)
			}
		}
		return nil
	})
}

// sums are those of a rollup.
type sums struct{ requests, errors, streams, prompt, completion, saved, cached, known int64 }

// String describes the sums.
func (s sums) String() string {
	return fmt.Sprintf("%d requests (%d errors, %d streams) with %d+%d tokens (cached %d of %d), and %d saved",
		s.requests, s.errors, s.streams, s.prompt, s.completion, s.cached, s.known, s.saved)
}

// compare reports the rollups of one level, in a range of times, that differ from the rows up to a number.
func (s source) compare(ctx context.Context, l *level, from, to, upTo int64, report func(Difference)) error {
	stored, expected := s.compared(l)
	text := `WITH stored AS (` + stored + `), expected AS (` + expected + `)
		SELECT 0, d.* FROM (SELECT * FROM stored EXCEPT SELECT * FROM expected) d
		UNION ALL
		SELECT 1, d.* FROM (SELECT * FROM expected EXCEPT SELECT * FROM stored) d`
	type rollup struct {
		period int64
		name   string
	}
	found := map[rollup]*[2]sums{}
	err := database.Each(ctx, s, func(rows *sql.Rows) error {
		var (
			r    rollup
			side int
			n    sums
		)
		err := rows.Scan(&side, &r.name, &r.period, &n.requests, &n.errors, &n.streams, &n.prompt, &n.completion, &n.saved, &n.cached, &n.known)
		if err != nil {
			return err
		}
		if found[r] == nil {
			found[r] = new([2]sums)
		}
		found[r][side] = n
		return nil
	}, text, l.number(from), l.number(to), from, to, upTo)
	inOrder := func(a, b rollup) int { return cmp.Or(cmp.Compare(a.period, b.period), cmp.Compare(a.name, b.name)) }
	for _, r := range slices.SortedFunc(maps.Keys(found), inOrder) {
		report(Difference{
			Table: l.table, Period: time.UnixMicro(l.start(r.period)).UTC(),
			Group:  strings.Trim(strconv.QuoteToGraphic(r.name), `"`), // clients choose parts, which must not move the cursor of a terminal
			Detail: fmt.Sprintf("the rollup has %v, the rows have %v", found[r][0], found[r][1]),
		})
	}
	return err
}

// compared returns the query for the rollups of a level, and the one for what they should be: a name of what their requests have
// in common, the period and the sums. The parameters are the range of periods, that of times, and the last number.
func (d *dialect) compared(l *level) (stored, expected string) {
	const (
		sums   = `u.requests, u.errors, u.streams, u.prompt_tokens, u.completion_tokens, u.saved_tokens, u.cached_tokens, u.known_tokens`
		series = `'account ' || s.account_id || ', key ' || s.key_id || ', model ' || s.model || ', endpoint ' || s.endpoint
			|| ', workload ' || s.workload || CASE WHEN s.run = '' THEN '' ELSE ', run ' || s.run END`
		periods = ` WHERE u.period >= $1 AND u.period < $2`
	)
	from := ` FROM (SELECT r.*, ` + seriesRun + ` AS series_run FROM requests r) s WHERE time >= $3 AND time < $4 AND ` + fmt.Sprintf(d.upTo, `$5`)
	notEmpty := ` AND (` + sums + `) <> (0, 0, 0, 0, 0, 0, 0, 0)`                                                                // a correction may leave an empty one
	columns, name := strings.Replace(seriesColumns, `run`, `series_run`, 1), strings.ReplaceAll(series, `s.run`, `s.series_run`) // of rows
	switch l {
	case hours, days:
		stored = `SELECT coalesce(` + series + `, 'series ' || u.series), u.period, ` + sums + `
			FROM ` + l.table + ` u LEFT JOIN usage_series s ON s.id = u.series` + periods + notEmpty
		expected = `SELECT ` + name + `, ` + l.column(d) + `, ` + counted(`1`) + from + ` GROUP BY ` + columns + `, 2`
	case latencies:
		const symbol = ` || ', latency ' || symbol, period, n, 0, 0, 0, 0, 0, 0, 0 FROM (`
		stored = `SELECT coalesce(` + series + `, 'series ' || u.series)` + symbol + `
				SELECT u.series, u.period, ` + fmt.Sprintf(`value %% %[1]d AS symbol, sum(value / %[1]d) AS n`, symbols) + `
				FROM usage_latencies u CROSS JOIN ` + d.values + periods + ` GROUP BY 1, 2, 3
			) u LEFT JOIN usage_series s ON s.id = u.series`
		expected = `SELECT ` + name + symbol + selectSymbols(columns+`, `+l.column(d)+` AS period`, 7, `1`, from) + `) s`
	default:
		key := `'account ' || k.account_id || ', key ' || k.key_id || ', user tag ' || `
		sum := `'all keys, user tag ' || coalesce(t.tag, '` + OtherTags + `')`
		stored = `SELECT CASE WHEN u.key = 0 THEN ` + sum + ` ELSE coalesce(` + key + `coalesce(t.tag, '` + OtherTags + `'), 'key ' || u.key) END,
				u.period, ` + sums + `
			FROM ` + l.table + ` u LEFT JOIN usage_keys k ON k.id = u.key LEFT JOIN usage_tags t ON t.id = u.tag` + periods + notEmpty
		expected = `
			SELECT ` + key + `CASE WHEN own.tag IS NULL AND other.tag = 0 THEN '` + OtherTags + `' ELSE k.user_tag END, k.period, ` +
			strings.ReplaceAll(summed, `u.`, `k.`) + `
			FROM (SELECT account_id, key_id, user_tag, CAST($1 AS BIGINT) AS period, ` + counted(`1`) + from + ` GROUP BY 1, 2, 3) k
			LEFT JOIN usage_keys i ON i.account_id = k.account_id AND i.key_id = k.key_id
			LEFT JOIN usage_tags t ON t.tag = k.user_tag
			LEFT JOIN ` + l.table + ` own ON own.key = i.id AND own.period = $1 AND own.tag = t.id
			LEFT JOIN ` + l.table + ` other ON other.key = i.id AND other.period = $1 AND other.tag = 0
			GROUP BY 1, 2, own.tag
			UNION ALL
			SELECT ` + sum + `, u.period, ` + summed + `
			FROM ` + l.table + ` u LEFT JOIN usage_tags t ON t.id = u.tag` + periods + ` AND u.key <> 0 GROUP BY u.tag, t.tag, u.period`
	}
	return stored, expected
}

// Rebuild makes all rollups again from the rows, but for those whose rows are not kept. On SQLite the caller holds the lock
// of the database.
func (s *Store) Rebuild(ctx context.Context) error {
	err := s.db.WriteExclusive(ctx, func(tx database.Tx) error { return s.clearRollups(ctx, tx) })
	if err != nil {
		return fmt.Errorf("clear rollups: %w", err)
	}
	_, s.rollups.rows = s.dialect.batchRows()
	for {
		left, _, err := s.addBatch(ctx)
		switch {
		case errors.Is(err, errMoved), errors.Is(err, errRollupsBusy): // a gateway adds rows too, or a page is read
			if !wait.For(ctx, busyPause) {
				return context.Cause(ctx)
			}
		case err != nil, left == 0:
			return err
		}
	}
}

// clearRollups deletes the rollups that can be made again.
func (s *Store) clearRollups(ctx context.Context, tx database.Tx) error {
	if err := s.dialect.lockRollups(ctx, tx); err != nil {
		return err
	}
	var kept int64
	if err := tx.QueryRowContext(ctx, s.dialect.kept).Scan(&kept); err != nil {
		return err
	}
	for _, l := range []*level{hours, days, latencies, tagDays, tagMonths} {
		if _, err := tx.ExecContext(ctx, `DELETE FROM `+l.table+` WHERE period >= $1`, l.number(kept)); err != nil {
			return err
		}
	}
	if kept == 0 {
		for _, table := range []string{"usage_series", "usage_keys", "usage_tags"} {
			if _, err := tx.ExecContext(ctx, `DELETE FROM `+table); err != nil {
				return err
			}
		}
	}
	_, err := tx.ExecContext(ctx, `UPDATE usage_watermark SET seq = 0`)
	return err
}
