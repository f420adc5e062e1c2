package database

import (
	"context"
	"database/sql"
	"errors"
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

// Each calls scan with each row that a statement returns.
func Each(ctx context.Context, from Reader, scan func(*sql.Rows) error, text string, args ...any) (err error) {
	rows, err := from.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
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
