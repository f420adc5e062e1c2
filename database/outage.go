package database

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
)

// outage is the time from the first failure until a write succeeds.
type outage struct {
	err error // the latest failure
}

var errGone = errors.New("the file is gone; put it back, or restart to begin with an empty database")

// ensure makes sure that what is open is the file that stands at the path: writing into a file that was deleted or
// replaced would lose what is written. A file that is gone is waited for and not made anew, because an empty database
// knows no keys, and its owner may be about to put the right one there. A stat costs a hundredth of a commit, so it is
// made before each.
func (db *DB) ensure(ctx context.Context) error {
	h := db.current.Load()
	file, err := os.Stat(db.path)
	if err != nil {
		return unavailable("find file", errors.Join(errGone, err))
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

// inPlace makes sure after a commit that it went into the file that stands at the path. One that was deleted while the
// commit waited for the lock took it along.
func (db *DB) inPlace() error {
	file, err := os.Stat(db.path)
	if err != nil || !os.SameFile(file, db.current.Load().file) {
		return unavailable("find file after commit", errors.Join(errGone, err))
	}
	return nil
}

// reopen replaces the open connections by new ones to what stands at the path.
func (db *DB) reopen(ctx context.Context) error {
	next, err := openHandles(ctx, db.path, db.settings)
	if err != nil {
		return unavailable("open again", err)
	}
	last := db.current.Swap(next)
	db.log.Info("database opened again", zap.String("path", db.path))
	if err := last.close(); err != nil {
		db.log.Warn("close the database that was open before", zap.Error(err))
	}
	return nil
}

// WriteError is why the last write failed, as ErrUnavailable, until one succeeds; nil while writes succeed. An outage is
// found by a write, and its end within a second by the writer itself.
func (db *DB) WriteError() error {
	if o := db.outage.Load(); o != nil {
		return o.err
	}
	return nil
}

// report keeps the state of the outage and logs its two ends.
func (db *DB) report(err error) {
	before := db.outage.Load()
	if err != nil {
		db.outage.Store(&outage{err: err})
	} else {
		db.outage.Store(nil)
	}
	switch {
	case err != nil && before == nil:
		db.log.Error("the database cannot be written", zap.Error(err))
	case err == nil && before != nil:
		db.log.Info("the database can be written again")
	}
}
