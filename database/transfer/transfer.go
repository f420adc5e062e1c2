// Package transfer copies a whole database from SQLite to PostgreSQL.
//
// The copy is one transaction on PostgreSQL, in which every table is locked, copied by COPY, read back and compared with
// what was read: an interrupted copy leaves the target empty. SQLite is locked for writing meanwhile, so the source does
// not change. Memory holds one row.
//
// Data that only one engine has is not copied: counters of the ledger are computed from the requests, requests in flight
// become interrupted ones.
package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/database/postgres"
)

const (
	// statementTimeout limits one statement of a copy, such as that which copies all requests.
	statementTimeout = 24 * time.Hour

	// lockTimeout is long enough for the server to roll back an earlier run that was killed.
	lockTimeout = 15 * time.Second

	// silentAfter is the age of the last heartbeat of a gateway that has crashed.
	silentAfter = 30 * time.Second
)

var (
	errServing  = errors.New("stop every gateway first")
	errNotEmpty = errors.New("the target is not empty")
	errDiffers  = errors.New("the copy differs from its source")
)

// Copy copies the SQLite database at path to the PostgreSQL database at url. It writes its progress to log.
func Copy(ctx context.Context, path, url string, log io.Writer) (err error) {
	isURL := func(s string) bool {
		return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
	}
	if isURL(path) || !isURL(url) {
		return errors.New("the source is the path of a SQLite database and the target a postgres:// URL; " +
			"to copy a database to one of the same kind, use basegate backup or pg_dump")
	}
	source, release, err := openSource(ctx, path)
	if err != nil {
		return fmt.Errorf("open the source: %w", err)
	}
	defer func() { err = errors.Join(err, release()) }()
	target, err := openTarget(ctx, url)
	if err != nil {
		return fmt.Errorf("open the target: %w", err)
	}
	defer postgres.CloseConn(ctx, target)
	say := func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) }
	// The transaction keeps commands from changing the source. Those on the target end with ctx.
	return source.WriteExclusive(ctx, func(from database.Tx) error {
		return pgx.BeginFunc(ctx, target, func(to pgx.Tx) error {
			return (&copier{from: from, to: to, say: say}).run(ctx)
		})
	})
}

// openSource opens and migrates a SQLite database, and keeps gateways from starting on it until release is called.
func openSource(ctx context.Context, path string) (db *database.DB, release func() error, err error) {
	if _, err := os.Stat(path); err != nil { // it would be created
		return nil, nil, fmt.Errorf("find database: %w", err)
	}
	lock, err := database.Acquire(ctx, path, "copies the database")
	if locked, ok := errors.AsType[*database.LockedError](err); ok {
		return nil, nil, fmt.Errorf("%w: %w", errServing, locked)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lock database: %w", err)
	}
	db, err = database.Open(ctx, database.Settings{Path: path}, zap.NewNop())
	if err != nil {
		return nil, nil, errors.Join(err, lock.Release())
	}
	return db, func() error { return errors.Join(db.Close(), lock.Release()) }, nil
}

// openTarget connects to a PostgreSQL database and migrates it.
func openTarget(ctx context.Context, url string) (_ *pgx.Conn, err error) {
	db, err := postgres.Open(ctx, postgres.Settings{
		URL: url, StatementTimeout: statementTimeout, IdleInTx: statementTimeout, LockTimeout: lockTimeout,
	})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			postgres.CloseConn(ctx, conn)
		}
	}()
	readJSONAsText(conn)
	// A gateway of an older version must not find its schema migrated.
	if err := refuseGateways(ctx, conn); err != nil {
		return nil, err
	}
	schema, err := db.Migrate(ctx)
	if err == nil && schema.Newer() {
		err = fmt.Errorf("the schema has version %d, and this program copies to version %d: use the newer basegate to copy",
			schema.Version, schema.Known)
	}
	return conn, err
}

// querier is a connection to the target, or a transaction on it.
type querier interface {
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// refuseGateways returns errServing if a gateway has sent a heartbeat lately.
func refuseGateways(ctx context.Context, target querier) error {
	var exists bool
	if err := target.QueryRow(ctx, "SELECT to_regclass('gateway') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return err
	}
	const text = `SELECT name FROM gateway WHERE alive AND beat_at > (extract(epoch FROM clock_timestamp()) - $1) * 1000000 ORDER BY name`
	names, err := collect(ctx, target, text, silentAfter.Seconds())
	if err != nil {
		return fmt.Errorf("read the heartbeats of gateways: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: %s serves from the target; one that has crashed counts as running for %v",
			errServing, strings.Join(names, ", "), silentAfter)
	}
	return nil
}

// collect returns the texts that a query on the target returns.
func collect(ctx context.Context, target querier, text string, args ...any) ([]string, error) {
	rows, _ := target.Query(ctx, text, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// copier is one copy.
type copier struct {
	from database.Tx
	to   pgx.Tx
	say  func(format string, args ...any)
}

func (c *copier) run(ctx context.Context) error {
	tables, err := c.tables(ctx)
	if err != nil {
		return fmt.Errorf("read the source's schema: %w", err)
	}
	if err := c.claim(ctx, tables); err != nil {
		return err
	}
	if err := c.createPartitions(ctx); err != nil {
		return fmt.Errorf("create the partitions of requests: %w", err)
	}
	var sum int64
	for _, t := range tables {
		rows, err := c.copyTable(ctx, t)
		if err != nil {
			return err
		}
		sum += rows
	}
	if err := c.finish(ctx); err != nil {
		return fmt.Errorf("finish the copy: %w", err)
	}
	return c.report(ctx, sum, len(tables))
}

// claim locks the target, so that no gateway starts on it and no other copy runs, and returns an error unless it is empty.
func (c *copier) claim(ctx context.Context, tables []table) error {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.name
	}
	if _, err := c.to.Exec(ctx, "LOCK TABLE gateway, "+strings.Join(names, ", ")+" IN EXCLUSIVE MODE"); err != nil {
		return fmt.Errorf("lock the target, to which another copy may be running: %w", err)
	}
	if err := refuseGateways(ctx, c.to); err != nil {
		return err
	}
	var found []string
	for _, name := range names {
		var any bool
		if err := c.to.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+name+")").Scan(&any); err != nil {
			return fmt.Errorf("read the target: %w", err)
		}
		if any {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: it has rows in %s", errNotEmpty, strings.Join(found, ", "))
	}
	return nil
}

// createPartitions creates the partitions of all months in which the source has requests.
func (c *copier) createPartitions(ctx context.Context) error {
	return database.Each(ctx, c.from, func(r *sql.Rows) error {
		var month int64
		if err := r.Scan(&month); err != nil {
			return err
		}
		_, err := c.to.Exec(ctx, "SELECT ledger_partition_v1($1)", month)
		return err
	}, `SELECT DISTINCT unixepoch(time / 1000000, 'unixepoch', 'start of month') * 1000000
		FROM (SELECT time FROM requests UNION ALL SELECT time FROM inflight)`)
}

// finish computes what is not copied, and continues the numbers of rows.
func (c *copier) finish(ctx context.Context) error {
	numbered, err := collect(ctx, c.to, `SELECT format('SELECT setval(pg_get_serial_sequence(%L, %L), max(%I)) FROM %I', relname, attname, attname, relname)
		FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid WHERE relnamespace = 'basegate'::regnamespace AND attidentity <> ''`)
	if err != nil {
		return err
	}
	// What waits for the commit puts keys on the ledger, before their counters are computed.
	for _, text := range append(numbered, "SET CONSTRAINTS ALL IMMEDIATE", "SELECT ledger_fill_v1()", "ANALYZE") {
		if _, err := c.to.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

func (c *copier) report(ctx context.Context, rows int64, tables int) error {
	var requests, tokens, accounts, keys int64
	var receipts, objects bool
	err := c.to.QueryRow(ctx, `SELECT count(*), coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint,
		(SELECT count(*) FROM accounts), (SELECT count(*) FROM keys), EXISTS (SELECT FROM receipts), EXISTS (SELECT FROM objects)
		FROM requests`).Scan(&requests, &tokens, &accounts, &keys, &receipts, &objects)
	if err != nil {
		return fmt.Errorf("count the copy: %w", err)
	}
	c.say("%d rows of %d tables are copied and verified: %d requests with %d tokens, %d accounts, %d keys",
		rows, tables, requests, tokens, accounts, keys)
	if receipts {
		c.say("the signing key of the receipt log is not in the database: receipts.key of the new configuration must name a copy of the same file")
	}
	if objects {
		c.say("files are not in the database: files.url of the new configuration must name the place where they are")
	}
	return nil
}
