package database

import (
	"context"
	"database/sql"
)

// engine is what a DB does differently on SQLite and on PostgreSQL.
type engine interface {
	// ensureCurrent returns an error, before a commit, if the open connections cannot write the configured database.
	ensureCurrent(ctx context.Context) error

	// verifyCurrent returns an error if a commit that has succeeded did not reach the configured database.
	verifyCurrent() error

	// begin is the statement that begins a transaction of writes. Until its end no other process begins one.
	begin() string

	// applyStatements applies writes of one statement each. A failure of the database ends it.
	applyStatements(ctx context.Context, conn *sql.Conn, batch []*Pending) error

	// rollback rolls the transaction of a connection back, or discards the connection.
	rollback(ctx context.Context, conn *sql.Conn)

	// snapshot is the isolation of a read transaction whose queries see one snapshot.
	snapshot() sql.IsolationLevel

	// probe is a statement that fails if the database cannot be written.
	probe() string

	// start starts the background work of the engine, and returns what stops it and waits for it.
	start(ctx context.Context) (stop func())
}
