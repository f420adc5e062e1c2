package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"basegate/internal/wait"
)

// flusher flushes the commits of a DB with Settings.Flush.
type flusher struct {
	commits atomic.Int64           // transactions committed
	failure atomic.Pointer[outage] // of the latest flush; nil if it succeeded
	mu      sync.Mutex             // held during a flush; guards flushed
	flushed int64                  // the value of commits that the latest flush covers
}

// flushPeriodically flushes the write-ahead log every Settings.Flush until ctx ends, and once more then.
func (db *DB) flushPeriodically(ctx context.Context) {
	if db.settings.Flush == 0 {
		return
	}
	for wait.For(ctx, db.settings.Flush) {
		db.Flush(ctx) // logs its failure
	}
	db.Flush(context.WithoutCancel(ctx)) // logs its failure
}

// Flush makes every commit that precedes the call survive a power failure. Without Settings.Flush each does already.
func (db *DB) Flush(ctx context.Context) error {
	if db.settings.Flush == 0 {
		return nil
	}
	db.flusher.mu.Lock()
	defer db.flusher.mu.Unlock()
	commits, failed := db.flusher.commits.Load(), db.flusher.failure.Load() != nil
	if commits == db.flusher.flushed && !failed {
		return nil
	}
	flush := db.flushLog
	if failed {
		// After a failed fsync the kernel may take the pages for clean although they are not on disk, so that a second one
		// proves nothing. Writing the log back to the database writes and flushes them again.
		flush = db.writeBack
	}
	err := flush(ctx)
	// New requests are refused until a flush succeeds, as after a failed commit.
	db.record(&db.flusher.failure, err, "the latest commits could not be flushed to disk", "the latest commits are flushed to disk again")
	if err == nil {
		db.flusher.flushed = commits
	}
	return err
}

// flushLog flushes the write-ahead log. SQLite holds no POSIX lock on that file, so closing it here releases none.
func (db *DB) flushLog(context.Context) error {
	err := Fsync(db.path + "-wal")
	if err == nil || errors.Is(err, fs.ErrNotExist) { // the log is deleted when it has been written back
		return nil
	}
	return unavailable("flush", err)
}

// writeBack writes the log back to the database; SQLite flushes both. All writes wait for it, so no caller interrupts it.
func (db *DB) writeBack(ctx context.Context) error {
	var busy, pages, written int
	err := db.current.Load().writer.QueryRowContext(context.WithoutCancel(ctx), "PRAGMA wal_checkpoint(FULL)").Scan(&busy, &pages, &written)
	if err == nil && (busy != 0 || written < pages) {
		err = fmt.Errorf("%d of %d pages of the log are written back", written, pages)
	}
	if err != nil {
		return unavailable("flush", err)
	}
	return nil
}
