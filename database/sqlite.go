package database

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"basegate/internal/wait"
)

// sqlite is the engine of a DB with Settings.Path.
type sqlite struct{ *DB }

func (sqlite) begin() string { return "BEGIN IMMEDIATE" }

// snapshot is the default: every read transaction of SQLite sees one snapshot.
func (sqlite) snapshot() sql.IsolationLevel { return sql.LevelDefault }

func (sqlite) probe() string { return "PRAGMA user_version = 0" }

// applyStatements calls the driver directly: database/sql takes as long for a statement as SQLite takes to update one
// index. SQLite rolls back a failed statement by itself.
func (e sqlite) applyStatements(ctx context.Context, conn *sql.Conn, batch []*Pending) (err error) {
	broken := conn.Raw(func(driverConn any) error {
		direct := &directExecer{ctx: ctx, connection: driverConn.(*connection)}
		for len(batch) > 0 && err == nil {
			n := combinable(batch)
			err = e.applyTogether(ctx, direct, batch[:n])
			batch = batch[n:]
		}
		return nil
	})
	if broken != nil {
		return unavailable("apply", broken)
	}
	return err
}

// applyTogether applies writes of one statement each by a statement for all of them, or else one by one.
func (e sqlite) applyTogether(ctx context.Context, direct *directExecer, batch []*Pending) error {
	if len(batch) > 1 {
		if inserted, err := direct.insertRows(ctx, batch); inserted || err != nil {
			return err
		}
	}
	for _, p := range batch {
		if apply(e.DB, p, p.statement, Execer(direct)) {
			return p.err
		}
	}
	return nil
}

// rollback rolls the transaction back, unless SQLite has done so already. A connection that is still in the transaction
// afterwards is discarded.
func (sqlite) rollback(ctx context.Context, conn *sql.Conn) {
	//nolint:errcheck // ErrBadConn only tells the pool to close the connection
	conn.Raw(func(driverConn any) error {
		c := driverConn.(*connection) //nolint:errcheck // the type that connector opens
		if c.AutoCommit() {
			return nil
		}
		if _, err := c.ExecContext(ctx, "ROLLBACK", nil); err != nil && !c.AutoCommit() {
			return driver.ErrBadConn
		}
		return nil
	})
}

// start limits the write-ahead log, and flushes it if Settings.Flush says so.
func (e sqlite) start(ctx context.Context) func() {
	if e.settings.ReadOnly {
		return func() {}
	}
	background := new(wait.Loop)
	background.Start(ctx, e.limitWAL, e.flushPeriodically)
	return background.Close
}
