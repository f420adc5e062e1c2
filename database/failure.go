package database

import (
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"
)

// ErrClosed says that the database has been closed.
var ErrClosed = errors.New("the database is closed")

// ErrUnavailable says that the database cannot be written at the moment: the disk is full or failing, the file is gone
// or read-only, another process holds the lock. What was to be written is not; the next attempt may succeed.
var ErrUnavailable = errors.New("the database cannot be written")

// ErrNewer says that a newer program has migrated the database past what this one knows.
var ErrNewer = errors.New("the database was made by a newer version of basegate; use that version or a later one")

// IsUnique tells whether a row was refused because another has its key.
func IsUnique(err error) bool {
	if err == nil {
		return false // without room for a failure on the heap
	}
	var failure sqlite3.Error
	return errors.As(err, &failure) &&
		(failure.ExtendedCode == sqlite3.ErrConstraintUnique || failure.ExtendedCode == sqlite3.ErrConstraintPrimaryKey)
}

// IsBusy tells whether another connection held the lock for too long.
func IsBusy(err error) bool {
	var failure sqlite3.Error
	return errors.As(err, &failure) && (failure.Code == sqlite3.ErrBusy || failure.Code == sqlite3.ErrLocked)
}

// isFault tells the failures of the machine from those of a statement. SQLite rolls the whole transaction back at most
// of them.
func isFault(err error) bool {
	var failure sqlite3.Error
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Code {
	case sqlite3.ErrFull, sqlite3.ErrIoErr, sqlite3.ErrNomem, sqlite3.ErrReadonly, sqlite3.ErrCorrupt,
		sqlite3.ErrNotADB, sqlite3.ErrCantOpen, sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrInterrupt,
		sqlite3.ErrProtocol, sqlite3.ErrPerm:
		return true
	default:
		return false
	}
}

// unavailable marks err as the machine's failure while doing something.
func unavailable(doing string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
}

// mayNeedReopening tells the faults that an open connection may keep although their reason has gone. A full disk and a
// lock are not among them.
func mayNeedReopening(err error) bool {
	var failure sqlite3.Error
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Code {
	case sqlite3.ErrIoErr, sqlite3.ErrReadonly, sqlite3.ErrCorrupt, sqlite3.ErrNotADB, sqlite3.ErrCantOpen, sqlite3.ErrProtocol:
		return true
	default:
		return false
	}
}
