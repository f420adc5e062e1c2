// Package postgres connects to the PostgreSQL database that several gateways share, migrates it and classifies its errors.
//
// Its connections have limits, so that a gateway that hangs or is cut off holds no lock for long: on statements, on waits
// for locks, on idle transactions and on unacknowledged data. They are set after connecting, since a connection pooler
// refuses or drops most parameters of a startup message. A pooler in transaction mode is refused, since settings and
// notifications do not pass through it, and so is a server older than version 15.
//
// Each connection is to the primary: a server in recovery is asked for and refused at each connect. All connections to a
// server end when it turns out to be read-only, or when a new connection has reached another one, so after a switchover
// none stays at the old primary.
//
// The schema is basegate. The migrations are here; package budget/cluster calls the functions that they define. Package
// database is the other engine, SQLite.
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// Settings configure a DB. The zero value of each duration means its default.
type Settings struct {
	URL string // postgres://…

	StatementTimeout time.Duration // of one statement; default 2 s
	LockTimeout      time.Duration // of one wait for a lock; default 1 s
	IdleInTx         time.Duration // of a transaction without a statement; default 5 s

	Moved func() // called the first time that a new connection ends those to another server; may be nil
}

// DefaultIdleInTx is the IdleInTx used if Settings.IdleInTx is 0.
const DefaultIdleInTx = 5 * time.Second

// minServerVersion is the oldest supported major version of PostgreSQL.
const minServerVersion = 15

// PoolSize is the number of connections for short statements that are not on the path of a request.
const PoolSize = 6

// poolStatementTimeout limits the statements of the pool.
const poolStatementTimeout = 30 * time.Second

// Limits of the establishment of one connection. Those of several hosts together leave time for the last one: callers wait five
// seconds, and a machine that is off does not answer.
const (
	connectTimeout      = 5 * time.Second
	connectTimeoutSum   = 4 * time.Second
	leastConnectTimeout = time.Second
)

// schema holds all tables and functions.
const schema = "basegate"

// Now is the time of the server's clock as an SQL expression, in microseconds since 1970. The role of gateways may not call the
// ledger's function for it.
const Now = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// DB is a database. It is safe for concurrent use.
type DB struct {
	config  *pgx.ConnConfig // its RuntimeParams are set by beginSession
	pool    *pgxpool.Pool
	primary *primary
}

// ErrPooler is returned by Open behind a pooler in transaction mode.
var ErrPooler = errors.New("a pooler in transaction mode (pool_mode of PgBouncer) is before PostgreSQL, through which notifications and " +
	"settings of sessions do not pass: connect to PostgreSQL directly, or through a pooler in session mode")

// Open connects to the database and checks the server. It does not migrate.
func Open(ctx context.Context, s Settings) (*DB, error) {
	u, err := ParseURL(s.URL)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	poolConfig, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, errors.New("open database: the URL is not valid") // the cause may quote the password
	}
	if err := checkTLS(poolConfig.ConnConfig); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s.apply(poolConfig.ConnConfig)
	db := &DB{config: poolConfig.ConnConfig, primary: newPrimary(ctx, s.Moved)}
	// The end of an epoch may concern many requests.
	poolConfig.ConnConfig = db.session(map[string]string{"statement_timeout": milliseconds(poolStatementTimeout)})
	poolConfig.MaxConns, poolConfig.MinConns = PoolSize, 0
	poolConfig.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return !hasEnded(conn), nil }
	if db.pool, err = pgxpool.NewWithConfig(ctx, poolConfig); err != nil {
		db.Disconnect()
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := db.check(ctx); err != nil {
		db.Close()
		db.Disconnect()
		return nil, fmt.Errorf("open database: %w", explain(err))
	}
	return db, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// apply sets the limits of a connection. The URL may set others.
func (s Settings) apply(c *pgx.ConnConfig) {
	parameters := map[string]string{
		"application_name":                    "basegate",
		"statement_timeout":                   milliseconds(cmp.Or(s.StatementTimeout, 2*time.Second)),
		"lock_timeout":                        milliseconds(cmp.Or(s.LockTimeout, time.Second)),
		"idle_in_transaction_session_timeout": milliseconds(cmp.Or(s.IdleInTx, DefaultIdleInTx)),
		"tcp_user_timeout":                    "5000", // of data that the client does not acknowledge
		// A connection that is lost while the server waits for the end of a query holds locks until it is found dead.
		"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3",
	}
	maps.Copy(parameters, c.RuntimeParams)
	c.RuntimeParams = parameters
	c.RuntimeParams["search_path"] = schema
	c.RuntimeParams["timezone"] = "UTC"
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
		hosts := map[string]bool{fmt.Sprint(c.Host, c.Port): true}
		for _, f := range c.Fallbacks {
			hosts[fmt.Sprint(f.Host, f.Port)] = true
		}
		if n := time.Duration(len(hosts)); n > 1 {
			c.ConnectTimeout = max(connectTimeoutSum/n, leastConnectTimeout)
		}
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
	}}
	c.DialFunc = dialer.DialContext
}

// Disconnect closes all connections, also new ones, so that no statement waits for a server that does not respond.
func (db *DB) Disconnect() { db.primary.disconnect() }

// Close closes the pool. Connections of Connect stay open.
func (db *DB) Close() { db.pool.Close() }

// Pool returns connections for short statements that are not on the path of a request.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// OpenPool returns a pool of connections for database/sql, whose sessions have parameters besides those of the DB. The caller
// closes it.
func (db *DB) OpenPool(most int, parameters map[string]string) *sql.DB {
	pool := stdlib.OpenDB(*db.session(parameters), stdlib.OptionResetSession(func(_ context.Context, conn *pgx.Conn) error {
		if hasEnded(conn) {
			return driver.ErrBadConn // the pool takes another one
		}
		return nil
	}))
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	return pool
}

// Connect opens a connection of its own, which the caller closes with CloseConn.
func (db *DB) Connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, db.session(nil))
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// CloseConn closes a connection. The server is told, also if ctx has ended: otherwise it would log a lost connection.
func CloseConn(ctx context.Context, conn *pgx.Conn) {
	_ = conn.Close(context.WithoutCancel(ctx)) // the connection has ended in any case
}

// check refuses servers with which the ledger would not work.
func (db *DB) check(ctx context.Context) error {
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer CloseConn(ctx, conn)
	reported, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if major, err := strconv.Atoi(strings.Fields(reported + " ")[0]); err == nil && major < minServerVersion {
		return fmt.Errorf("the server is PostgreSQL %d; %d or later is required", major, minServerVersion)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		return fmt.Errorf("the database's encoding is %s: make it with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)
	}
	return db.checkNotifications(ctx, conn) // before any prepared statement, of which a pooler may have one already
}

// notificationTimeout limits the wait for a notification to oneself. A server that only stalls must not look like a pooler.
const notificationTimeout = 10 * time.Second

// checkNotifications listens on one connection and notifies on another, as the ledger does.
func (db *DB) checkNotifications(ctx context.Context, conn *pgx.Conn) error {
	channel := fmt.Sprintf("basegate_check_%d", conn.PgConn().PID())
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := db.pool.Exec(ctx, "SELECT pg_notify($1, '')", pgx.QueryExecModeExec, channel); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, notificationTimeout)
	defer cancel()
	if _, err := conn.WaitForNotification(limited); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return ErrPooler
		}
		return fmt.Errorf("wait for a notification: %w", err)
	}
	return nil
}
