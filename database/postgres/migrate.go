package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var embedded embed.FS

var migrations, _ = fs.Sub(embedded, "migrations") // the path is valid

// migrationStatementTimeout limits one statement of a migration.
const migrationStatementTimeout = 10 * time.Minute

// A migration waits for a lock no longer than this: what comes after it on the same table waits as long. It is then tried
// again, after a pause in which gateways serve.
const (
	migrationLockTimeout = time.Second
	migrationLockPause   = 2 * time.Second
	migrationLockTries   = 20
)

// Of both engines.
const (
	VersionTable  = "schema_migrations" // of the migrations that the schema has
	SelectVersion = `SELECT coalesce(max(version_id), 0) FROM ` + VersionTable + ` WHERE is_applied`
)

// Errors about the version of a schema.
var (
	ErrNewer = errors.New("the database was made by a newer version of basegate; use that version or a later one")
	ErrOlder = errors.New("the database has not been migrated to this version of basegate: " +
		"run basegate database migrate with a role that owns the schema")
)

// Schema is the version of a database's schema, and says which programs may work on it.
type Schema struct {
	Version int64 // its last migration; 0 if there is no schema
	Known   int64 // the last migration that this program knows
	Oldest  int64 // the last migration that a program must know to work on the schema; only set if Newer
}

// Pending is the number of migrations that this program knows and the schema lacks.
func (s Schema) Pending() int64 { return max(0, s.Known-s.Version) }

// Newer reports whether the schema has migrations that this program does not know.
func (s Schema) Newer() bool { return s.Version > s.Known }

// Check returns ErrOlder or ErrNewer unless a program may work on the schema: it has all migrations that the program knows,
// and later ones only if they leave what the program uses.
func (s Schema) Check() error {
	switch {
	case s.Version < s.Known:
		return fmt.Errorf("%w (the schema has version %d, this program needs %d)", ErrOlder, s.Version, s.Known)
	case s.Newer() && s.Known < s.Oldest:
		return fmt.Errorf("%w: the schema has version %d, which needs a program that knows version %d; this program knows up to %d; "+
			"to go back to this program, restore a backup made before the upgrade", ErrNewer, s.Version, s.Oldest, s.Known)
	}
	return nil
}

// CheckSchema reads the schema's version, and returns the error of its Check. It changes nothing, so a role that may not
// migrate can call it.
func (db *DB) CheckSchema(ctx context.Context) (Schema, error) {
	s, err := db.readSchema(ctx, migrations)
	if err != nil {
		return s, err
	}
	return s, s.Check()
}

// KnownVersion returns the version of the last of a program's migrations, whose numbers begin at 1 and have no gaps.
func KnownVersion(files fs.FS) int64 {
	names, _ := fs.Glob(files, "*.sql") // the pattern is valid
	return int64(len(names))
}

// readSchema reads the version of the schema.
func (db *DB) readSchema(ctx context.Context, files fs.FS) (s Schema, err error) {
	conn, err := db.Connect(ctx)
	if err != nil {
		return s, err
	}
	defer CloseConn(ctx, conn)
	return schemaOf(ctx, conn, files)
}

// schemaOf is readSchema on a connection. It returns errForeignSchema if the schema has tables that no migration has made.
func schemaOf(ctx context.Context, conn *pgx.Conn, files fs.FS) (s Schema, err error) {
	s.Known = KnownVersion(files)
	var tables, versions int
	const text = `SELECT count(*), count(*) FILTER (WHERE relname = $2) FROM pg_class
		WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'p')`
	err = conn.QueryRow(ctx, text, schema, VersionTable).Scan(&tables, &versions)
	switch {
	case err != nil || tables == 0:
	case versions == 0:
		return s, errForeignSchema
	default:
		err = conn.QueryRow(ctx, SelectVersion).Scan(&s.Version)
	}
	if err == nil && s.Newer() {
		err = conn.QueryRow(ctx, `SELECT oldest FROM schema_compatibility`).Scan(&s.Oldest)
	}
	if err != nil {
		return s, fmt.Errorf("read the database's version: %w", err)
	}
	return s, nil
}

// Migrate applies the migrations that the database lacks. Of several processes that call it at the same time, one migrates
// and the others wait. If it lacks any, the role must own the schema, or be allowed to create it. A newer schema is left as
// it is: the error is ErrNewer unless this program may work on it.
func (db *DB) Migrate(ctx context.Context) (Schema, error) { return db.migrate(ctx, migrations) }

func (db *DB) migrate(ctx context.Context, files fs.FS) (Schema, error) {
	s, err := db.readSchema(ctx, files)
	if err != nil {
		return s, err
	}
	if s.Version < s.Known { // else a role that may not migrate can serve
		if err := db.applyRetrying(ctx, files); err != nil {
			return s, err
		}
		if s, err = db.readSchema(ctx, files); err != nil { // another process may know later ones
			return s, err
		}
	}
	return s, s.Check()
}

// applyRetrying applies the migrations that the database lacks, and tries again if another transaction holds a lock.
func (db *DB) applyRetrying(ctx context.Context, files fs.FS) error {
	for try := 1; ; try++ {
		err := db.apply(ctx, files)
		if err == nil || !IsLock(err) {
			return err
		}
		if try == migrationLockTries {
			return fmt.Errorf("after %d tries, other transactions still hold a lock that a migration needs: %w", try, err)
		}
		pause := time.NewTimer(migrationLockPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// apply applies the migrations that the database lacks, in a session of its own.
func (db *DB) apply(ctx context.Context, files fs.FS) error {
	handle := stdlib.OpenDB(*db.session(map[string]string{
		"statement_timeout": milliseconds(migrationStatementTimeout), "lock_timeout": milliseconds(migrationLockTimeout),
	}))
	defer func() { _ = handle.Close() }()
	// IF NOT EXISTS does not see a schema of a transaction in progress. A unique violation says that it has committed
	// meanwhile.
	_, err := handle.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize())
	if err != nil && Code(err) != "23505" {
		return fmt.Errorf("create schema: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("lock migrations: %w", err)
	}
	return ApplyMigrations(ctx, goose.DialectPostgres, handle, files, goose.WithSessionLocker(locker))
}

// ApplyMigrations applies the migrations that a database of either engine lacks.
func ApplyMigrations(ctx context.Context, engine goose.Dialect, handle *sql.DB, files fs.FS, options ...goose.ProviderOption) error {
	options = append(options, goose.WithTableName(VersionTable), goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true))
	provider, err := goose.NewProvider(engine, handle, files, options...)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}
