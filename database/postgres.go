package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"basegate/database/postgres"
)

// statementTimeout limits a short statement, and the wait of a transaction of writes for those of other gateways. A gateway
// that is stopped in the middle of one keeps the others waiting until the server ends its session.
const statementTimeout = postgres.DefaultIdleInTx + time.Second

// writesLock is the advisory lock that transactions of writes hold: the pair of "base" and "gate" in ASCII.
const writesLock = "1650553701, 1734440037"

// openPostgres opens the PostgreSQL database at Settings.URL, and migrates it unless the settings say otherwise.
func (db *DB) openPostgres(ctx context.Context) error {
	server, err := postgres.Open(ctx, postgres.Settings{
		URL: db.settings.URL, StatementTimeout: statementTimeout, LockTimeout: statementTimeout,
		Moved: func() {
			db.log.Warn("database.url has led to another server, or to one that was restarted, and the connections to the one before " +
				"were closed; it must lead to one server that can be written at a time")
		},
	})
	if err != nil {
		return err
	}
	var forWrites map[string]string
	if db.settings.ReadOnly {
		forWrites = readOnly(statementTimeout)
	}
	h := &handles{
		writer:  server.OpenPool(1, forWrites),
		reader:  server.OpenPool(readers(), readOnly(statementTimeout)),
		reports: server.OpenPool(reportConns, forReports(db.settings.ReportTimeout)),
	}
	db.engine = postgresEngine{db, server}
	err = errors.Join(h.writer.PingContext(ctx), h.reader.PingContext(ctx), h.reports.PingContext(ctx))
	if err == nil && !db.settings.ReadOnly {
		err = db.preparePostgres(ctx, server)
	}
	if err != nil {
		server.Close()
		return fmt.Errorf("open database: %w", errors.Join(err, h.close()))
	}
	db.current.Store(h)
	return nil
}

// preparePostgres migrates the schema, or checks that it is current.
func (db *DB) preparePostgres(ctx context.Context, server *postgres.DB) error {
	prepare := server.Migrate
	if db.settings.SchemaCurrent {
		prepare = server.CheckSchema
	}
	found, err := prepare(ctx)
	if err == nil && found.Newer() {
		db.log.Warn("the schema is newer than this program, which may work on it until the upgrade is complete",
			zap.Int64("schema", found.Version), zap.Int64("known", found.Known), zap.Int64("oldest", found.Oldest))
	}
	return err
}

// PostgresConnections returns how many connections a DB with Settings.URL opens at most.
func PostgresConnections() int { return 1 + readers() + reportConns + postgres.PoolSize }

// readOnly returns the parameters of sessions that cannot write.
func readOnly(timeout time.Duration) map[string]string {
	return map[string]string{"default_transaction_read_only": "on", "statement_timeout": milliseconds(timeout)}
}

// forReports returns the parameters of sessions for Report. Its statements depend on their arguments, such as a range of
// times, so each execution is planned with them. Compiling them would take longer than most run. Workers would take more of the
// processors that the ledger needs. The rollups of the last months are mostly cached, which the default costs of pages do not
// assume: to read all rollups of tags would seem cheaper than those of a few keys.
func forReports(timeout time.Duration) map[string]string {
	parameters := readOnly(timeout)
	parameters["plan_cache_mode"], parameters["jit"] = "force_custom_plan", "off"
	parameters["max_parallel_workers_per_gather"], parameters["random_page_cost"] = "0", "1.1"
	return parameters
}

// Postgres returns the connections to a PostgreSQL database that belong to no pool of the DB; nil on SQLite. They are closed
// with the DB.
func (db *DB) Postgres() *postgres.DB {
	if e, ok := db.engine.(postgresEngine); ok {
		return e.server
	}
	return nil
}

// postgresEngine is the engine of a DB with Settings.URL.
type postgresEngine struct {
	*DB

	server *postgres.DB
}

// ensureCurrent returns nil: the pools replace connections that have failed.
func (postgresEngine) ensureCurrent(context.Context) error { return nil }

func (postgresEngine) verifyCurrent() error { return nil }

// begin takes a lock, so that transactions of all gateways see each other's writes in full, as those of SQLite do.
func (postgresEngine) begin() string {
	return "BEGIN; SELECT pg_advisory_xact_lock(" + writesLock + ")"
}

// snapshot is that of each statement alone. One for a whole report would keep PostgreSQL from removing rows that were updated
// meanwhile, and the ledger updates its counters with each request: one that was held for 11 s made it nine times slower.
func (postgresEngine) snapshot() sql.IsolationLevel { return sql.LevelReadCommitted }

func (postgresEngine) probe() string {
	return "UPDATE keys_revision SET revision = revision WHERE false"
}

// applyStatements applies each in a savepoint: PostgreSQL refuses every statement after one that failed.
func (e postgresEngine) applyStatements(ctx context.Context, conn *sql.Conn, batch []*Pending) error {
	tx := transaction{ctx, conn}
	for _, p := range batch {
		run := func() bool { return apply(e.DB, p, p.statement, Execer(tx)) }
		if err := applyInSavepoint(ctx, tx, p, run); err != nil {
			return err
		}
	}
	return nil
}

// rollback discards the connection if the transaction cannot be rolled back.
func (postgresEngine) rollback(ctx context.Context, conn *sql.Conn) {
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // it only tells the pool to close the connection
	}
}

// start starts nothing, and returns what closes the connections that are not in a pool of the DB.
func (e postgresEngine) start(context.Context) (stop func()) { return e.server.Close }
