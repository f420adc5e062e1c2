package usage

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Refused is the State of a request that was refused before it had a row on the ledger. Only History and Request return
// it.
const Refused State = "refused"

// Ending selects requests by how they have ended.
type Ending string

// The endings.
const (
	AnyEnding   Ending = ""
	Succeeded   Ending = "succeeded"
	HasFailed   Ending = "failed"   // with an error code or interrupted, and with a row on the ledger
	WereRefused Ending = "refused"  // without a row on the ledger
	Recorded    Ending = "recorded" // any with a row on the ledger
)

// Cursor is a place in the order of requests, which is from the newest, between two of them. The zero value is the place
// before the newest one.
type Cursor struct {
	time    int64
	refused bool   // after all rows of the ledger with this time
	id      string // of the request before it, in its table; empty: after all of its table with this time
}

var errCursor = errors.New("this is no place in the list of requests")

// ParseCursor parses what Cursor.String returns.
func ParseCursor(text string) (c Cursor, err error) {
	if text == "" {
		return Cursor{}, nil
	}
	parts := strings.Split(text, "-")
	if len(parts) != 3 || parts[1] != "l" && parts[1] != "r" {
		return Cursor{}, errCursor
	}
	at, err := strconv.ParseInt(parts[0], 36, 64)
	if err != nil || at < 0 || at >= maxTime || parts[2] == "" && parts[1] == "l" || !utf8.ValidString(parts[2]) || strings.Contains(parts[2], "\x00") {
		return Cursor{}, errCursor
	}
	return Cursor{at, parts[1] == "r", parts[2]}, nil
}

// String returns the cursor for a URL; empty for the zero value.
func (c Cursor) String() string {
	if c.IsZero() {
		return ""
	}
	table := "l"
	if c.refused {
		table = "r"
	}
	return strconv.FormatInt(c.time, 36) + "-" + table + "-" + c.id
}

// IsZero reports whether the cursor is the place before the newest request.
func (c Cursor) IsZero() bool { return c == Cursor{} }

// compare orders places from the newest. Those of one table and time are equal: the database has ordered them, and may
// compare text in another way than Go.
func (c Cursor) compare(d Cursor) int {
	if byTime := cmp.Compare(d.time, c.time); byTime != 0 || c.refused == d.refused {
		return byTime
	}
	if d.refused {
		return -1
	}
	return 1
}

// endAt returns a copy of the filter without the requests that are newer than a place.
func (f Filter) endAt(c Cursor) Filter {
	if end := time.UnixMicro(c.time + 1).UTC(); !c.IsZero() && (f.Until.IsZero() || end.Before(f.Until)) {
		f.Until = end
	}
	return f
}

type requestTable struct {
	name    string
	columns string // that list scans
	refused bool
}

var (
	ledgerTable = requestTable{name: `requests`, columns: `request_id, time, key_id, account_id, model, backend, endpoint, workload,
		user_tag, stream, status, code, queue_us, total_us, state, prompt_tokens, completion_tokens, first_token_us, boot_us, attempts, run,
		saved_tokens, '', '', ` + ReportedColumns}
	refusalsTable = requestTable{name: `refusals`, columns: `request_id, time, key_id, account_id, model, backend, endpoint, workload,
		user_tag, stream, status, code, queue_us, total_us, 'refused', 0, 0, 0, boot_us, '', run,
		0, param, expected, NULL, NULL, NULL, NULL, NULL`, refused: true}
)

// listing selects requests of a table from the newest.
type listing struct {
	table  requestTable
	filter Filter
	ending Ending // Succeeded is the only one that the filter cannot express
	id     string // of the only one; empty: of any
	at     mark   // of the ledger only
	after  Cursor
	limit  int
}

// listed is a request with its place in the order of requests.
type listed struct {
	Detail
	at Cursor
}

func (l *listing) read(ctx context.Context, from source) (all []listed, err error) {
	within := l.filter.endAt(l.after) // SQLite seeks by the bound of the time, not by the comparison of two columns
	var s statement
	s.add(`SELECT ` + l.table.columns + ` FROM ` + l.table.name + ` WHERE true`)
	s.addMark(from.dialect, l.at)
	s.addRowFilter(&within)
	if l.ending == Succeeded {
		s.add(` AND code = '' AND state <> 'interrupted'`)
	}
	if l.id != "" {
		s.addParam(` AND request_id = `, l.id)
	}
	if after := l.after; !after.IsZero() && (after.refused == l.table.refused || after.refused) { // refusals of a time come after its rows
		id := after.id
		if !l.table.refused && after.refused {
			id = ""
		}
		s.addParam(` AND (time, request_id) < (`, after.time)
		s.addParam(`, `, id)
		s.add(`)`)
	}
	s.addParam(` ORDER BY time DESC, request_id DESC LIMIT `, l.limit)
	err = s.each(ctx, from, func(rows *sql.Rows) error {
		d, err := scanDetail(rows)
		all = append(all, listed{d, Cursor{d.Time.UnixMicro(), l.table.refused, d.RequestID}})
		return err
	})
	return all, err
}

func scanDetail(row *sql.Rows) (d Detail, err error) {
	var (
		at, queue, first, total, boot int64
		attempts                      string
	)
	into := []any{
		&d.RequestID, &at, &d.KeyID, &d.AccountID, &d.Model, &d.Backend, &d.Endpoint, &d.Workload, &d.User, &d.Stream,
		&d.Status, &d.Code, &queue, &total, &d.State, &d.PromptTokens, &d.CompletionTokens, &first, &boot, &attempts, &d.Run, &d.SavedTokens,
		&d.Param, &d.Expected,
	}
	for _, f := range d.Reported.fields() {
		into = append(into, f)
	}
	if err = row.Scan(into...); err != nil {
		return d, err
	}
	d.Requests, d.Time = 1, time.UnixMicro(at).UTC()
	if d.Code != "" || d.State == Interrupted { // a refused request has a code
		d.Errors = 1
	}
	if d.Stream {
		d.Streams = 1
	}
	if n := d.Reported.CachedTokens; n != nil {
		d.CachedTokens, d.KnownTokens = *n, d.PromptTokens
	}
	d.Queue, d.FirstToken, d.Total, d.Boot = micros(queue), micros(first), micros(total), micros(boot)
	d.Attempts, d.ChainID, err = decodeDetails(attempts)
	return d, err
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Detail is what is known of one request.
type Detail struct {
	Row
	Boot     time.Duration // waiting for the model's boot
	Attempts []Attempt     // empty if there was at most one, which succeeded
	Param    string        // of a refusal: the field in error; may be empty
	Expected string        // of that field
}

// Request returns a request of an account by its id, or of any account if that is empty; found is false if there is none.
func (s *Store) Request(ctx context.Context, account, id string) (d Detail, found bool, err error) {
	for _, table := range []requestTable{ledgerTable, refusalsTable} {
		one := listing{table: table, filter: Filter{Account: account}, id: id, limit: 1}
		all, err := one.read(ctx, s.reads())
		if err != nil {
			return Detail{}, false, fmt.Errorf("read request: %w", err)
		}
		if len(all) > 0 {
			return all[0].Detail, true, nil
		}
	}
	return Detail{}, false, nil
}
