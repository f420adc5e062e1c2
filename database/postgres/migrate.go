package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationStatementTimeout limits one statement of a migration.
const migrationStatementTimeout = 10 * time.Minute

// A migration waits for a lock no longer than this: what comes after it on the same table waits as long. It is then tried
// again, after a pause in which gateways serve.
const (
	migrationLockTimeout = time.Second
	migrationLockPause   = 2 * time.Second
	migrationLockTries   = 20
)

// Schema is the version of a database's schema, and says which programs may work on it.
type Schema struct {
	Version int64 // its last migration; 0 if there is no schema
	Known   int64 // the last migration that this program knows
	Oldest  int64 // the last migration that a program must know to work on the schema; only set if Newer
	Pending int   // number of migrations that this program knows and the schema lacks
}

// pendingText is the number of migrations that the schema lacks, as a text.
func (s Schema) pendingText() string {
	if s.Pending == 1 {
		return "1 migration"
	}
	return fmt.Sprintf("%d migrations", s.Pending)
}

// Newer reports whether the schema has migrations that this program does not know.
func (s Schema) Newer() bool { return s.Version > s.Known }

// check returns an OlderError or a NewerError unless this program may work on the schema.
func (s Schema) check() error {
	switch {
	case s.Version < s.Known:
		return &OlderError{s.Version, s.Known}
	case s.Newer() && s.Known < s.Oldest:
		return &NewerError{s}
	}
	return nil
}

// NewerError is returned by Migrate and CheckSchema if the schema has migrations that this program does not know, and lacks
// what this program uses.
type NewerError struct{ Schema Schema }

// Error tells the versions.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the schema has version %d, which needs a program that knows version %d; this program knows up to %d",
		e.Schema.Version, e.Schema.Oldest, e.Schema.Known)
}

// OlderError is returned by CheckSchema if the database lacks migrations that this program needs.
type OlderError struct {
	Schema, Known int64 // versions; Schema is 0 if there is no schema
}

// Error tells the versions.
func (e *OlderError) Error() string {
	return fmt.Sprintf("the schema has version %d, this program needs %d", e.Schema, e.Known)
}

// CheckSchema returns an OlderError or a NewerError unless this program may work on the schema: it has all migrations that
// this program knows, and later ones only if they leave what this program uses. It changes nothing, so a role that may not
// migrate can call it.
func (db *DB) CheckSchema(ctx context.Context) (Schema, error) {
	files, err := migrationFiles()
	if err != nil {
		return Schema{}, err
	}
	s, err := db.readSchema(ctx, files)
	if err != nil {
		return s, err
	}
	return s, s.check()
}

func migrationFiles() (fs.FS, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	return files, nil
}

// migrationVersions returns the versions of the migrations.
func migrationVersions(files fs.FS) (versions []int64, err error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("find migrations: %w", err)
		}
		versions = append(versions, version)
	}
	return versions, nil
}

// readSchema reads the version of the schema. It returns errForeignSchema if the schema has tables that no migration has made.
func (db *DB) readSchema(ctx context.Context, files fs.FS) (s Schema, err error) {
	conn, err := db.Connect(ctx)
	if err != nil {
		return s, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if s, err = schemaOf(ctx, conn, files); err != nil && !errors.Is(err, errForeignSchema) {
		err = fmt.Errorf("read the database's version: %w", err)
	}
	return s, err
}

// schemaOf is readSchema on a connection.
func schemaOf(ctx context.Context, conn *pgx.Conn, files fs.FS) (s Schema, err error) {
	known, err := migrationVersions(files)
	if err != nil {
		return s, err
	}
	s.Known, s.Pending = slices.Max(known), len(known)
	var tables, versions bool
	const text = `SELECT count(*) > 0, coalesce(bool_or(relname = 'goose_db_version'), false) FROM pg_class
		WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'p')`
	if err := conn.QueryRow(ctx, text, schema).Scan(&tables, &versions); err != nil {
		return s, err
	}
	switch {
	case tables && !versions:
		return s, errForeignSchema
	case !tables:
		return s, nil
	}
	err = conn.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&s.Version)
	s.Pending = len(slices.DeleteFunc(known, func(version int64) bool { return version <= s.Version }))
	if err == nil && s.Newer() {
		err = conn.QueryRow(ctx, `SELECT oldest FROM schema_compatibility`).Scan(&s.Oldest)
	}
	return s, err
}

// Migrate applies the migrations that the database lacks. Of several processes that call it at the same time, one migrates
// and the others wait. If it lacks any, the role must own the schema, or be allowed to create it. A newer schema is left as
// it is: the error is a NewerError unless this program may work on it.
func (db *DB) Migrate(ctx context.Context) (Schema, error) {
	files, err := migrationFiles()
	if err != nil {
		return Schema{}, err
	}
	return db.migrate(ctx, files)
}

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
	return s, s.check()
}

// applyRetrying applies the migrations that the database lacks, and tries again if another transaction holds a lock.
func (db *DB) applyRetrying(ctx context.Context, files fs.FS) error {
	for try := 1; ; try++ {
		err := db.apply(ctx, files)
		if err == nil || !isLockFailure(err) {
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
			return fmt.Errorf("migrate database: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// isLockFailure reports whether a statement has waited too long for a lock, or was chosen to end a deadlock.
func isLockFailure(err error) bool { return Code(err) == "55P03" || Code(err) == "40P01" }

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
	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files, goose.WithLogger(goose.NopLogger()),
		goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}
