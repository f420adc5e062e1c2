package database

import (
	"context"
	"os"
	"time"

	"go.uber.org/zap"

	"basegate/internal/wait"
)

// walLimit is the size of the write-ahead log, in bytes, to which SQLite truncates the file when it starts it anew, and
// above which reports pause.
const walLimit = 16 << 20

// limitWAL keeps the write-ahead log small until ctx ends. Each commit that leaves more than 1,000 pages in the log
// writes them back to the database, and the next commit starts the log anew, unless a read transaction that began before
// is still open. The short reads leave gaps between them, but reports that overlap may not, however short they are: the
// log then grows until they pause.
func (db *DB) limitWAL(ctx context.Context) {
	for wait.For(ctx, checkInterval) {
		if info, err := os.Stat(db.path + "-wal"); err == nil && info.Size() > walLimit {
			db.checkpoint(ctx)
		}
	}
}

const (
	// restartPages is how many pages older reads may keep in the log for it to be started anew: a long one keeps more with every commit.
	restartPages = 1000
	// restartWait is how long commits wait for the reads that are left.
	restartWait = 50 * time.Millisecond
)

// checkpoint pauses the reports, and writes the log back to the database. Short reads that overlap without a gap would keep
// every commit from starting the log anew, so those that are left are waited for, unless a long one is among them.
func (db *DB) checkpoint(ctx context.Context) {
	resume, err := db.pauseReports(ctx)
	if err != nil {
		return // the database is being closed
	}
	defer resume()
	if err := db.restartWAL(ctx); err != nil {
		db.log.Warn("the write-ahead log could not be written back", zap.Error(err))
	}
}

func (db *DB) restartWAL(ctx context.Context) error {
	writer, err := db.current.Load().writer.Conn(ctx)
	if err != nil {
		return err
	}
	defer writer.Close()
	ctx = context.WithoutCancel(ctx) // or the connection might keep the short timeout
	var busy, pages, written int
	err = writer.QueryRowContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &pages, &written)
	if err != nil || pages-written > restartPages {
		return err
	}
	for _, text := range []string{
		"PRAGMA busy_timeout = " + milliseconds(restartWait), "PRAGMA wal_checkpoint(RESTART)", "PRAGMA busy_timeout = " + milliseconds(db.settings.LockWait),
	} {
		if _, execErr := writer.ExecContext(ctx, text); err == nil {
			err = execErr
		}
	}
	return err
}
