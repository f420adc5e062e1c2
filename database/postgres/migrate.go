package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationStatementTimeout limits one statement of a migration. Waits for locks keep the short limit, so that a migration
// never blocks the gateways that serve; the caller tries again.
const migrationStatementTimeout = 10 * time.Minute

// NewerError is returned by Migrate if the schema has migrations that this program does not know.
type NewerError struct {
	Schema, Known int64 // versions
}

// Error tells the versions.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the schema has version %d, this program knows up to %d", e.Schema, e.Known)
}

// OlderError is returned by CheckSchema if the database lacks migrations that this program needs.
type OlderError struct {
	Schema, Known int64 // versions; Schema is 0 if there is no schema
}

// Error tells the versions.
func (e *OlderError) Error() string {
	return fmt.Sprintf("the schema has version %d, this program needs %d", e.Schema, e.Known)
}

// CheckSchema returns an OlderError or a NewerError unless the database has exactly the migrations that this program knows.
// It changes nothing, so a role that may not migrate can call it.
func (db *DB) CheckSchema(ctx context.Context) error {
	known, err := newestMigration()
	if err != nil {
		return err
	}
	var exists bool
	if err := db.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, schema+".goose_db_version").Scan(&exists); err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	if !exists {
		return &OlderError{0, known}
	}
	var found int64
	if err := db.pool.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&found); err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	switch {
	case found < known:
		return &OlderError{found, known}
	case found > known:
		return &NewerError{found, known}
	}
	return nil
}

// newestMigration returns the version of the last migration of this program.
func newestMigration() (newest int64, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return 0, fmt.Errorf("find migrations: %w", err)
	}
	for _, file := range files {
		version, err := goose.NumericComponent(file)
		if err != nil {
			return 0, fmt.Errorf("find migrations: %w", err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}

// Migrate applies the migrations that the database lacks, and returns the schema's version. Of several processes that call
// it at the same time, one migrates and the others wait. The role must own the schema, or be allowed to create it.
func (db *DB) Migrate(ctx context.Context) (version int64, err error) {
	config := db.config.Copy()
	config.RuntimeParams["statement_timeout"] = fmt.Sprint(migrationStatementTimeout.Milliseconds())
	handle := stdlib.OpenDB(*config)
	defer func() { _ = handle.Close() }()
	if err := db.refuseForeignSchema(ctx); err != nil {
		return 0, err
	}
	if _, err := handle.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize()); err != nil {
		return 0, fmt.Errorf("create schema: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return 0, fmt.Errorf("find migrations: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return 0, fmt.Errorf("lock migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files, goose.WithLogger(goose.NopLogger()),
		goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(locker))
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the database's version: %w", err)
	}
	if current > newest {
		return 0, &NewerError{current, newest}
	}
	if _, err := provider.Up(ctx); err != nil {
		return 0, fmt.Errorf("migrate database: %w", err)
	}
	if current < newest { // for what the migrations have created
		if _, err := handle.ExecContext(ctx, "SELECT ledger_grants()"); err != nil {
			return 0, fmt.Errorf("grant what the roles need: %w", err)
		}
	}
	if version, err = provider.GetDBVersion(ctx); err != nil {
		return 0, fmt.Errorf("read the database's version: %w", err)
	}
	return version, nil
}

// refuseForeignSchema returns an error if the schema has tables, and none of migrations.
func (db *DB) refuseForeignSchema(ctx context.Context) error {
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, foreign, err := schemaVersion(ctx, conn)
	switch {
	case err != nil:
		return fmt.Errorf("read the database's version: %w", err)
	case foreign:
		return errForeignSchema
	}
	return nil
}
