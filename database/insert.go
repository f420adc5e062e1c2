package database

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rowsPerInsert is how many rows the leader inserts by one statement, if as many are queued. More rows save nothing.
const rowsPerInsert = 8

// Insert is an INSERT of one row. The leader combines adjacent ones of the same Insert, which saves a quarter of the time
// that a row takes.
type Insert struct {
	text    string // of rowsPerInsert rows
	columns int
}

// Row is a row that an Insert inserts.
type Row interface {
	// AppendValues appends the values of the parameters. It must not panic.
	AppendValues(to []any) []any
}

var parameter = regexp.MustCompile(`\$\d+`)

// NewInsert returns the Insert with a text that ends before VALUES, and the values of one row, whose parameters are
// $1 to $columns.
func NewInsert(text, values string, columns int) *Insert {
	rows := make([]string, rowsPerInsert)
	for i := range rows {
		rows[i] = "(" + parameter.ReplaceAllStringFunc(values, func(p string) string {
			n, _ := strconv.Atoi(p[1:]) // digits
			return fmt.Sprint("$", i*columns+n)
		}) + ")"
	}
	return &Insert{text: text + " VALUES " + strings.Join(rows, ", "), columns: columns}
}

// EnqueueInsert is EnqueueStatement for a write that only inserts a row. The leader runs statement, which must insert the
// same row, if too few rows are queued, if the statement that inserts several has failed, and with PostgreSQL.
func (db *DB) EnqueueInsert(i *Insert, r Row, statement func(Execer) error) *Pending {
	return db.enqueue(&Pending{db: db, insert: i, row: r, statement: statement, done: make(chan struct{})})
}

// combinable returns how many writes at the beginning of the batch may share a statement: rowsPerInsert or 1.
func combinable(batch []*Pending) int {
	if len(batch) < rowsPerInsert || batch[0].insert == nil {
		return 1
	}
	for _, p := range batch[1:rowsPerInsert] {
		if p.insert != batch[0].insert {
			return 1
		}
	}
	return rowsPerInsert
}

// insertRows inserts the rows of combinable writes by one statement, and reports whether it did. If the statement fails
// because of a row, SQLite has rolled it back. The error is a failure of the storage.
func (d *directExecer) insertRows(ctx context.Context, batch []*Pending) (inserted bool, err error) {
	insert := batch[0].insert
	d.rows = slices.Grow(d.rows[:0], len(batch)*insert.columns)
	for _, p := range batch {
		d.rows = p.row.AppendValues(d.rows)
	}
	_, err = d.ExecContext(ctx, insert.text, d.rows...)
	if err != nil && isFault(err) {
		return false, unavailable("apply", err)
	}
	return err == nil, nil
}
