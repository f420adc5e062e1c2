package database

import (
	"context"
	"database/sql"
	"fmt"
)

// Querier runs queries: a pool of read connections, or the transaction of a write.
type Querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// Scanner is a *sql.Row, or a *sql.Rows at one of its rows.
type Scanner interface {
	Scan(to ...any) error
}

// List scans all rows of a query.
func List[T any](ctx context.Context, q Querier, scan func(Scanner) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read list: %w", err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	return all, nil
}

// Exec runs a statement of which only the error is of interest.
func Exec(ctx context.Context, tx Execer, text string, args ...any) error {
	_, err := tx.ExecContext(ctx, text, args...)
	return err
}
