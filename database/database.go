// Package database opens and migrates the database and makes all writes to it, with group commit.
//
// Writes are queued. One goroutine at a time is the leader: it takes the queued writes, up to 512, and commits them as
// one transaction, so that all of them share the cost of one fsync (leader/follower group commit). One caller makes
// 7,000 durable writes a second, 256 concurrent callers make 190,000. The first caller that waits for its write leads;
// a background goroutine, the writer, leads if no caller waits. Reads use other connections and never wait for a write.
//
// Reads that may take long, such as those of usage pages, go through Report, which has a small pool of its own: it limits
// how many run, for how long, and how many of one account. No number of them can keep the short reads, on which
// authentication and readiness depend, from a connection, or the write-ahead log from being written back.
//
// Opening a database takes no lock: commands read and write it while a gateway serves from it. The gateway holds its Lock.
//
// The engine is SQLite, or PostgreSQL, which several gateways can share. An advisory lock serializes the writes of all
// processes there, so what a write reads stays true until its commit. The ledger of PostgreSQL is not here: package
// budget/cluster calls its functions.
//
// Only this package depends on the engine. Statements are written in PostgreSQL's syntax, with $1 for a parameter,
// BIGINT microseconds for a time and BLOB, there BYTEA, for bytes. The migrations are here and in database/postgres; the
// queries, and what the tables mean, belong to the packages whose data they hold.
package database

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/budget/admission"
)

// Settings configure a DB.
type Settings struct {
	Path string // of the file of a SQLite database, which is created if it does not exist; unused if URL is set
	URL  string // of a PostgreSQL database, which must exist; empty: the database is SQLite's

	// SchemaCurrent says that the PostgreSQL database has been migrated: Open only checks its version. So a role that may
	// not change the schema suffices.
	SchemaCurrent bool

	// ReadOnly opens a database to read it: Open does not create, migrate or change it, whatever its version is, and writes
	// fail.
	ReadOnly bool

	// LockWait is how long a transaction waits for another process to release the database lock; 0 means
	// DefaultLockWait. A command holds the lock for milliseconds. The gateway cannot finish a response while it waits,
	// so it should fail soon if somebody has left a transaction open in a shell; a command can afford to wait longer.
	LockWait time.Duration

	ReportTimeout time.Duration // limits each Report; 0 means DefaultReportTimeout

	// Flush is how often commits are flushed to disk: a power failure may lose those since. The end of the process, however
	// it ends, loses none. 0 flushes each transaction before its writes complete.
	Flush time.Duration
}

// DefaultLockWait is the LockWait used if Settings.LockWait is 0.
const DefaultLockWait = time.Second

// synchronous returns the value of SQLite's PRAGMA synchronous, for the DSN, and the number that SQLite reports for it.
func (s Settings) synchronous() (name string, level int) {
	if s.Flush > 0 {
		return "NORMAL", 1
	}
	return "FULL", 2
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	path     string
	settings Settings
	log      *zap.Logger
	current  atomic.Pointer[handles]
	outage   atomic.Pointer[outage] // nil while the database can be written
	reports  *admission.Turns       // the places of Report
	unnamed  atomic.Uint64          // places that were asked for without a subject

	mu      sync.Mutex // guards queue, closed and leading
	queue   []*Pending
	closed  bool
	leading bool // a leader is active

	// The leader owns these.
	batch    []*Pending
	reopened time.Time // time of the latest attempt to reopen the file

	wake    chan struct{} // capacity 1; holds a token if the writer should look at the queue
	stopped chan struct{} // closed when the writer has exited

	engine     engine
	stopEngine func() // ends the background work of the engine, and waits for it
	flusher    flusher
}

// Open opens the database, creates the file if it does not exist, migrates it, and starts the writer, which runs until
// Close; see Settings.ReadOnly. The error is ErrNewer if the schema is newer than this program.
func Open(ctx context.Context, s Settings, log *zap.Logger) (*DB, error) {
	s.LockWait = cmp.Or(s.LockWait, DefaultLockWait)
	s.ReportTimeout = cmp.Or(s.ReportTimeout, DefaultReportTimeout)
	db := &DB{
		settings: s, log: log, reports: admission.NewTurns(reportConns, 1),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	open := db.openFile
	if s.URL != "" {
		open = db.openPostgres
	}
	if err := open(ctx); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	db.stopEngine = db.engine.start(ctx)
	go db.run(ctx)
	return db, nil
}

// openFile opens the SQLite database at Settings.Path.
func (db *DB) openFile(ctx context.Context) error {
	if db.settings.Path == "" {
		return errors.New("the path of the database is empty")
	}
	path, err := filepath.Abs(db.settings.Path)
	if err != nil {
		return fmt.Errorf("find database: %w", err)
	}
	if !db.settings.ReadOnly {
		if err := createFile(path); err != nil {
			return fmt.Errorf("create database: %w", err)
		}
	}
	h, err := openHandles(ctx, path, db.settings, db.log)
	if err != nil {
		return fmt.Errorf("open database %s: %w", path, explainAccess(path, err))
	}
	db.path, db.engine = path, sqlite{db}
	db.current.Store(h)
	return nil
}

// Read returns the pool for queries that take milliseconds; others go through Report. Its connections cannot write.
// Callers must not keep it: it is replaced if another file takes the database's place.
func (db *DB) Read() *sql.DB { return db.current.Load().reader }

// Ping returns an error if the database cannot be read, or if the latest attempt to write or flush it failed.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.WriteError(); err != nil {
		return err
	}
	var revision int64
	if err := db.Read().QueryRowContext(ctx, "SELECT revision FROM keys_revision").Scan(&revision); err != nil {
		return fmt.Errorf("read database: %w", err)
	}
	return nil
}

// Close commits all queued writes, stops the writer and closes the database. Later writes fail with ErrClosed.
func (db *DB) Close() error {
	db.mu.Lock()
	already := db.closed
	db.closed = true
	db.mu.Unlock()
	db.wakeWriter()
	<-db.stopped
	if already {
		return nil
	}
	db.stopEngine()
	if err := db.current.Load().close(); err != nil {
		return fmt.Errorf("close database: %w", err)
	}
	return nil
}
