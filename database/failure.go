package database

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"

	"basegate/database/postgres"
)

// ErrClosed is returned for writes after Close.
var ErrClosed = errors.New("the database is closed")

// ErrCancelled is returned, with the cause, for a write whose context ended while it was queued. Nothing was written.
var ErrCancelled = errors.New("the write was cancelled before it began")

// ErrUnavailable is returned for a write that fails because of the storage: the disk is full or failing, the file
// is missing or read-only, or another process holds the lock. Nothing was written, unless the failure came at the
// commit itself; another attempt may succeed.
var ErrUnavailable = errors.New("the database cannot be written")

// ErrNewer is returned by Open for a schema that has migrations which this program does not know.
var ErrNewer = postgres.ErrNewer

// sqliteFailure returns the error of SQLite in err; its codes are 0 if there is none.
func sqliteFailure(err error) sqlite3.Error {
	failure, _ := errors.AsType[sqlite3.Error](err)
	return failure
}

// IsUnique reports whether err is a violation of a unique or primary key constraint.
func IsUnique(err error) bool {
	code := sqliteFailure(err).ExtendedCode
	return code == sqlite3.ErrConstraintUnique || code == sqlite3.ErrConstraintPrimaryKey || postgres.Code(err) == "23505"
}

// IsBusy reports whether err is a timeout because another connection held the lock.
func IsBusy(err error) bool {
	code := sqliteFailure(err).Code
	return code == sqlite3.ErrBusy || code == sqlite3.ErrLocked
}

// isFault reports whether err is a failure of the storage (disk, file, lock, memory) and not of the statement. SQLite
// rolls back the whole transaction on most of these.
func isFault(err error) bool {
	if code := postgres.Code(err); code != "" {
		return slices.ContainsFunc(postgresFaults, func(class string) bool { return strings.HasPrefix(code, class) })
	}
	switch sqliteFailure(err).Code {
	case sqlite3.ErrFull, sqlite3.ErrNomem, sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrInterrupt, sqlite3.ErrPerm:
		return true
	default:
		return mayNeedReopening(err) || isConnectionFault(err)
	}
}

// postgresFaults are the classes of PostgreSQL's SQLSTATE, and states, that are failures of the database.
var postgresFaults = []string{
	"08",    // connection
	"40",    // a transaction that was rolled back because of others
	"53",    // insufficient resources, such as a full disk
	"57",    // an intervention of the operator, such as a shutdown, and statement_timeout
	"58",    // system error
	"XX",    // internal error, such as a damaged table
	"25006", // read-only: the server has become a standby
	"25P03", // idle_in_transaction_session_timeout
	"55P03", // lock_timeout
}

// isConnectionFault reports whether err is that of a connection to PostgreSQL, and not of a statement.
func isConnectionFault(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
}

// isLostConnection reports whether a connection to PostgreSQL cannot be used any longer.
func isLostConnection(err error) bool {
	if postgres.Code(err) != "" {
		return postgres.IsConnection(err)
	}
	return isConnectionFault(err)
}

// unavailable wraps err, a storage failure during operation, as ErrUnavailable.
func unavailable(operation string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, operation, err)
}

// mayNeedReopening reports whether an open connection may keep failing with err after its cause is gone, so that the
// file has to be reopened. A full disk and a lock do not need it.
func mayNeedReopening(err error) bool {
	switch sqliteFailure(err).Code {
	case sqlite3.ErrIoErr, sqlite3.ErrReadonly, sqlite3.ErrCorrupt, sqlite3.ErrNotADB, sqlite3.ErrCantOpen, sqlite3.ErrProtocol:
		return true
	default:
		return false
	}
}
