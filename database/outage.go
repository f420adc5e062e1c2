package database

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
	"go.uber.org/zap"
)

// outage lasts from the first failed write until one succeeds.
type outage struct {
	err error // the latest failure
}

var errFileMissing = errors.New("the file is gone; put it back, or restart to begin with an empty database")

// ensureCurrent checks before a commit that the open file is still the one at db.path, and reopens the path if not:
// writes to a file that was deleted or replaced would be lost. It does not create a missing file, because an empty
// database holds no keys and the operator may be about to restore the right one. The stat costs a hundredth of a
// commit.
func (db sqlite) ensureCurrent(ctx context.Context) error {
	h := db.current.Load()
	file, err := os.Stat(db.path)
	if err != nil {
		return unavailable("find file", errors.Join(errFileMissing, err))
	}
	o := db.outage.Load()
	if os.SameFile(file, h.file) && (o == nil || !mayNeedReopening(o.err)) {
		return nil
	}
	if o != nil && time.Since(db.reopened) < checkInterval {
		return o.err
	}
	db.reopened = time.Now()
	return db.reopen(ctx)
}

// verifyCurrent checks after a commit that it went to the file at db.path. If the file was deleted while the commit
// waited for the lock, the commit is lost.
func (db sqlite) verifyCurrent() error {
	file, err := os.Stat(db.path)
	if err != nil || !os.SameFile(file, db.current.Load().file) {
		return unavailable("find file after commit", errors.Join(errFileMissing, err))
	}
	return nil
}

// reopen replaces the open connections by new ones to the file at db.path.
func (db sqlite) reopen(ctx context.Context) error {
	next, err := openHandles(ctx, db.path, db.settings, db.log)
	if err != nil {
		return unavailable("reopen", err)
	}
	last := db.current.Swap(next)
	db.log.Info("database reopened", zap.String("path", db.path))
	if err := last.close(); err != nil {
		db.log.Warn("the previous database connections failed to close", zap.Error(err))
	}
	return nil
}

// WriteError returns why the latest write or flush failed, as ErrUnavailable, or nil if both succeeded. An outage is
// detected by a write, its end by the writer within a second.
func (db *DB) WriteError() error {
	for _, latest := range []*atomic.Pointer[outage]{&db.outage, &db.flusher.failure} {
		if o := latest.Load(); o != nil {
			return o.err
		}
	}
	return nil
}

// roomAfterFull is how much must be free, in bytes, before the database is used again after its disk was full. A few pages that
// are left take a small write, such as a health check, but not what a request writes.
const roomAfterFull = 256 << 10

// isStillFull reports whether an outage that began with err lasts, although a write has succeeded.
func (db *DB) isStillFull(err error) bool {
	if sqliteFailure(err).Code != sqlite3.ErrFull {
		return false
	}
	disk, err := ReadDisk(filepath.Dir(db.path))
	if err != nil {
		return false
	}
	free := disk.Available
	if os.Geteuid() == 0 {
		free = disk.Free
	}
	return free < roomAfterFull
}

// recordResult updates the outage after a commit or a health check, and logs its beginning and end.
func (db *DB) recordResult(err error) {
	if o := db.outage.Load(); err == nil && o != nil && db.isStillFull(o.err) {
		return
	}
	db.record(&db.outage, err, "the database cannot be written", "the database can be written again")
}

// record keeps the latest failure, and logs the first one and the success that follows.
func (db *DB) record(latest *atomic.Pointer[outage], err error, failed, again string) {
	var o *outage
	if err != nil {
		o = &outage{err: err}
	}
	before := latest.Swap(o)
	switch {
	case err != nil && before == nil:
		db.log.Error(failed, zap.Error(err))
	case err == nil && before != nil:
		db.log.Info(again)
	}
}
