package database_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

// holdReports runs reports of the given subjects until release is called.
func holdReports(t *testing.T, db *database.DB, subjects ...string) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var reports sync.WaitGroup
	for _, subject := range subjects {
		running := make(chan struct{})
		reports.Go(func() {
			err := db.Report(ctx, subject, time.Minute, func(ctx context.Context, from database.Reader) error {
				var n int
				err := from.QueryRowContext(ctx, "SELECT count(*) FROM notes").Scan(&n)
				close(running)
				<-ctx.Done()
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-running
	}
	return func() { cancel(); reports.Wait() }
}

const briefly = 10 * time.Millisecond

func TestReportsLeaveTheConnectionsOfShortReads(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := holdReports(t, db, "a", "b")
	defer release()
	err := db.Report(t.Context(), "c", briefly, func(context.Context, database.Reader) error { return nil })
	if !errors.Is(err, database.ErrReportsBusy) {
		t.Errorf("a third report returns %v, want ErrReportsBusy", err)
	}
	must(t, db.Ping(t.Context()))
	count(t, db, "true")
	must(t, db.WriteGrouped(t.Context(), note(1)))
	release()
	must(t, db.Report(t.Context(), "c", time.Minute, func(context.Context, database.Reader) error { return nil }))
}

func TestReportsOfOneSubjectRunOneAfterTheOther(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := holdReports(t, db, "a")
	defer release()
	nothing := func(context.Context, database.Reader) error { return nil }
	if err := db.Report(t.Context(), "a", briefly, nothing); !errors.Is(err, database.ErrReportsBusy) {
		t.Errorf("a second report of the subject returns %v, want ErrReportsBusy", err)
	}
	must(t, db.Report(t.Context(), "b", time.Minute, nothing))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Report(canceled, "a", time.Minute, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled report returns %v, want context.Canceled", err)
	}
}

func TestReportIsInterruptedAtItsTimeLimit(t *testing.T) {
	db := openNotes(t, database.Settings{ReportTimeout: time.Second})
	err := db.Report(t.Context(), "a", time.Minute, func(ctx context.Context, from database.Reader) error {
		const endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
		var n int
		return from.QueryRowContext(ctx, endless).Scan(&n)
	})
	if !errors.Is(err, database.ErrReportTooLong) {
		t.Errorf("an endless report returns %v, want ErrReportTooLong", err)
	}
}

func TestReportSeesOneSnapshot(t *testing.T) {
	databasetest.SkipPostgres(t, "a snapshot makes the ledger's updates slower; see TestReportHoldsNoSnapshotAfterItsEnd")
	db := openNotes(t, database.Settings{})
	must(t, db.Report(t.Context(), "a", time.Minute, func(ctx context.Context, from database.Reader) error {
		for id := range 3 {
			var n int
			if err := from.QueryRowContext(ctx, "SELECT count(*) FROM notes").Scan(&n); err != nil || n != 0 {
				t.Errorf("a report sees %d notes that were written after its begin, error %v", n, err)
			}
			must(t, db.WriteGrouped(t.Context(), note(id)))
		}
		return nil
	}))
}

// Reads that always overlap keep the log from being started anew; each is short.
func TestLogStaysSmallWhileReportsOverlap(t *testing.T) {
	testLogStaysSmall(t, 4, func(ctx context.Context, db *database.DB) error {
		return db.Report(ctx, "", time.Minute, func(_ context.Context, from database.Reader) error {
			var n int
			err := from.QueryRowContext(ctx, "SELECT count(*) FROM notes").Scan(&n)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
			return err
		})
	})
}

func TestLogStaysSmallWhileShortReadsOverlap(t *testing.T) {
	testLogStaysSmall(t, 8, func(ctx context.Context, db *database.DB) error {
		rows, err := db.Read().QueryContext(ctx, "SELECT id FROM notes")
		if err != nil {
			return err
		}
		defer rows.Close()
		rows.Next() // so that the read has begun
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		return rows.Err()
	})
}

func testLogStaysSmall(t *testing.T, readers int, read func(context.Context, *database.DB) error) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	const (
		limit   = 64 << 20
		written = 3 * limit
		text    = 256 << 10
	)
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	for range readers {
		reading.Go(func() {
			for ctx.Err() == nil {
				if err := read(ctx, db); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	largest := int64(0)
	for id := 0; id*text < written; id++ {
		must(t, db.WriteGrouped(t.Context(), execute("INSERT INTO notes (id, text) VALUES ($1, hex(zeroblob($2)))", id, text/2)))
		if id%8 == 0 {
			writeUntilLogIsBelow(t, db, path, limit/2)
		}
		if info, err := os.Stat(path + "-wal"); err == nil {
			largest = max(largest, info.Size())
		}
	}
	if largest > limit {
		t.Errorf("the log has grown to %d bytes, want at most %d", largest, limit)
	}
}

// writeUntilLogIsBelow keeps the writes slower than a disk can be: while the log is longer than the given size it makes
// only small ones, which SQLite needs to start the log anew.
func writeUntilLogIsBelow(t *testing.T, db *database.DB, path string, size int64) {
	t.Helper()
	poll.Until(t, "the log is started anew", func() bool {
		must(t, db.WriteGrouped(t.Context(), execute("UPDATE notes SET id = id WHERE id = 0")))
		info, err := os.Stat(path + "-wal")
		return err != nil || info.Size() < size
	})
}

func TestLockIsHeldByOneProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	if _, held, err := database.FindHolder(path); held || err != nil {
		t.Errorf("the holder of a new database is found: %v, error %v", held, err)
	}
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	must(t, lock.SetAddress("127.0.0.1:8000", "127.0.0.1:9090", false))
	_, err = database.Acquire(t.Context(), path, "serves as a gateway")
	var locked *database.LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("a second lock returns %v, want a LockedError", err)
	}
	if h := locked.Holder; h.PID != os.Getpid() || h.Address != "127.0.0.1:8000" || h.Purpose != "serves as a gateway" {
		t.Errorf("the holder is described as %+v", h)
	}
	if h, held, err := database.FindHolder(path); !held || err != nil || h != locked.Holder {
		t.Errorf("the holder is found as %v %v, error %v", h, held, err)
	}
	link := filepath.Join(t.TempDir(), "link.db")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Symlink(path, link))
	if _, err := database.Acquire(t.Context(), link, "serves as a gateway"); !errors.As(err, &locked) {
		t.Errorf("a lock through a symbolic link returns %v, want a LockedError", err)
	}
	must(t, lock.Release())
	lock, err = database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	must(t, lock.Release())
}

func TestCommandsUseALockedDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	defer func() { must(t, lock.Release()) }()
	openNotes(t, database.Settings{Path: path})
	second := openWith(t, database.Settings{Path: path}, zap.NewNop())
	must(t, second.WriteGrouped(t.Context(), note(1)))
}
