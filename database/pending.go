package database

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"

	"basegate/internal/wait"
)

// Execer runs a statement that returns no rows.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Tx runs the statements of a write. The leader begins and ends the transaction. The end of a statement's context does not
// interrupt it, since the transaction may be shared.
type Tx interface {
	Execer
	Reader
}

// Pending is a queued write and the future of its result. Either apply or statement is set.
type Pending struct {
	db        *DB
	apply     func(Tx) error
	statement func(Execer) error // see EnqueueStatement
	insert    *Insert            // see EnqueueInsert; nil for other writes
	row       Row                // of insert
	exclusive bool               // in a transaction of its own
	done      chan struct{}
	err       error // set before done is closed
}

// Wait blocks until the write is on disk or has failed, and returns its error. If ctx ends while the write is queued, it is
// removed from the queue, and its error is ErrCancelled with the cause. One whose transaction has begun is awaited, for as long as
// the engine allows it and those before it in the transaction.
//
// If there is no leader, the caller becomes it and commits what is queued: waking the writer and being woken by it
// costs more than a small write.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	if ctx.Err() == nil && !p.db.hasLeader() {
		// Goroutines that are ready to run may be about to enqueue too, and a larger batch is cheaper per write.
		runtime.Gosched()
		p.db.commitAsLeader(ctx)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.cancel(context.Cause(ctx))
		<-p.done
	}
	return p.err
}

// cancel completes the write with ErrCancelled if it is in the queue.
func (p *Pending) cancel(cause error) {
	p.db.mu.Lock()
	at := slices.Index(p.db.queue, p)
	if at >= 0 {
		p.db.queue = slices.Delete(p.db.queue, at, at+1)
	}
	p.db.mu.Unlock()
	if at >= 0 {
		p.finish(fmt.Errorf("%w: %w", ErrCancelled, cause))
	}
}

// finish completes the write with its own error, or else with that of the transaction.
func (p *Pending) finish(err error) {
	if p.err == nil {
		p.err = err
	}
	p.apply, p.statement, p.row = nil, nil, nil // a Pending that is kept must not keep the written data alive
	close(p.done)
}

// Submit queues apply for a grouped transaction, wakes the writer, and returns without waiting. Writes are applied in
// the order in which they are queued.
//
// Writes share a transaction but fail separately: if apply returns an error or panics, its changes are rolled back to a
// savepoint and the other writes are committed. apply must not end the transaction. Every other write waits while apply
// runs, so it must return soon and wait for nothing but its own statements; to wait for another write in it is a
// deadlock. It does not run after Wait has returned.
//
// The error of the write is apply's own, ErrCancelled, ErrClosed or ErrUnavailable.
func (db *DB) Submit(apply func(Tx) error) *Pending {
	p := db.Enqueue(apply)
	db.wakeWriter()
	return p
}

// Enqueue is Submit without waking the writer, for a caller that goes on to Wait and may then be the leader itself.
func (db *DB) Enqueue(apply func(Tx) error) *Pending {
	return db.enqueue(&Pending{db: db, apply: apply, done: make(chan struct{})})
}

// EnqueueStatement is Enqueue for a write in which only the last statement changes data. SQLite rolls back a failed
// statement by itself, so the write needs no savepoint, which costs nearly as much as the statement.
func (db *DB) EnqueueStatement(statement func(Execer) error) *Pending {
	return db.enqueue(&Pending{db: db, statement: statement, done: make(chan struct{})})
}

// SubmitStatement is Submit for a write as EnqueueStatement takes it.
func (db *DB) SubmitStatement(statement func(Execer) error) *Pending {
	p := db.EnqueueStatement(statement)
	db.wakeWriter()
	return p
}

// WriteGrouped makes a write in a transaction that it may share with others, and waits until it is on disk. See Submit
// for what apply may do and Wait for when ctx ends.
func (db *DB) WriteGrouped(ctx context.Context, apply func(Tx) error) error {
	return db.Enqueue(apply).Wait(ctx)
}

// WriteExclusive is WriteGrouped in a transaction of its own.
func (db *DB) WriteExclusive(ctx context.Context, apply func(Tx) error) error {
	return db.enqueue(&Pending{db: db, apply: apply, exclusive: true, done: make(chan struct{})}).Wait(ctx)
}

// maxQueue bounds the memory that queued writes take while the database does not respond.
const maxQueue = 1 << 16

func (db *DB) enqueue(p *Pending) *Pending {
	db.mu.Lock()
	closed, full := db.closed, len(db.queue) >= maxQueue
	if !closed && !full {
		db.queue = append(db.queue, p)
	}
	db.mu.Unlock()
	switch {
	case closed:
		p.finish(ErrClosed)
	case full:
		p.finish(fmt.Errorf("%w: %d writes are queued already", ErrUnavailable, maxQueue))
	}
	return p
}

// wakeWriter makes the writer look at the queue.
func (db *DB) wakeWriter() { wait.Wake(db.wake) }

// hasLeader reports whether a leader is active. Everything queued before the call is then committed without the caller:
// the leader wakes the writer for what it leaves in the queue.
func (db *DB) hasLeader() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.leading
}
