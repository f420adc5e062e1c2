package database

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
)

// Execer runs a statement that answers with no more than how many rows it has changed.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Tx runs the statements of a write. When it begins and how it ends is the writer's business.
type Tx interface {
	Execer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Pending is a write that has been submitted.
type Pending struct {
	db    *DB
	apply func(Tx) error
	one   func(Execer) error // in apply's place: one statement, which is undone with its own failure
	alone bool               // in a transaction of its own
	done  chan struct{}
	err   error // set before done is closed
}

// Done is closed when the write is on disk or has failed.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait waits until the write is on disk or has failed, and says which. When ctx ends earlier its cause is the error,
// and the write may still happen. Where the writer is idle the transaction is made here and now, with all that has been
// submitted, since to wake another goroutine and to be woken by it costs more than a small write.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	if !p.db.led() {
		runtime.Gosched() // who is ready to run may be about to submit too, and the more share a transaction the less each pays
		p.db.lead(ctx)
	}
	if ctx.Done() == nil { // it never ends
		<-p.done
		return p.err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for commit: %w", context.Cause(ctx))
	}
}

// finish ends the wait, with the write's own error where it has one.
func (p *Pending) finish(err error) {
	if p.err == nil {
		p.err = err
	}
	p.apply, p.one = nil, nil // whoever keeps the Pending need not keep what was written
	close(p.done)
}

// Submit hands apply to the writer and does not wait. Writes are applied in the order in which they are submitted.
//
// Many share a transaction, and yet each stands for itself: when apply returns an error or panics, what it did is undone
// and the others are not disturbed. The transaction ends when the writer says so, not in apply. As everybody waits while
// it runs, apply must return soon and wait for nothing but its own statements; to wait for another write in it is to wait
// for ever. It may be called after whoever submitted it has gone. A statement in it cannot be interrupted, whatever its
// context does.
//
// The error may be ErrClosed or ErrUnavailable, besides apply's own.
func (db *DB) Submit(apply func(Tx) error) *Pending {
	p := db.Enqueue(apply)
	db.nudge()
	return p
}

// Enqueue is Submit for whoever goes on to Wait: nobody is told of the write before.
func (db *DB) Enqueue(apply func(Tx) error) *Pending {
	return db.enqueue(&Pending{db: db, apply: apply, done: make(chan struct{})})
}

// EnqueueOne is Enqueue of a write of which at most one statement changes anything, and that the last: SQLite itself
// undoes a statement that fails, so that the write needs no savepoint, which costs nearly as much as the statement.
func (db *DB) EnqueueOne(one func(Execer) error) *Pending {
	return db.enqueue(&Pending{db: db, one: one, done: make(chan struct{})})
}

// SubmitOne is Submit of what EnqueueOne takes.
func (db *DB) SubmitOne(one func(Execer) error) *Pending {
	p := db.EnqueueOne(one)
	db.nudge()
	return p
}

// WriteGrouped is Enqueue and Wait.
func (db *DB) WriteGrouped(ctx context.Context, apply func(Tx) error) error {
	return db.Enqueue(apply).Wait(ctx)
}

// WriteExclusive is Batch in a transaction of its own.
func (db *DB) WriteExclusive(ctx context.Context, apply func(Tx) error) error {
	return db.enqueue(&Pending{db: db, apply: apply, alone: true, done: make(chan struct{})}).Wait(ctx)
}

// maxQueue bounds what a database that does not answer can pile up in memory.
const maxQueue = 1 << 16

func (db *DB) enqueue(p *Pending) *Pending {
	db.mu.Lock()
	closed, overfull := db.closed, len(db.queue) >= maxQueue
	if !closed && !overfull {
		db.queue = append(db.queue, p)
	}
	db.mu.Unlock()
	switch {
	case closed:
		p.finish(ErrClosed)
	case overfull:
		p.finish(fmt.Errorf("%w: %d writes are waiting already", ErrUnavailable, maxQueue))
	}
	return p
}

// nudge wakes the writer.
func (db *DB) nudge() {
	select {
	case db.wake <- struct{}{}:
	default:
	}
}

// led tells whether somebody writes, who then sees to it that what has been submitted by now is written too.
func (db *DB) led() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.leading
}
