package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	for _, part := range []struct {
		levels []*level // of whose longest periods one after the other is compared
		check  func(*checker, context.Context, segment) error
	}{
		{[]*level{days, hours}, (*checker).compareSeries},
		{[]*level{tagDays}, (*checker).compareTags},
		{[]*level{tagMonths}, (*checker).compareTags},
	} {
		periods, err := s.periods(ctx, part.levels)
		if err != nil {
			return fmt.Errorf("check rollups: %w", err)
		}
		longest := part.levels[0]
		for _, period := range periods {
			one := segment{level: longest, from: longest.start(period), to: longest.start(period + 1)}
			err := s.checkSnapshot(ctx, report, func(c *checker) error { return part.check(c, ctx, one) })
			if err != nil {
				return fmt.Errorf("check rollups of %s: %w", time.UnixMicro(one.from).UTC().Format(time.DateOnly), err)
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
	add := func(text string, start func(int64) int64) error {
		rows, err := s.db.Read().QueryContext(ctx, text) //nolint:sqlclosecheck // each closes it
		if err != nil {
			return err
		}
		return each(rows, func() error {
			var n int64
			err := rows.Scan(&n)
			if at := start(n); at >= kept {
				found[levels[0].number(at)] = true
			}
			return err
		})
	}
	if err := add(s.dialect.days, days.start); err != nil {
		return nil, err
	}
	for _, l := range levels {
		if err := add(`SELECT DISTINCT period FROM `+l.table, l.start); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// checker compares rollups while they do not change.
type checker struct {
	from   source
	now    state
	report func(Difference)
}

func (s *Store) checkSnapshot(ctx context.Context, report func(Difference), check func(*checker) error) error {
	tx, err := s.db.Read().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	c := &checker{from: source{tx, s.dialect}, report: report}
	if c.now, err = c.from.freezeRollups(ctx); err != nil {
		return err
	}
	return check(c)
}

// compareSeries compares the rollups of series in a day and its hours.
func (c *checker) compareSeries(ctx context.Context, day segment) error {
	var q statement
	q.add(`SELECT ` + c.from.number + `, ` + endedColumns + ` FROM requests`)
	c.addIncluded(&q, day)
	rows, err := q.query(ctx, c.from)
	if err != nil {
		return err
	}
	b := newBatch()
	err = each(rows, func() error {
		e, err := scanEnded(rows)
		b.addSeries(&e, 1)
		return err
	})
	if err != nil {
		return err
	}
	for _, l := range []*level{hours, days} {
		if err := c.compareLevel(ctx, b, l, day); err != nil {
			return err
		}
	}
	return nil
}

// addIncluded adds the condition for the rows of a period that the rollups include.
func (c *checker) addIncluded(q *statement, s segment) {
	q.addParam(` WHERE time >= `, s.from)
	q.addParam(` AND time < `, s.to)
	q.addCondition(c.from.upTo, c.now.seq)
}

// compareLevel compares the rollups of one level in a day with those of a batch, which it takes out of the batch.
func (c *checker) compareLevel(ctx context.Context, b *batch, l *level, day segment) error {
	text := `
		SELECT s.account_id, s.key_id, s.model, s.endpoint, s.workload, u.period,
			u.requests, u.errors, u.streams, u.prompt_tokens, u.completion_tokens, u.latency
		FROM usage_series s JOIN ` + l.table + ` u ON u.series = s.id AND u.period >= $1 AND u.period < $2`
	rows, err := c.from.QueryContext(ctx, text, l.number(day.from), l.number(day.to))
	if err != nil {
		return err
	}
	err = each(rows, func() error {
		var (
			k       seriesKey
			p       = levelPeriod{level: l}
			stored  rollup
			encoded []byte
		)
		err := rows.Scan(&k.account, &k.key, &k.model, &k.endpoint, &k.workload, &p.period, &stored.requests, &stored.errors,
			&stored.streams, &stored.prompt, &stored.completion, &encoded)
		if err != nil {
			return err
		}
		expected := b.series[k][p]
		if expected == nil {
			expected = &rollup{}
		}
		delete(b.series[k], p)
		detail := stored.difference(expected.counts)
		if err := stored.latency.mergeEncoded(encoded); err != nil {
			detail = "its latencies cannot be read"
		} else if detail == "" && string(stored.latency.encode()) != string(expected.latency.encode()) {
			detail = "its latencies differ from those of the rows"
		}
		c.add(p, k.String(), detail)
		return nil
	})
	if err != nil {
		return err
	}
	for k, periods := range b.series {
		for p, expected := range periods {
			if p.level == l {
				c.add(p, k.String(), counts{}.difference(expected.counts))
			}
		}
	}
	return nil
}

// compareTags compares the rollups of user tags in one period.
func (c *checker) compareTags(ctx context.Context, s segment) error {
	var q statement
	q.add(`SELECT account_id, key_id, user_tag, count(*), count(*) FILTER (WHERE ` + failedCondition + `),
		count(*) FILTER (WHERE stream), sum(prompt_tokens), sum(completion_tokens) FROM requests`)
	c.addIncluded(&q, s)
	q.add(` GROUP BY account_id, key_id, user_tag`)
	expected, err := c.tagCounts(ctx, q.text.String(), q.args...)
	if err != nil {
		return err
	}
	p := levelPeriod{s.level, s.level.number(s.from)}
	const columns = `SELECT k.account_id, k.key_id, coalesce(t.tag, ''), u.requests, u.errors, u.streams, u.prompt_tokens, u.completion_tokens`
	joins := ` FROM usage_keys k JOIN ` + s.level.table + ` u ON u.key = k.id AND u.period = $1 LEFT JOIN usage_tags t ON t.id = u.tag`
	named, err := c.tagCounts(ctx, columns+joins+` WHERE u.tag <> $2`, p.period, otherTags)
	if err != nil {
		return err
	}
	others, err := c.tagCounts(ctx, columns+joins+` WHERE u.tag = $2`, p.period, otherTags)
	if err != nil {
		return err
	}
	for k, want := range expected {
		owner := tagKey{account: k.account, key: k.key}
		other, hasOthers := others[owner]
		got, isNamed := named[k]
		switch {
		case !isNamed && hasOthers:
			other.sub(want)
			others[owner] = other
		default:
			c.add(p, k.String(), got.difference(want))
			delete(named, k)
		}
	}
	for k, got := range named {
		c.add(p, k.String(), got.difference(counts{}))
	}
	for owner, left := range others {
		if left != (counts{}) {
			owner.tag = OtherTags
			c.add(p, owner.String(), "the rollup is not the sum of the tags without one")
		}
	}
	return c.compareSums(ctx, p)
}

// compareSums compares the sums of user tags over all keys with their rollups in one period.
func (c *checker) compareSums(ctx context.Context, p levelPeriod) error {
	text := `
		SELECT coalesce(t.tag, $2), u.requests, u.errors, u.streams, u.prompt_tokens, u.completion_tokens
		FROM (
			SELECT tag, sum(requests) AS requests, sum(errors) AS errors, sum(streams) AS streams,
				sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens
			FROM (
				SELECT tag, requests, errors, streams, prompt_tokens, completion_tokens FROM ` + p.level.sums + ` WHERE period = $1
				UNION ALL
				SELECT tag, -requests, -errors, -streams, -prompt_tokens, -completion_tokens FROM ` + p.level.table + ` WHERE period = $1
			) v GROUP BY tag
		) u LEFT JOIN usage_tags t ON t.id = u.tag`
	rows, err := c.from.QueryContext(ctx, text, p.period, OtherTags)
	if err != nil {
		return err
	}
	p.level = &level{table: p.level.sums, start: p.level.start}
	return each(rows, func() error {
		var (
			tag    string
			excess counts
		)
		if err := rows.Scan(&tag, &excess.requests, &excess.errors, &excess.streams, &excess.prompt, &excess.completion); err != nil {
			return err
		}
		if excess != (counts{}) {
			c.add(p, fmt.Sprintf("user tag %q", tag), fmt.Sprintf("it exceeds the sum of all keys by %v", excess))
		}
		return nil
	})
}

// tagCounts runs a query for the counts of user tags.
func (c *checker) tagCounts(ctx context.Context, text string, args ...any) (map[tagKey]counts, error) {
	rows, err := c.from.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	all := map[tagKey]counts{}
	err = each(rows, func() error {
		var (
			k tagKey
			n counts
		)
		err := rows.Scan(&k.account, &k.key, &k.tag, &n.requests, &n.errors, &n.streams, &n.prompt, &n.completion)
		all[k] = n
		return err
	})
	return all, err
}

// add reports a difference, unless the detail is empty.
func (c *checker) add(p levelPeriod, group, detail string) {
	if detail != "" {
		start := time.UnixMicro(p.level.start(p.period)).UTC()
		c.report(Difference{Table: p.level.table, Period: start, Group: group, Detail: detail})
	}
}

// difference describes how the counts of a rollup differ from those of the rows; it is empty if they do not.
func (c counts) difference(rows counts) string {
	if c == rows {
		return ""
	}
	return fmt.Sprintf("the rollup has %v, the rows have %v", c, rows)
}

// String describes the counts.
func (c counts) String() string {
	return fmt.Sprintf("%d requests (%d errors, %d streams) with %d+%d tokens", c.requests, c.errors, c.streams, c.prompt, c.completion)
}

func (c *counts) sub(n counts) {
	c.requests -= n.requests
	c.errors -= n.errors
	c.streams -= n.streams
	c.prompt -= n.prompt
	c.completion -= n.completion
}

// String describes the series.
func (k seriesKey) String() string {
	return fmt.Sprintf("account %s, key %s, model %q, endpoint %q, workload %q", k.account, k.key, k.model, k.endpoint, k.workload)
}

// String describes the group of a user tag.
func (k tagKey) String() string {
	return fmt.Sprintf("account %s, key %s, user tag %q", k.account, k.key, k.tag)
}

// Rebuild makes all rollups again from the rows, but for those whose rows are not kept. On SQLite the caller holds the lock
// of the database, because a started Store has the numbers of series in memory.
func (s *Store) Rebuild(ctx context.Context) error {
	if s.stop != nil {
		return errors.New("rebuild rollups: the store is started")
	}
	err := s.db.WriteExclusive(ctx, func(tx database.Tx) error {
		return s.clearRollups(context.WithoutCancel(ctx), tx)
	})
	if err != nil {
		return fmt.Errorf("clear rollups: %w", err)
	}
	s.rollups = newRollups(s.dialect)
	s.rollups.rows = s.rollups.most()
	for {
		left, _, err := s.addBatch(ctx, s.reads())
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
	for _, l := range []*level{hours, days, tagDays, tagMonths} {
		for _, table := range []string{l.table, l.sums} {
			if table == "" {
				continue
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE period >= $1`, l.number(kept)); err != nil {
				return err
			}
		}
	}
	if kept == 0 {
		for _, table := range []string{"usage_series", "usage_keys", "usage_tags"} {
			if _, err := tx.ExecContext(ctx, `DELETE FROM `+table); err != nil {
				return err
			}
		}
	}
	_, err := tx.ExecContext(ctx, `UPDATE usage_watermark SET seq = 0, corrections = corrections + 1`)
	return err
}
