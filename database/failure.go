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

// ErrUnavailable is returned for a write that fails because of the storage: the disk is full or failing, the file
// is missing or read-only, or another process holds the lock. Nothing was written, unless the failure came at the
// commit itself; another attempt may succeed.
var ErrUnavailable = errors.New("the database cannot be written")

// ErrNewer is returned by Open if the schema has migrations that this program does not know.
var ErrNewer = errors.New("the database was made by a newer version of basegate; use that version or a later one")

// ErrOlder is returned by Open with Settings.SchemaCurrent if the schema lacks migrations that this program needs.
var ErrOlder = errors.New("the database has not been migrated to this version of basegate: run basegate database migrate with a role that owns the schema")

// ErrPreRelease is returned by Open, Backup and Restore for a database from before the first release.
var ErrPreRelease = postgres.ErrPreRelease

// IsUnique reports whether err is a violation of a unique or primary key constraint.
func IsUnique(err error) bool {
	if err == nil {
		return false // before failure is allocated
	}
	if postgres.Code(err) == "23505" {
		return true
	}
	var failure sqlite3.Error
	return errors.As(err, &failure) &&
		(failure.ExtendedCode == sqlite3.ErrConstraintUnique || failure.ExtendedCode == sqlite3.ErrConstraintPrimaryKey)
}

// IsBusy reports whether err is a timeout because another connection held the lock.
func IsBusy(err error) bool {
	var failure sqlite3.Error
	return errors.As(err, &failure) && (failure.Code == sqlite3.ErrBusy || failure.Code == sqlite3.ErrLocked)
}

// isFault reports whether err is a failure of the storage (disk, file, lock, memory) and not of the statement. SQLite
// rolls back the whole transaction on most of these.
func isFault(err error) bool {
	if code := postgres.Code(err); code != "" {
		return slices.ContainsFunc(postgresFaults, func(class string) bool { return strings.HasPrefix(code, class) })
	}
	if isConnectionFault(err) {
		return true
	}
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
