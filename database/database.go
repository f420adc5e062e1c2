// Package database opens the database, brings it up to date, and is the one way to write to it.
//
// All writes go through one goroutine. It takes whatever has been submitted while it was busy and commits that as one
// transaction, so that the cost of making a commit durable is shared by everybody who waits for one: where a single
// writer makes 7,000 durable writes a second, 256 make 190,000. Reads go to a pool of their own and never wait for a
// write.
//
// The package knows which database it is, and nobody else does: statements are written as PostgreSQL takes them, with
// $1 for a parameter, BIGINT microseconds for a time and BLOB for bytes. What the tables mean is the business of the
// packages whose data they hold; here are only the migrations that make them.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Settings say where the database is.
type Settings struct {
	Path string // of the file; it is made where there is none

	// LockWait is how long a transaction waits for another process to release the lock; 0: DefaultLockWait. A command
	// holds the lock for milliseconds. While the gateway waits, no answer can be finished, so it does not wait long for
	// a shell that somebody forgot within a transaction; a command that can wait may.
	LockWait time.Duration

	synchronous synchronous
}

// DefaultLockWait is what Settings.LockWait is where it is 0.
const DefaultLockWait = time.Second

// synchronous is how durable a commit is.
type synchronous bool

const (
	full   synchronous = false // survives a power failure
	normal synchronous = true  // may be lost then; to measure against
)

func (s synchronous) name() string {
	if s == normal {
		return "NORMAL"
	}
	return "FULL"
}

func (s synchronous) level() int {
	if s == normal {
		return 1
	}
	return 2
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	path     string
	settings Settings
	log      *zap.Logger
	current  atomic.Pointer[handles]
	outage   atomic.Pointer[outage] // nil while the database can be written

	mu      sync.Mutex // guards what follows
	queue   []*Pending
	closed  bool
	leading bool // somebody writes

	// Who writes has these.
	batch    []*Pending
	reopened time.Time // when the file was last opened again

	wake    chan struct{} // holds one token when there may be something in the queue
	stopped chan struct{} // closed when the writer has ended
}

// Open opens the database, makes it where there is none, and migrates it. The error is ErrNewer when the database is
// ahead of this program. The writer runs until Close.
func Open(ctx context.Context, s Settings, log *zap.Logger) (*DB, error) {
	if s.Path == "" {
		return nil, errors.New("the path of the database is empty")
	}
	if s.LockWait == 0 {
		s.LockWait = DefaultLockWait
	}
	path, err := filepath.Abs(s.Path)
	if err != nil {
		return nil, fmt.Errorf("find database: %w", err)
	}
	if err := createFile(path); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	h, err := openHandles(ctx, path, s)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db := &DB{
		path: path, settings: s, log: log,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	db.current.Store(h)
	go db.run(context.WithoutCancel(ctx))
	return db, nil
}

// Read is for queries. It cannot write. Ask for it anew each time: a file that is put in the database's place brings
// another one.
func (db *DB) Read() *sql.DB { return db.current.Load().reader }

// Ping tells whether the database can be read, and could be written when that was last tried.
func (db *DB) Ping(ctx context.Context) error {
	if o := db.outage.Load(); o != nil {
		return o.err
	}
	var tables int
	if err := db.Read().QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return fmt.Errorf("read database: %w", err)
	}
	return nil
}

// Close commits what has been submitted, then closes the database. What is submitted later gets ErrClosed.
func (db *DB) Close() error {
	db.mu.Lock()
	already := db.closed
	db.closed = true
	db.mu.Unlock()
	db.nudge()
	<-db.stopped
	if already {
		return nil
	}
	if err := db.current.Load().close(); err != nil {
		return fmt.Errorf("close database: %w", err)
	}
	return nil
}
