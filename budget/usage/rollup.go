package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

const (
	rollupInterval = time.Second

	// A write of rollups delays the settlements that are queued behind it, so the number of rows is adapted to make it
	// take this long, and longer while there are many rows to add. A row takes 20 µs if 50 are added together, and 6 of 500.
	targetWrite  = 4 * time.Millisecond
	targetBuild  = 100 * time.Millisecond
	minBatchRows = 500
	maxBatchRows = 5000

	// The same with several gateways: their settlements do not wait for the rollups, and each statement is a round trip.
	sharedTarget  = 50 * time.Millisecond
	minSharedRows = 1000
	maxSharedRows = 20_000

	// busyPause is the time until rollups that are being read are tried again, maxBusy times in a row.
	busyPause = 100 * time.Millisecond
	maxBusy   = 10
)

// rollups is the state of the goroutine that adds rows to the rollups.
type rollups struct {
	rows     int    // in the next batch
	observed *int64 // the watermark that this Store has read or written last; nil at first
	failing  bool   // the latest attempt failed
}

// batchRows returns the lowest and the highest number of rows in a batch, when few rows are left.
func (d *dialect) batchRows() (least, most int) {
	if d.shared {
		return minSharedRows, maxSharedRows
	}
	return minBatchRows, maxBatchRows
}

// addAll adds all rows that are not in the rollups. Between two writes it pauses for as long as the last one took, so
// that settlements have at least half of the time. While another gateway adds them, it does nothing.
func (s *Store) addAll(ctx context.Context) error {
	if elsewhere, err := s.advancedElsewhere(ctx); err != nil || elsewhere {
		return err
	}
	for busy := 0; ; {
		left, took, err := s.addBatch(ctx)
		switch {
		case errors.Is(err, errMoved):
			return nil
		case errors.Is(err, errRollupsBusy) && busy < maxBusy:
			busy++
			took = busyPause
		case errors.Is(err, errRollupsBusy):
			return nil
		case err != nil || left == 0:
			return err
		}
		if !wait.For(ctx, took) {
			return nil // the Store is being closed
		}
	}
}

// advancedElsewhere reports whether another gateway has added rows since this one last looked.
func (s *Store) advancedElsewhere(ctx context.Context) (bool, error) {
	if !s.dialect.shared {
		return false, nil
	}
	watermark, err := selectWatermark(ctx, s.db.Read())
	if err != nil {
		return false, err
	}
	before := s.rollups.observed
	s.rollups.observed = &watermark
	return before != nil && *before != watermark, nil
}

// errMoved is returned if the rollups were changed by somebody else.
var errMoved = errors.New("the rollups were changed at the same time")

// addBatch adds the oldest rows that are not in the rollups. It returns how many are left, and how long the write kept
// other writes waiting.
func (s *Store) addBatch(ctx context.Context) (left int64, took time.Duration, err error) {
	watermark, err := selectWatermark(ctx, s.db.Read())
	if err != nil {
		return 0, 0, err
	}
	var (
		last int64
		rows int
	)
	if err := s.db.Read().QueryRowContext(ctx, s.dialect.next, watermark, s.rollups.rows).Scan(&last, &rows); err != nil {
		return 0, 0, fmt.Errorf("read new rows: %w", err)
	}
	if rows == 0 {
		return 0, 0, nil
	}
	err = s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		start := time.Now()
		defer func() { took = time.Since(start) }()
		return s.dialect.advance(ctx, tx, watermark, last)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("write rollups: %w", err)
	}
	s.rollups.observed = &last
	if rows >= s.rollups.rows { // there may be more
		if err := s.db.Read().QueryRowContext(ctx, s.dialect.left, last).Scan(&left); err != nil {
			return 0, took, fmt.Errorf("count new rows: %w", err)
		}
		left = max(left, 0)
	}
	s.adapt(rows, took, left)
	return left, took, nil
}

// advance adds rows to the rollups and moves the watermark to the last of them.
func (d *dialect) advance(ctx context.Context, tx database.Tx, from, to int64) error {
	if err := d.lockRollups(ctx, tx); err != nil {
		return err
	}
	moved, err := database.Change(ctx, tx, `UPDATE usage_watermark SET seq = $1 WHERE seq = $2`, to, from)
	if err != nil {
		return err
	}
	if moved == 0 {
		return errMoved
	}
	return d.addRows(ctx, tx, from, to, 1)
}

// adapt sets the size of the next batch by how long the last one took to write, and by how many rows are left.
func (s *Store) adapt(rows int, took time.Duration, left int64) {
	target := targetWrite
	least, most := s.dialect.batchRows()
	switch {
	case s.dialect.shared:
		target = sharedTarget
	case left > maxBatchRows:
		target = targetBuild
	}
	switch {
	case took > target:
		s.rollups.rows = max(least, rows*3/4)
	case took < target/2 && rows >= s.rollups.rows:
		s.rollups.rows = min(most, max(least, rows*5/4))
	}
}

// logOutage logs the first failure of an outage, and the first success after it. Package database logs that it cannot
// write.
func (s *Store) logOutage(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	switch {
	case err != nil && !s.rollups.failing && !errors.Is(err, database.ErrUnavailable):
		s.log.Warn("usage cannot be summed up; pages that show it get slower", zap.Error(err))
	case err == nil && s.rollups.failing:
		s.log.Info("usage can be summed up again")
	}
	s.rollups.failing = err != nil
}

// Correct makes a change of a row of requests in tx, on SQLite; PostgreSQL's functions settle a request once. The row must
// exist before and after change. If the rollups include it, they are changed too.
func Correct(ctx context.Context, tx database.Tx, requestID string, change func() error) error {
	var (
		number   int64
		included bool
	)
	text := `SELECT r.seq, r.seq <= w.seq FROM requests r, usage_watermark w WHERE r.request_id = $1`
	if err := tx.QueryRowContext(ctx, text, requestID).Scan(&number, &included); err != nil {
		return fmt.Errorf("read request %s: %w", requestID, err)
	}
	if !included {
		return change()
	}
	if err := sqlite.addRows(ctx, tx, number-1, number, -1); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return sqlite.addRows(ctx, tx, number-1, number, 1)
}
