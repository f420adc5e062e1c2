package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// submit queues a statement without waiting for the commit, which it need not survive.
func (f *Fleet) submit(text string, args ...any) {
	if f.db != nil && f.writeCtx != nil {
		f.db.Submit(func(tx database.Tx) error { return database.Exec(f.writeCtx, tx, text, args...) })
	}
}

// Enqueue queues a command for the running gateway, which executes it within a second. Of several gateways, one does.
func Enqueue(ctx context.Context, db *database.DB, model string, c Command) error {
	const text = `INSERT INTO model_orders (model, order_name, given_at) VALUES ($1, $2, $3)`
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		return database.Exec(ctx, tx, text, model, string(c), time.Now().UnixMicro())
	})
	if err != nil {
		return fmt.Errorf("queue command: %w", err)
	}
	return nil
}

// Windows returns the booked windows that have not ended, ordered by their start.
func Windows(ctx context.Context, db *database.DB) ([]BookedWindow, error) {
	const text = `SELECT id, model, begins_at, ends_at FROM model_windows WHERE ends_at > $1 ORDER BY begins_at, id`
	all, err := database.List(ctx, db.Read(), func(row database.Scanner) (b BookedWindow, err error) {
		var from, to int64
		err = row.Scan(&b.ID, &b.Model, &from, &to)
		b.From, b.To = time.UnixMicro(from).UTC(), time.UnixMicro(to).UTC()
		return b, err
	}, text, time.Now().UnixMicro())
	return append([]BookedWindow{}, all...), err // none are an empty list in JSON
}

// Errors of AddWindow and RemoveWindow.
var (
	ErrEmptyWindow = errors.New("a window must end after it begins, and in the future")
	ErrNoWindow    = errors.New("no such window")
)

// AddWindow books a window and returns it with its id.
func AddWindow(ctx context.Context, db *database.DB, b BookedWindow) (BookedWindow, error) {
	if !b.To.After(b.From) || !b.To.After(time.Now()) {
		return b, ErrEmptyWindow
	}
	const text = `INSERT INTO model_windows (model, begins_at, ends_at) VALUES ($1, $2, $3) RETURNING id`
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		return tx.QueryRowContext(ctx, text, b.Model, b.From.UnixMicro(), b.To.UnixMicro()).Scan(&b.ID)
	})
	if err != nil {
		return BookedWindow{}, fmt.Errorf("book window: %w", err)
	}
	return b, nil
}

// RemoveWindow removes a booked window.
func RemoveWindow(ctx context.Context, db *database.DB, id int64) error {
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		n, err := database.Change(ctx, tx, `DELETE FROM model_windows WHERE id = $1`, id)
		if err == nil && n == 0 {
			err = ErrNoWindow
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove window: %w", err)
	}
	return nil
}
