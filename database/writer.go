package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
	checkInterval = time.Second // between looks at the file, and between attempts to open it again
)

// run is the writer: it does what nobody else has done. It ends when the DB has been closed and nothing is left to commit.
func (db *DB) run(ctx context.Context) {
	defer close(db.stopped)
	look := time.NewTicker(checkInterval)
	defer look.Stop()
	for {
		if db.lead(ctx) {
			continue
		}
		if db.over() {
			return
		}
		select {
		case <-db.wake:
		case <-look.C:
			db.look(ctx)
		}
	}
}

// lead commits one batch, unless there is none or somebody is at it: there is one transaction at a time, whoever makes it.
// What is left in the queue then is the writer's.
func (db *DB) lead(ctx context.Context) bool {
	if !db.claim(true) {
		return false
	}
	defer db.release()
	db.commit(context.WithoutCancel(ctx), db.batch) // it is others' work too
	clear(db.batch)
	return true
}

// claim makes the caller the one who writes. With a batch it also takes that out of the queue, and there must be one.
func (db *DB) claim(batch bool) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.leading || batch && len(db.queue) == 0 {
		return false
	}
	db.leading = true
	db.batch = db.batch[:0]
	if batch {
		db.take()
	}
	return true
}

// release lets the next one write.
func (db *DB) release() {
	db.mu.Lock()
	db.leading = false
	more := len(db.queue) > 0 || db.closed
	db.mu.Unlock()
	if more {
		db.nudge()
	}
}

// over tells whether the writer may end.
func (db *DB) over() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.closed && !db.leading && len(db.queue) == 0
}

// look finds out what no write has come to tell: that the file was replaced, or that an outage is over.
func (db *DB) look(ctx context.Context) {
	if !db.claim(false) {
		return
	}
	defer db.release()
	if db.outage.Load() == nil {
		db.report(db.ensure(ctx))
		return
	}
	probe := &Pending{done: make(chan struct{}), apply: func(tx Tx) error {
		_, err := tx.ExecContext(ctx, "PRAGMA user_version = 0")
		return err
	}}
	db.commit(ctx, []*Pending{probe})
}

// take moves the next transaction's writes out of the queue; db.mu is held.
func (db *DB) take() {
	for _, p := range db.queue {
		if len(db.batch) == maxBatch || p.alone && len(db.batch) > 0 {
			break
		}
		db.batch = append(db.batch, p)
		if p.alone {
			break
		}
	}
	left := copy(db.queue, db.queue[len(db.batch):])
	clear(db.queue[left:])
	db.queue = db.queue[:left]
}

// commit makes one transaction of the batch and tells everybody how it went.
func (db *DB) commit(ctx context.Context, batch []*Pending) {
	err := db.ensure(ctx)
	if err == nil {
		err = db.transact(ctx, batch)
	}
	if err == nil {
		err = db.inPlace()
	}
	db.report(err)
	for _, p := range batch {
		p.finish(err)
	}
}

// transact applies the batch and commits it. Its error is the machine's, and everybody's; a write's own failure is
// left in its Pending. The statements that begin and end the transaction are sent as such: database/sql's own
// transactions each have a goroutine that waits for the end of a context, and here none ends.
func (db *DB) transact(ctx context.Context, batch []*Pending) error {
	conn, err := db.current.Load().writer.Conn(ctx)
	if err != nil {
		return unavailable("begin", err)
	}
	defer conn.Close() // gives it back
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return unavailable("begin", err)
	}
	committed := false
	defer func() {
		if !committed {
			rollBack(ctx, conn)
		}
	}()
	if len(batch) == 1 && batch[0].one == nil {
		if apply(db, batch[0], batch[0].apply, Tx(conn)) {
			return batch[0].err
		}
		if batch[0].err != nil {
			return nil
		}
	} else if err := db.applyAll(ctx, conn, batch); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		return unavailable("commit", err)
	}
	committed = true
	return nil
}

// rollBack undoes the transaction, unless SQLite has given it up already. A connection that is still in it then is not
// used again.
func rollBack(ctx context.Context, conn *sql.Conn) {
	//nolint:errcheck // the connection is sound, or closed
	conn.Raw(func(under any) error {
		c := under.(*connection) //nolint:errcheck // what connector opens
		if c.AutoCommit() {
			return nil
		}
		if _, err := c.ExecContext(ctx, "ROLLBACK", nil); err != nil && !c.AutoCommit() {
			return driver.ErrBadConn
		}
		return nil
	})
}

// applyAll applies the writes in their order.
func (db *DB) applyAll(ctx context.Context, conn *sql.Conn, batch []*Pending) error {
	for len(batch) > 0 {
		ones := slices.IndexFunc(batch, func(p *Pending) bool { return p.one == nil })
		if ones < 0 {
			ones = len(batch)
		}
		if err := db.applyOnes(conn, batch[:ones]); err != nil {
			return err
		}
		batch = batch[ones:]
		if len(batch) > 0 {
			if err := db.applySeveral(ctx, conn, batch[0]); err != nil {
				return err
			}
			batch = batch[1:]
		}
	}
	return nil
}

// applyOnes applies writes of one statement each. They go to the driver directly, since database/sql takes as long over
// a statement as SQLite does over one of the indexes.
func (db *DB) applyOnes(conn *sql.Conn, ones []*Pending) (err error) {
	if len(ones) == 0 {
		return nil
	}
	broken := conn.Raw(func(under any) error {
		to := Execer(&direct{connection: under.(*connection)}) //nolint:errcheck // what connector opens
		for _, p := range ones {
			if apply(db, p, p.one, to) {
				err = p.err
				break
			}
		}
		return nil
	})
	if broken != nil {
		return unavailable("apply", broken)
	}
	return err
}

// applySeveral applies a write of several statements within a savepoint, so that one which fails half way can be undone
// alone. That costs 2 µs of the 5 that a write of two statements takes in a full batch. The alternative, to roll
// everything back and do it again without the one that failed, would call the functions twice.
//
// At some of the machine's failures SQLite gives up the whole transaction, and the savepoint with it.
func (db *DB) applySeveral(ctx context.Context, tx Tx, p *Pending) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
		return unavailable("begin", err)
	}
	if apply(db, p, p.apply, tx) {
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

// apply applies one write, leaves its error with it, and tells whether that is the machine's.
func apply[T any](db *DB, p *Pending, do func(T) error, to T) (fault bool) {
	p.err = call(db, do, to)
	if fault = p.err != nil && isFault(p.err); fault {
		p.err = unavailable("apply", p.err)
	}
	return fault
}

// call calls do and makes an error of a panic. What the panic said may be somebody's data, so it is shown only when
// the runtime said it.
func call[T any](db *DB, do func(T) error, to T) (err error) {
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
