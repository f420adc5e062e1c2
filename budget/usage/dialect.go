package usage

import (
	"context"
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
	number  string    // expression for a row's number, as an integer
	above   [2]string // condition that a row's number is above a parameter, which stands between the two parts
	upTo    [2]string // condition that it is not
	before  [2]string // condition that a row was inserted before a mark
	mark    string    // query for the number of the last row, or a higher one, and for the snapshot, which is empty on SQLite
	noIndex string    // keeps the planner from using an index on other columns
	joined  string    // aggregate of the encoded latencies of rollups u, one after the other
	next    string    // query for the rows that the rollups include next: $1 is the watermark, $2 a number of rows
	left    string    // query for the number of rows that the rollups do not include yet: $1 is the watermark
	days    string    // query for the days of the rows that the rollups include
	kept    string    // query for the time since which rows are kept; 0 is all
	details string    // query for the boot and the attempts of a request, which most do not have

	// attempts is the expression for the attempts of a row of requests, in the encoding of EncodeDetails.
	attempts string

	// shared tells that several gateways change the rollups, so numbers of series that one has cached may be gone.
	shared bool

	// freeze keeps the rollups from being changed until the end of a report, which has a snapshot on SQLite only. lock
	// begins a change of the rollups, and returns false if they are frozen.
	freeze, lock string
}

var sqlite = &dialect{
	number:  `seq`,
	above:   [2]string{`seq > `, ``},
	upTo:    [2]string{`seq <= `, ``},
	before:  [2]string{`seq <= `, ``},
	mark:    `SELECT coalesce(max(seq), 0), '' FROM requests`,
	noIndex: ` NOT INDEXED`,
	joined:  `CAST(group_concat(u.latency, '') AS BLOB)`, // it joins bytes, whatever they are
	next:    `SELECT seq, ` + endedColumns + ` FROM requests WHERE seq > $1 ORDER BY seq LIMIT $2`,
	left:    `SELECT coalesce(max(seq), 0) - $1 FROM requests`,
	days:    `SELECT DISTINCT time / 86400000000 FROM requests WHERE seq <= (SELECT seq FROM usage_watermark)`,
	kept:    `SELECT 0`,
	details: `SELECT boot_us, attempts FROM request_details WHERE request_id = $1`,

	attempts: `coalesce((SELECT attempts FROM request_details d WHERE d.request_id = requests.request_id), '')`,
}

// rollupsLock is the advisory lock of the rollups: the pair of "base" and "roll" in ASCII.
const rollupsLock = "1650553701, 1919904876"

// unseen is the condition for rows that the rollups can include next.
const unseen = ` FROM requests WHERE xid > ($1::bigint)::text::xid8 AND xid < pg_snapshot_xmin(pg_current_snapshot())`

var postgres = &dialect{
	number:  `xid::text::bigint`,
	above:   [2]string{`xid > (`, `::bigint)::text::xid8`},
	upTo:    [2]string{`xid <= (`, `::bigint)::text::xid8`},
	before:  [2]string{`pg_visible_in_snapshot(xid, (`, `::text)::pg_snapshot)`},
	mark:    `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_snapshot()::text`,
	joined:  `string_agg(u.latency, '')`,
	next:    `SELECT xid::text::bigint, ` + endedColumns + unseen + ` ORDER BY requests.xid FETCH FIRST ($2::bigint) ROWS WITH TIES`, // xid alone would be the first column
	left:    `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 - $1`,
	days:    `SELECT DISTINCT time / 86400000000 FROM requests WHERE xid <= (SELECT seq::text::xid8 FROM usage_watermark)`,
	kept:    `SELECT kept_since FROM usage_watermark`,
	details: `SELECT boot_us, attempts FROM requests WHERE request_id = $1`,

	attempts: `attempts`,

	shared: true,
	freeze: `SELECT pg_advisory_xact_lock_shared(` + rollupsLock + `)`,
	lock:   `SELECT pg_try_advisory_xact_lock(` + rollupsLock + `)`,
}

func dialectOf(db *database.DB) *dialect {
	if db.Postgres() != nil {
		return postgres
	}
	return sqlite
}

// addCondition adds a condition of a dialect.
func (s *statement) addCondition(parts [2]string, value any) {
	s.addParam(` AND `+parts[0], value)
	s.add(parts[1])
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
	watermark
	at mark
}

// freezeRollups keeps the rollups as they are until the end of the report, and returns their state. The report may then read
// the rollups and the rows by several statements, which agree.
func (s source) freezeRollups(ctx context.Context) (now state, err error) {
	if s.freeze != "" {
		rows, err := s.QueryContext(ctx, s.freeze)
		if err != nil {
			return state{}, fmt.Errorf("freeze rollups: %w", err)
		}
		if err := each(rows, func() error { return nil }); err != nil {
			return state{}, fmt.Errorf("freeze rollups: %w", err)
		}
	}
	if now.watermark, err = selectWatermark(ctx, s); err != nil {
		return state{}, fmt.Errorf("read watermark: %w", err)
	}
	if now.at, err = selectMark(ctx, s); err != nil {
		return state{}, fmt.Errorf("read newest row: %w", err)
	}
	return now, nil
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

// selectLeft returns how many numbers, which is about how many rows, the rollups do not include yet.
func selectLeft(ctx context.Context, from source, after int64) (left int64, err error) {
	err = from.QueryRowContext(ctx, from.left, after).Scan(&left)
	return max(left, 0), err
}
