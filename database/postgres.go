package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed postgres/*.sql
var postgresMigrations embed.FS

// oldestPostgres is the oldest version of PostgreSQL that is supported.
const oldestPostgres = 15

// Timeouts of PostgreSQL's sessions. A gateway that is stopped in the middle of a transaction of writes keeps those of
// others waiting until its session is ended.
const (
	statementTimeout   = 5 * time.Second
	transactionTimeout = 5 * time.Second // of a transaction that runs no statement
)

// writesLock is the advisory lock that transactions of writes hold: the pair of "base" and "gate" in ASCII.
const writesLock = "1650553701, 1734440037"

// openPostgres opens and migrates the PostgreSQL database at Settings.URL.
func (db *DB) openPostgres(ctx context.Context) error {
	config, err := pgx.ParseConfig(db.settings.URL)
	if err != nil {
		return fmt.Errorf("database.url: %w", err) // pgx leaves the password out
	}
	h := &handles{
		writer:  openPool(config, 1, map[string]string{"statement_timeout": milliseconds(statementTimeout)}),
		reader:  openPool(config, max(4, runtime.GOMAXPROCS(0)), readOnly(statementTimeout)),
		reports: openPool(config, reportConns, readOnly(db.settings.ReportTimeout)),
	}
	if err := db.preparePostgres(ctx, h); err != nil {
		return fmt.Errorf("open database %s on %s: %w", config.Database, config.Host, errors.Join(err, h.close()))
	}
	db.engine = postgres{db}
	db.current.Store(h)
	return nil
}

// openPool returns a pool of connections with parameters of their sessions.
func openPool(config *pgx.ConnConfig, most int, parameters map[string]string) *sql.DB {
	config = config.Copy()
	config.RuntimeParams["application_name"] = "basegate"
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(transactionTimeout)
	for name, value := range parameters {
		config.RuntimeParams[name] = value
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	return pool
}

// readOnly returns the parameters of sessions that cannot write.
func readOnly(timeout time.Duration) map[string]string {
	return map[string]string{"default_transaction_read_only": "on", "statement_timeout": milliseconds(timeout)}
}

func (db *DB) preparePostgres(ctx context.Context, h *handles) error {
	var number, replica string
	err := h.writer.QueryRowContext(ctx, "SELECT current_setting('server_version_num'), pg_is_in_recovery()::text").Scan(&number, &replica)
	if err != nil {
		return err
	}
	if version, err := strconv.Atoi(number); err != nil || version/10_000 < oldestPostgres {
		return fmt.Errorf("the server is PostgreSQL %d; version %d or later is required", version/10_000, oldestPostgres)
	}
	if replica == "true" {
		return errors.New("the server is a standby, which cannot be written; name the primary")
	}
	if err := migratePostgres(ctx, db.settings.URL); err != nil {
		return err
	}
	return h.reader.PingContext(ctx)
}

// migratePostgres applies the migrations that the database lacks, under a lock of the session.
func migratePostgres(ctx context.Context, url string) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("database.url: %w", err)
	}
	pool := openPool(config, 2, nil) // one for the lock
	defer func() { err = errors.Join(err, pool.Close()) }()
	files, err := fs.Sub(postgresMigrations, "postgres")
	if err != nil {
		return fmt.Errorf("find migrations: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("lock migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, files, goose.WithLogger(goose.NopLogger()),
		goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	if current > newest {
		return newerError(current, newest)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}

// postgres is the engine of a DB with Settings.URL.
type postgres struct{ *DB }

// ensureCurrent returns nil: the pools replace connections that have failed.
func (postgres) ensureCurrent(context.Context) error { return nil }

func (postgres) verifyCurrent() error { return nil }

// begin takes a lock, so that transactions of all gateways see each other's writes in full, as those of SQLite do.
func (postgres) begin() string { return "BEGIN; SELECT pg_advisory_xact_lock(" + writesLock + ")" }

// snapshot keeps PostgreSQL from removing rows that were updated meanwhile, and makes each update of them slower, so
// Settings.ReportTimeout limits it.
func (postgres) snapshot() sql.IsolationLevel { return sql.LevelRepeatableRead }

func (postgres) probe() string { return "UPDATE keys_revision SET revision = revision WHERE false" }

func (postgres) transaction(conn *sql.Conn) Tx { return uninterrupted{conn} }

// applyStatements applies each in a savepoint: PostgreSQL refuses every statement after one that failed.
func (e postgres) applyStatements(ctx context.Context, conn *sql.Conn, batch []*Pending) error {
	tx := e.transaction(conn)
	for _, p := range batch {
		run := func() bool { return apply(e.DB, p, p.statement, Execer(tx)) }
		if err := applyInSavepoint(ctx, tx, p, run); err != nil {
			return err
		}
	}
	return nil
}

// rollback discards the connection if the transaction cannot be rolled back.
func (postgres) rollback(ctx context.Context, conn *sql.Conn) {
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // it only tells the pool to close the connection
	}
}

func (postgres) start(context.Context) (stop func()) { return func() {} }

// uninterrupted runs statements to their end even if their context ends: to cancel one would end the connection, and with
// it the writes of other callers.
type uninterrupted struct{ conn *sql.Conn }

// ExecContext implements Execer.
func (u uninterrupted) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return u.conn.ExecContext(context.WithoutCancel(ctx), query, args...)
}

// QueryContext implements Tx.
func (u uninterrupted) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return u.conn.QueryContext(context.WithoutCancel(ctx), query, args...)
}

// QueryRowContext implements Tx.
func (u uninterrupted) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return u.conn.QueryRowContext(context.WithoutCancel(ctx), query, args...)
}
