// Package postgres connects to the PostgreSQL database that several gateways share, migrates it and classifies its errors.
//
// Its connections have limits, so that a gateway that hangs or is cut off holds no lock for long: on statements, on waits
// for locks, on idle transactions and on unacknowledged data. A connection pooler in transaction mode is refused, since
// notifications do not pass through it, and so is a server older than version 15.
//
// The schema is basegate. The migrations are here; package budget/cluster calls the functions that they define. Package
// database is the other engine, SQLite.
package postgres

import (
	"context"
	"database/sql"
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
	Unacknowledged   time.Duration // of data that the client does not acknowledge; default 5 s

	Unfinished bool // accept a database to which an unfinished copy is being made
}

// The defaults of Settings.
const (
	DefaultStatementTimeout = 2 * time.Second
	DefaultLockTimeout      = time.Second
	DefaultIdleInTx         = 5 * time.Second
	DefaultUnacknowledged   = 5 * time.Second
)

// minServerVersion is the oldest supported major version of PostgreSQL.
const minServerVersion = 15

// PoolSize is the number of connections for short statements that are not on the path of a request.
const PoolSize = 6

// poolStatementTimeout limits the statements of the pool.
const poolStatementTimeout = 30 * time.Second

// connectTimeout limits the establishment of one connection.
const connectTimeout = 5 * time.Second

// schema holds all tables and functions.
const schema = "basegate"

// Now is the time of the server's clock as an SQL expression, in microseconds since 1970. The role of gateways may not call the
// ledger's function for it.
const Now = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// DB is a database. It is safe for concurrent use.
type DB struct {
	config     *pgx.ConnConfig
	pool       *pgxpool.Pool
	disconnect context.CancelFunc
	unfinished bool // Settings.Unfinished
}

// ErrUnfinished is returned by Open if a copy to the database was begun and is not complete.
var ErrUnfinished = errors.New("a copy to this database is not complete: run the same basegate database copy again")

// ErrPooler is returned by Open if notifications do not arrive, as behind a pooler in transaction mode.
var ErrPooler = errors.New("a notification to itself did not arrive: connect to PostgreSQL directly, or through a pooler in session mode")

// Open connects to the database and checks the server. It does not migrate.
func Open(ctx context.Context, s Settings) (*DB, error) {
	poolConfig, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return nil, errors.New("open database: the URL is not valid") // the cause may quote the password
	}
	if err := checkTLS(poolConfig.ConnConfig); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s.apply(poolConfig.ConnConfig)
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	closeWith(connected, poolConfig.ConnConfig)
	poolConfig.MaxConns, poolConfig.MinConns = PoolSize, 0
	connConfig := poolConfig.ConnConfig.Copy()
	// The end of an epoch may concern many requests.
	poolConfig.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(poolStatementTimeout.Milliseconds(), 10)
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		disconnect()
		return nil, fmt.Errorf("open database: %w", err)
	}
	db := &DB{config: connConfig, pool: pool, disconnect: disconnect, unfinished: s.Unfinished}
	if err := db.check(ctx); err != nil {
		db.Close()
		disconnect()
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}

// apply sets the limits of a connection. The URL may set others.
func (s Settings) apply(c *pgx.ConnConfig) {
	for name, limit := range map[string]struct{ set, otherwise time.Duration }{
		"statement_timeout":                   {s.StatementTimeout, DefaultStatementTimeout},
		"lock_timeout":                        {s.LockTimeout, DefaultLockTimeout},
		"idle_in_transaction_session_timeout": {s.IdleInTx, DefaultIdleInTx},
		"tcp_user_timeout":                    {s.Unacknowledged, DefaultUnacknowledged},
	} {
		value := limit.set
		if value == 0 {
			value = limit.otherwise
		}
		if _, given := c.RuntimeParams[name]; !given {
			c.RuntimeParams[name] = strconv.FormatInt(value.Milliseconds(), 10)
		}
	}
	for name, value := range map[string]string{
		"application_name": "basegate",
		// A connection that is lost while the server waits for the end of a query holds locks until it is found dead.
		"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3",
	} {
		if _, given := c.RuntimeParams[name]; !given {
			c.RuntimeParams[name] = value
		}
	}
	c.RuntimeParams["search_path"] = schema
	c.RuntimeParams["timezone"] = "UTC"
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
	}}
	c.DialFunc = dialer.DialContext
}

// closeWith closes the connections of a configuration when ctx ends.
func closeWith(ctx context.Context, c *pgx.ConnConfig) {
	dial := c.DialFunc
	c.DialFunc = func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(dialing, network, address)
		if err != nil {
			return nil, err
		}
		return closingConn{conn, context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
	}
}

// closingConn is a connection that the end of a context closes, unless release is called before.
type closingConn struct {
	net.Conn
	release func() bool
}

// Close implements net.Conn.
func (c closingConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// Disconnect closes all connections, also new ones, so that no statement waits for a server that does not respond.
func (db *DB) Disconnect() { db.disconnect() }

// Config returns a copy of the configuration of connections.
func (db *DB) Config() *pgx.ConnConfig { return db.config.Copy() }

// Close closes the pool. Connections of Connect stay open.
func (db *DB) Close() { db.pool.Close() }

// Pool returns connections for short statements that are not on the path of a request.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// OpenPool returns a pool of connections for database/sql, whose sessions have parameters besides those of the DB. The caller
// closes it.
func (db *DB) OpenPool(most int, parameters map[string]string) *sql.DB {
	config := db.config.Copy()
	maps.Copy(config.RuntimeParams, parameters)
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	return pool
}

// Connect opens a connection of its own, which the caller closes.
func (db *DB) Connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, db.config.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// check refuses servers with which the ledger would not work.
func (db *DB) check(ctx context.Context) error {
	conn, err := db.Connect(ctx)
	if err != nil {
		return explain(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	reported, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if major, err := strconv.Atoi(strings.Fields(reported + " ")[0]); err == nil && major < minServerVersion {
		return fmt.Errorf("the server is PostgreSQL %d; %d or later is required", major, minServerVersion)
	}
	var standby, readOnly bool
	var encoding string
	const text = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, current_setting('server_encoding')"
	if err := conn.QueryRow(ctx, text).Scan(&standby, &readOnly, &encoding); err != nil {
		return fmt.Errorf("find out whether the server is a standby: %w", err)
	}
	switch {
	case standby:
		return errors.New("the server is a standby, which cannot be written; name the primary")
	case readOnly:
		return errors.New("transactions are read-only by default: reset default_transaction_read_only of the role, the database or the server")
	case encoding != "UTF8":
		return fmt.Errorf("the database's encoding is %s: make it with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)
	}
	if !db.unfinished {
		var copying bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass('database_copy') IS NOT NULL").Scan(&copying); err != nil {
			return fmt.Errorf("look for an unfinished copy: %w", err)
		}
		if copying {
			return ErrUnfinished
		}
	}
	return db.checkNotifications(ctx, conn)
}

// notificationTimeout limits the wait for a notification to oneself.
const notificationTimeout = 2 * time.Second

// checkNotifications listens on one connection and notifies on another, as the ledger does.
func (db *DB) checkNotifications(ctx context.Context, conn *pgx.Conn) error {
	channel := fmt.Sprintf("basegate_check_%d", conn.PgConn().PID())
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := db.pool.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil {
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
