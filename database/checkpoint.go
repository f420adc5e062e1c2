package database

import (
	"context"
	"os"

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

// checkpoint pauses the reports, and writes the log back to the database.
func (db *DB) checkpoint(ctx context.Context) {
	resume, err := db.reports.pause(ctx)
	if err != nil {
		return // the database is being closed
	}
	defer resume()
	if _, err := db.current.Load().writer.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
		db.log.Warn("the write-ahead log could not be written back", zap.Error(err))
	}
}
