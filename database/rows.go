package database

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
)

// Reader runs queries: a pool of read connections, a report, or the transaction of a write.
type Reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Scanner is a *sql.Row, or a *sql.Rows at one of its rows.
type Scanner interface {
	Scan(to ...any) error
}

// ErrNoResponse is returned for a read of which PostgreSQL has sent no row within 7 seconds.
var ErrNoResponse = errors.New("the database does not respond")

// responseTimeout limits the wait for a connection of a pool of PostgreSQL and the first row. A server that works ends a statement
// before that; one that hangs does not obey the limits of its sessions.
const responseTimeout = statementTimeout + time.Second

// awaitResponse returns a context that ends after responseTimeout unless received was called, so that rows can be read for longer.
// The caller calls end when it has read them.
func awaitResponse(ctx context.Context, from Reader) (_ context.Context, received func(), end context.CancelFunc) {
	pool, ok := from.(*sql.DB)
	if ok {
		_, ok = pool.Driver().(*stdlib.Driver)
	}
	if !ok {
		return ctx, func() {}, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(responseTimeout, func() { cancel(ErrNoResponse) })
	return ctx, func() { timer.Stop() }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// noResponse returns ErrNoResponse in place of the error of a read that awaitResponse has ended.
func noResponse(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrNoResponse) {
		return ErrNoResponse
	}
	return err
}

// One scans the only row of a query. The error is sql.ErrNoRows if there is none.
func One[T any](ctx context.Context, from Reader, scan func(Scanner) (T, error), text string, args ...any) (T, error) {
	ctx, received, end := awaitResponse(ctx, from)
	defer end()
	row := from.QueryRowContext(ctx, text, args...)
	received()
	result, err := scan(row)
	return result, noResponse(ctx, err)
}

// Each calls scan with each row that a statement returns.
func Each(ctx context.Context, from Reader, scan func(*sql.Rows) error, text string, args ...any) (err error) {
	ctx, received, end := awaitResponse(ctx, from)
	defer end()
	rows, err := from.QueryContext(ctx, text, args...)
	if err != nil {
		return noResponse(ctx, err)
	}
	received()
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// List scans all rows of a query.
func List[T any](ctx context.Context, from Reader, scan func(Scanner) (T, error), text string, args ...any) ([]T, error) {
	var all []T
	err := Each(ctx, from, func(r *sql.Rows) error {
		one, err := scan(r)
		all = append(all, one)
		return err
	}, text, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Exec runs a statement of which only the error is of interest.
func Exec(ctx context.Context, tx Execer, text string, args ...any) error {
	_, err := tx.ExecContext(ctx, text, args...)
	return err
}

// Change runs a statement, and returns how many rows it has changed.
func Change(ctx context.Context, tx Execer, text string, args ...any) (rows int64, err error) {
	result, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
