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
	// take this long, and longer while there are many rows to add, because each write costs an fsync.
	targetWrite  = 2 * time.Millisecond
	minBatchRows = 50
	targetBuild  = 100 * time.Millisecond
	minBuildRows = 500
	maxBatchRows = 5000

	// The same with several gateways: their settlements do not wait for the rollups, and each statement is a round trip.
	sharedTarget  = 50 * time.Millisecond
	minSharedRows = 1000
	maxSharedRows = 20_000

	// busyPause is the time until rollups that are being read are tried again, maxBusy times in a row.
	busyPause = 100 * time.Millisecond
	maxBusy   = 10

	// The progress of a long build is logged.
	longBuild   = 50_000 // rows
	logInterval = 10 * time.Second
)

// rollups is the state of the goroutine that adds rows to the rollups.
type rollups struct {
	known  *ids
	rows   int // in the next batch
	shared bool
	seen   *watermark // that this Store has read or written last; nil at first

	failing bool // the latest attempt failed
	build   struct {
		rows   int64     // that were left at its start; 0 if there is no long build
		logged time.Time // when its progress was last logged
	}
}

func newRollups(d *dialect) rollups {
	rows := minBatchRows
	if d.shared {
		rows = minSharedRows
	}
	return rollups{known: newIDs(), rows: rows, shared: d.shared}
}

// most returns the highest number of rows in a batch.
func (r *rollups) most() int {
	if r.shared {
		return maxSharedRows
	}
	return maxBatchRows
}

// run adds new rows to the rollups until ctx ends.
func (s *Store) run(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(rollupInterval)
	defer ticker.Stop()
	for {
		s.logOutage(ctx, s.addAll(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// addAll adds all rows that are not in the rollups. Between two writes it pauses for as long as the last one took, so
// that settlements have at least half of the time. While another gateway adds them, it does nothing.
func (s *Store) addAll(ctx context.Context) error {
	if others, err := s.changedByOthers(ctx); err != nil || others {
		return err
	}
	for busy := 0; ; {
		left, took, err := s.addBatch(ctx, s.reads())
		s.logProgress(left, err)
		switch {
		case errors.Is(err, errMoved) && s.dialect.shared:
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

// changedByOthers reports whether another gateway has added rows since this one last looked.
func (s *Store) changedByOthers(ctx context.Context) (bool, error) {
	if !s.dialect.shared || s.rollups.seen == nil {
		return false, nil
	}
	w, err := selectWatermark(ctx, s.reads())
	if err != nil {
		return false, fmt.Errorf("read watermark: %w", err)
	}
	return s.rollups.see(w), nil
}

// see records the state of the rollups, and reports whether it is another than the last one.
func (r *rollups) see(w watermark) (changed bool) {
	changed = r.seen != nil && *r.seen != w
	if changed && r.shared {
		r.known = newIDs()
	}
	r.seen = &w
	return changed
}

// errMoved is returned if the rollups, or the rows to be added, were changed by somebody else.
var errMoved = errors.New("the rollups were changed at the same time")

// addBatch adds the oldest rows that are not in the rollups. It returns how many are left, and how long the write kept
// other writes waiting.
func (s *Store) addBatch(ctx context.Context, from source) (left int64, took time.Duration, err error) {
	w, err := selectWatermark(ctx, from)
	if err != nil {
		return 0, 0, fmt.Errorf("read watermark: %w", err)
	}
	s.rollups.see(w)
	rows, err := selectEnded(ctx, from, w.seq, s.rollups.rows)
	if err != nil {
		return 0, 0, fmt.Errorf("read new rows: %w", err)
	}
	if len(rows) == 0 {
		return 0, 0, nil
	}
	b := newBatch()
	for i := range rows {
		b.add(&rows[i], 1)
	}
	to, known := rows[len(rows)-1].seq, s.rollups.known
	var wrote time.Duration // read only if the write has succeeded, because it may be made later if ctx ends
	err = s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		ctx := context.WithoutCancel(ctx)
		start := time.Now()
		defer func() { wrote = time.Since(start) }()
		if err := s.dialect.lockRollups(ctx, tx); err != nil {
			return err
		}
		moved, err := advanceWatermark(ctx, tx, w, to)
		if err == nil && !moved {
			err = errMoved
		}
		if err != nil {
			return err
		}
		if s.dialect.shared {
			return b.applyShared(ctx, tx, known)
		}
		return b.apply(ctx, tx, known)
	})
	if err != nil {
		s.rollups.known = newIDs() // some of them may have been rolled back, or are still in use
		return 0, 0, fmt.Errorf("write rollups: %w", err)
	}
	s.rollups.see(watermark{to, w.corrections})
	if len(rows) >= s.rollups.rows { // there may be more
		if left, err = selectLeft(ctx, from, to); err != nil {
			return 0, wrote, fmt.Errorf("count new rows: %w", err)
		}
	}
	s.rollups.adapt(len(rows), wrote, left)
	return left, wrote, nil
}

// adapt sets the size of the next batch by how long the last one took to write, and by how many rows are left.
func (r *rollups) adapt(rows int, took time.Duration, left int64) {
	target, least := targetWrite, minBatchRows
	switch {
	case r.shared:
		target, least = sharedTarget, minSharedRows
	case left > maxBatchRows:
		target, least = targetBuild, minBuildRows
	}
	switch {
	case took > target:
		r.rows = max(least, rows*3/4)
	case took < target/2 && rows >= r.rows:
		r.rows = min(r.most(), max(least, rows*5/4))
	}
}

// logProgress logs the progress of a long build.
func (s *Store) logProgress(left int64, err error) {
	build := &s.rollups.build
	switch {
	case err != nil:
	case build.rows == 0 && left >= longBuild:
		build.rows, build.logged = left, time.Now()
		s.log.Info("usage of earlier requests is being summed up; pages that show it are slow until then", zap.Int64("requests", left))
	case build.rows > 0 && left == 0:
		s.log.Info("usage of earlier requests is summed up", zap.Int64("requests", build.rows))
		build.rows = 0
	case build.rows > 0 && time.Since(build.logged) >= logInterval:
		build.logged = time.Now()
		s.log.Info("usage is being summed up", zap.Int64("left", left), zap.Int64("percent", 100*max(0, build.rows-left)/build.rows))
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
	before, err := selectOneEnded(ctx, tx, requestID)
	if err != nil {
		return err
	}
	w, err := selectWatermark(ctx, source{tx, sqlite})
	if err != nil {
		return fmt.Errorf("read watermark: %w", err)
	}
	if err := change(); err != nil {
		return err
	}
	if err := countCorrection(ctx, tx); err != nil || before.seq > w.seq {
		return err
	}
	after, err := selectOneEnded(ctx, tx, requestID)
	if err != nil {
		return err
	}
	b := newBatch()
	b.add(&before, -1)
	b.add(&after, 1)
	return b.apply(ctx, tx, newIDs())
}

func selectOneEnded(ctx context.Context, tx database.Tx, requestID string) (e ended, err error) {
	found, err := tx.QueryContext(ctx, `SELECT seq, `+endedColumns+` FROM requests WHERE request_id = $1`, requestID)
	if err != nil {
		return e, fmt.Errorf("read request: %w", err)
	}
	err = each(found, func() error {
		e, err = scanEnded(found)
		return err
	})
	if err == nil && e.seq == 0 {
		err = fmt.Errorf("request %s has no row", requestID)
	}
	return e, err
}
