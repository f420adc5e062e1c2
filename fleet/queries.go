package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// store reads and writes the tables of the fleet.
type store struct {
	db       *database.DB
	writeCtx context.Context
}

// submitBoot queues a row without waiting for the commit. Losing it makes only an estimate less accurate.
func (s *store) submitBoot(model, backend string, at time.Time, took time.Duration) {
	const text = `INSERT INTO boots (model, backend, ended_at, took_us) VALUES ($1, $2, $3, $4)`
	s.db.Submit(func(tx database.Tx) error {
		_, err := tx.ExecContext(s.writeCtx, text, model, backend, at.UnixMicro(), took.Microseconds())
		return err
	})
}

// readBoots calls add for the last bootsKept boots of every backend, oldest first.
func (s *store) readBoots(ctx context.Context, add func(model, backend string, took time.Duration)) error {
	const text = `
		SELECT model, backend, took_us FROM (
			SELECT model, backend, took_us, ended_at, row_number() OVER (PARTITION BY model, backend ORDER BY ended_at DESC) AS n
			FROM boots
		) AS latest
		WHERE n <= $1 ORDER BY ended_at`
	rows, err := s.db.Read().QueryContext(ctx, text, bootsKept)
	if err != nil {
		return fmt.Errorf("read boots: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			model, backend string
			took           int64
		)
		if err := rows.Scan(&model, &backend, &took); err != nil {
			return fmt.Errorf("read boots: %w", err)
		}
		add(model, backend, time.Duration(took)*time.Microsecond)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read boots: %w", err)
	}
	return nil
}

// Enqueue queues a command for the running gateway, which executes it within a second. Of several gateways, one does.
func Enqueue(ctx context.Context, db *database.DB, model string, c Command) error {
	const text = `INSERT INTO model_orders (model, order_name, given_at) VALUES ($1, $2, $3)`
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, text, model, string(c), time.Now().UnixMicro())
		return err
	})
	if err != nil {
		return fmt.Errorf("queue command: %w", err)
	}
	return nil
}

// commands returns the queued commands, oldest first.
func (s *store) commands(ctx context.Context) ([]queuedCommand, error) {
	rows, err := s.db.Read().QueryContext(ctx, `SELECT id, model, order_name, given_at FROM model_orders ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read commands: %w", err)
	}
	defer rows.Close()
	var all []queuedCommand
	for rows.Next() {
		var (
			c        queuedCommand
			queuedAt int64
		)
		if err := rows.Scan(&c.id, &c.model, &c.command, &queuedAt); err != nil {
			return nil, fmt.Errorf("read commands: %w", err)
		}
		c.age = time.Since(time.UnixMicro(queuedAt))
		all = append(all, c)
	}
	return all, rows.Err()
}

// removeCommands removes the queued commands up to and including the given id.
func (s *store) removeCommands(ctx context.Context, lastID int64) error {
	return s.db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM model_orders WHERE id <= $1`, lastID)
		return err
	})
}

// Windows returns the booked windows that have not ended, ordered by their start.
func Windows(ctx context.Context, db *database.DB) ([]BookedWindow, error) {
	const text = `SELECT id, model, begins_at, ends_at FROM model_windows WHERE ends_at > $1 ORDER BY begins_at, id`
	rows, err := db.Read().QueryContext(ctx, text, time.Now().UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("read windows: %w", err)
	}
	defer rows.Close()
	all := []BookedWindow{}
	for rows.Next() {
		var (
			b        BookedWindow
			from, to int64
		)
		if err := rows.Scan(&b.ID, &b.Model, &from, &to); err != nil {
			return nil, fmt.Errorf("read windows: %w", err)
		}
		b.From, b.To = time.UnixMicro(from).UTC(), time.UnixMicro(to).UTC()
		all = append(all, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read windows: %w", err)
	}
	return all, nil
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
		result, err := tx.ExecContext(ctx, `DELETE FROM model_windows WHERE id = $1`, id)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(ErrNoWindow, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove window: %w", err)
	}
	return nil
}
