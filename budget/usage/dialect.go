package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// errRollupsBusy is returned if the rollups cannot be changed, because reports read them.
var errRollupsBusy = errors.New("the rollups are being read")

// dialect is what statements on the table requests do differently on SQLite and on PostgreSQL.
//
// Each row has a number, by which the rollups follow the table. On SQLite it is the row's own and rises with each
// insertion. On PostgreSQL it is that of the transaction that inserted the row. Transactions do not commit in the order of
// their numbers, so the rollups there take only rows below the oldest transaction that runs.
type dialect struct {
	number string // expression for a row's number, as an integer
	above  string // condition that a row's number is above a value, which takes the place of %s
	upTo   string // condition that it is not
	before string // condition that a row was inserted before a mark

	next string // query for the last number, and the count, of the rows that the rollups include next: about $2 after $1
	left string // query for the number of rows that the rollups do not include yet: $1 is the watermark
	mark string // query for the number of the last row, or a higher one, and for the snapshot, which is empty on SQLite
	kept string // query for the time since which rows are kept; 0 is all

	noIndex string // keeps the planner from using an index on other columns
	month   string // expression for the month of a row, as a level numbers it

	// Latencies are stored as lists of numbers with commas between them.
	join   string // aggregate of the lists u.counts
	list   string // aggregate of the integers that take the place of %s
	values string // function for a table with the integers of the list u.counts in its column value

	// shared tells that several gateways change the rollups.
	shared bool

	// freeze keeps the rollups from being changed until the end of a report, which has a snapshot on SQLite only. lock
	// begins a change of the rollups, and returns false if they are frozen.
	freeze, lock string
}

var sqlite = &dialect{
	number: `seq`,
	above:  `seq > %s`,
	upTo:   `seq <= %s`,
	before: `seq <= %s`,

	next: `SELECT coalesce(max(seq), 0), count(*) FROM (SELECT seq FROM requests WHERE seq > $1 ORDER BY seq LIMIT $2)`,
	left: `SELECT coalesce(max(seq), 0) - $1 FROM requests`,
	mark: `SELECT coalesce(max(seq), 0), '' FROM requests`,
	kept: `SELECT 0`,

	noIndex: ` NOT INDEXED`,
	month:   `strftime('%Y', time / 1000000, 'unixepoch') * 12 + strftime('%m', time / 1000000, 'unixepoch') - 1`,

	join:   `group_concat(u.counts)`,
	list:   `group_concat(%s)`,
	values: `json_each('[' || u.counts || ']')`,
}

// rollupsLock is the advisory lock of the rollups: the pair of "base" and "roll" in ASCII.
const rollupsLock = "1650553701, 1919904876"

var postgres = &dialect{
	number: `xid::text::bigint`,
	above:  `xid > (%s::bigint)::text::xid8`,
	upTo:   `xid <= (%s::bigint)::text::xid8`,
	before: `pg_visible_in_snapshot(xid, (%s::text)::pg_snapshot)`,

	// The rows of one transaction are not parted.
	next: `SELECT coalesce(max(xid::text::bigint), 0), count(*) FROM (
		SELECT xid FROM requests WHERE xid > ($1::bigint)::text::xid8 AND xid < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY xid FETCH FIRST ($2::bigint) ROWS WITH TIES) r`,
	left: `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 - $1`,
	mark: `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_snapshot()::text`,
	kept: `SELECT kept_since FROM usage_watermark`,

	month: `(extract(year FROM to_timestamp(time / 1000000) AT TIME ZONE 'UTC') * 12
		+ extract(month FROM to_timestamp(time / 1000000) AT TIME ZONE 'UTC') - 1)::bigint`,

	join:   `string_agg(u.counts, ',')`,
	list:   `string_agg((%s)::text, ',')`,
	values: `unnest(string_to_array(u.counts, ',')::bigint[]) AS value`,

	shared: true,
	freeze: `SELECT pg_advisory_xact_lock_shared(` + rollupsLock + `)`,
	// A plan for any number of new rows would read whole tables of rollups for few of them.
	lock: `SELECT pg_try_advisory_xact_lock(` + rollupsLock + `) FROM set_config('plan_cache_mode', 'force_custom_plan', true)`,
}

func dialectOf(db *database.DB) *dialect {
	if db.Postgres() != nil {
		return postgres
	}
	return sqlite
}

// mark is a moment: the rows that were inserted before it do not change. The zero value is after all rows.
type mark struct {
	last  int64 // no row has a higher number
	value any   // for the condition before; nil for the zero value
}

// addMark adds the condition that rows were inserted before a mark.
func (s *statement) addMark(d *dialect, m mark) {
	if m.value != nil {
		s.addCondition(d.before, m.value)
	}
}

// selectMark returns the present.
func selectMark(ctx context.Context, from source) (m mark, err error) {
	var snapshot string
	if err := from.QueryRowContext(ctx, from.mark).Scan(&m.last, &snapshot); err != nil {
		return mark{}, err
	}
	m.value = snapshot
	if snapshot == "" {
		m.value = m.last
	}
	return m, nil
}

// source runs the queries of a report.
type source struct {
	database.Reader
	*dialect
}

// report is database.DB.Report with a source.
func (s *Store) report(ctx context.Context, reader string, wait time.Duration, read func(context.Context, source) error) error {
	return s.db.Report(ctx, reader, wait, func(ctx context.Context, from database.Reader) error {
		return read(ctx, source{from, s.dialect})
	})
}

// reads returns the source of short reads.
func (s *Store) reads() source { return source{s.db.Read(), s.dialect} }

// state is what is read first of a report on the rollups and the rows that they do not include.
type state struct {
	watermark int64 // number of the last row that the rollups include
	at        mark
}

// freezeRollups keeps the rollups as they are until the end of the report, and returns their state. The report may then read
// the rollups and the rows by several statements, which agree.
func (s source) freezeRollups(ctx context.Context) (now state, err error) {
	if s.freeze != "" {
		if err := database.Each(ctx, s, func(*sql.Rows) error { return nil }, s.freeze); err != nil {
			return state{}, fmt.Errorf("freeze rollups: %w", err)
		}
	}
	if now.watermark, err = selectWatermark(ctx, s); err != nil {
		return state{}, err
	}
	if now.at, err = selectMark(ctx, s); err != nil {
		return state{}, fmt.Errorf("read newest row: %w", err)
	}
	return now, nil
}

// inSnapshot calls read with the rollups frozen, in a transaction that reads only, without the limits of a report.
func inSnapshot(ctx context.Context, db *database.DB, read func(from source, now state) error) error {
	tx, err := db.Read().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	from := source{tx, dialectOf(db)}
	now, err := from.freezeRollups(ctx)
	if err != nil {
		return err
	}
	return read(from, now)
}

func selectWatermark(ctx context.Context, from database.Reader) (number int64, err error) {
	if err := from.QueryRowContext(ctx, `SELECT seq FROM usage_watermark`).Scan(&number); err != nil {
		return 0, fmt.Errorf("read watermark: %w", err)
	}
	return number, nil
}

// lockRollups begins a change of the rollups. It does not wait for reports, because other writes would wait for it.
func (d *dialect) lockRollups(ctx context.Context, tx database.Tx) error {
	if d.lock == "" {
		return nil
	}
	var locked bool
	if err := tx.QueryRowContext(ctx, d.lock).Scan(&locked); err != nil {
		return fmt.Errorf("lock rollups: %w", err)
	}
	if !locked {
		return errRollupsBusy
	}
	return nil
}
