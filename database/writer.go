package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	maxBatch      = 512         // writes in one transaction
	checkInterval = time.Second // between health checks, and between attempts to reopen the file
)

// run is the writer: it leads if no waiting caller does, and checks the database's health. It returns when the DB is
// closed and the queue is empty.
func (db *DB) run(ctx context.Context) {
	defer close(db.stopped)
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	for {
		if db.commitAsLeader(ctx) {
			continue
		}
		if db.drained() {
			return
		}
		select {
		case <-db.wake:
		case <-check.C:
			db.checkHealth(ctx)
		}
	}
}

// commitAsLeader commits one batch, and reports whether it did: not if the queue is empty or another goroutine leads.
// The writer commits what is left in the queue.
func (db *DB) commitAsLeader(ctx context.Context) bool {
	if !db.takeLeadAndBatch() {
		return false
	}
	defer db.stopLeading()
	db.commit(context.WithoutCancel(ctx), db.batch) // the batch holds writes of other callers
	clear(db.batch)
	return true
}

// takeLead makes the caller the leader. It returns false if there is one already.
func (db *DB) takeLead() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.leading {
		return false
	}
	db.leading = true
	return true
}

// takeLeadAndBatch makes the caller the leader and moves the next batch from the queue to db.batch. It returns false if
// there is a leader already or the queue is empty.
func (db *DB) takeLeadAndBatch() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.leading || len(db.queue) == 0 {
		return false
	}
	db.leading = true
	db.takeBatch()
	return true
}

// stopLeading lets another goroutine lead, and wakes the writer if there is work left.
func (db *DB) stopLeading() {
	db.mu.Lock()
	db.leading = false
	more := len(db.queue) > 0 || db.closed
	db.mu.Unlock()
	if more {
		db.wakeWriter()
	}
}

// drained reports whether the DB is closed and every write has completed.
func (db *DB) drained() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.closed && !db.leading && len(db.queue) == 0
}

// checkHealth detects, without waiting for a write, that the file was replaced or that an outage has ended.
func (db *DB) checkHealth(ctx context.Context) {
	if !db.takeLead() {
		return
	}
	defer db.stopLeading()
	if db.outage.Load() == nil {
		db.recordResult(db.engine.ensureCurrent(ctx))
		return
	}
	probe := &Pending{done: make(chan struct{}), apply: func(tx Tx) error {
		_, err := tx.ExecContext(ctx, db.engine.probe())
		return err
	}}
	db.commit(ctx, []*Pending{probe})
}

// takeBatch moves the next transaction's writes from the queue to db.batch. The caller holds db.mu.
func (db *DB) takeBatch() {
	db.batch = db.batch[:0]
	for _, p := range db.queue {
		if len(db.batch) == maxBatch || p.exclusive && len(db.batch) > 0 {
			break
		}
		db.batch = append(db.batch, p)
		if p.exclusive {
			break
		}
	}
	left := copy(db.queue, db.queue[len(db.batch):])
	clear(db.queue[left:])
	db.queue = db.queue[:left]
}

// commit commits the batch as one transaction and completes its writes.
func (db *DB) commit(ctx context.Context, batch []*Pending) {
	err := db.engine.ensureCurrent(ctx)
	if err == nil {
		err = db.transact(ctx, batch)
	}
	if err == nil {
		err = db.engine.verifyCurrent()
	}
	db.recordResult(err)
	for _, p := range batch {
		p.finish(err)
	}
}

// transact applies the batch and commits it. It returns a failure of the database, which every write of the batch gets;
// a write's own failure is set in its Pending. The transaction is begun and ended by plain statements: each transaction
// of database/sql has a goroutine that waits for the end of its context, and this context never ends.
func (db *DB) transact(ctx context.Context, batch []*Pending) error {
	conn, err := db.begin(ctx)
	if err != nil && isLostConnection(err) { // the connection has ended while it was not used, as at a switchover
		conn, err = db.begin(ctx)
	}
	if err != nil {
		return unavailable("begin", err)
	}
	defer conn.Close() // returns it to the pool
	committed := false
	defer func() {
		if !committed {
			db.engine.rollback(ctx, conn)
		}
	}()
	var tx Tx = transaction{ctx, conn}
	if len(batch) == 1 && batch[0].statement == nil { // it is rolled back with the transaction, without a savepoint
		if apply(db, batch[0], batch[0].apply, tx) {
			return batch[0].err
		}
		if batch[0].err != nil {
			return nil
		}
	} else if err := db.applyBatch(ctx, conn, tx, batch); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		return unavailable("commit", err)
	}
	committed = true
	db.flusher.commits.Add(1)
	return nil
}

// transaction runs the statements of a batch with a context of its own, which does not end, in place of theirs: if one of these
// ended during a statement, SQLite would roll back the whole transaction, and PostgreSQL's driver close the connection, and
// the writes of other callers would be lost.
type transaction struct {
	ctx  context.Context
	conn *sql.Conn
}

// ExecContext implements Execer.
func (t transaction) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	return t.conn.ExecContext(t.ctx, query, args...)
}

// QueryContext implements Tx.
func (t transaction) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.conn.QueryContext(t.ctx, query, args...)
}

// QueryRowContext implements Tx.
func (t transaction) QueryRowContext(_ context.Context, query string, args ...any) *sql.Row {
	return t.conn.QueryRowContext(t.ctx, query, args...)
}

// begin begins a transaction on the writer's connection.
func (db *DB) begin(ctx context.Context) (*sql.Conn, error) {
	conn, err := db.current.Load().writer.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, db.engine.begin()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// applyBatch applies the writes in order: runs of single statements together, the others one by one.
func (db *DB) applyBatch(ctx context.Context, conn *sql.Conn, tx Tx, batch []*Pending) error {
	for len(batch) > 0 {
		statements := slices.IndexFunc(batch, func(p *Pending) bool { return p.statement == nil })
		if statements < 0 {
			statements = len(batch)
		}
		if statements > 0 {
			if err := db.engine.applyStatements(ctx, conn, batch[:statements]); err != nil {
				return err
			}
		}
		batch = batch[statements:]
		if len(batch) > 0 {
			if err := applyInSavepoint(ctx, tx, batch[0], func() bool { return apply(db, batch[0], batch[0].apply, tx) }); err != nil {
				return err
			}
			batch = batch[1:]
		}
	}
	return nil
}

// applyInSavepoint applies a write of several statements, so that it can be rolled back alone if it fails half way. The
// savepoint costs 2 µs of the 5 µs that a write of two statements takes in a full batch. The alternative, to roll back
// the whole batch and apply it again without the failed write, would call the functions twice.
//
// On some storage failures SQLite rolls back the whole transaction, including the savepoint.
func applyInSavepoint(ctx context.Context, tx Tx, p *Pending, apply func() (fault bool)) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
		return unavailable("begin", err)
	}
	if apply() {
		return p.err
	}
	end := "RELEASE one"
	if p.err != nil {
		end = "ROLLBACK TO one; RELEASE one"
	}
	if _, err := tx.ExecContext(ctx, end); err != nil {
		return unavailable("apply", errors.Join(p.err, err))
	}
	return nil
}

// apply calls the function of one write, sets the write's error, and reports whether that is a storage failure.
func apply[T any](db *DB, p *Pending, do func(T) error, to T) (fault bool) {
	p.err = callRecovered(db, do, to)
	if fault = p.err != nil && isFault(p.err); fault {
		p.err = unavailable("apply", p.err)
	}
	return fault
}

// callRecovered calls do and turns a panic into an error. The panic's value may hold data of a client, so it is
// included only if it comes from the Go runtime.
func callRecovered[T any](db *DB, do func(T) error, to T) (err error) {
	defer func() {
		thrown := recover()
		if thrown == nil {
			return
		}
		var known runtime.Error
		if e, ok := thrown.(error); ok && errors.As(e, &known) {
			err = fmt.Errorf("write panicked: %w", known)
		} else {
			err = fmt.Errorf("write panicked with a %T", thrown)
		}
		db.log.Error("a write panicked", zap.Error(err), zap.String("stack", string(debug.Stack())))
	}()
	return do(to)
}
