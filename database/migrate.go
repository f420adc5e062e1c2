package database

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/pressly/goose/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Retries of migrations that another process applies at the same time.
const (
	migrationTries = 20
	migrationPause = 50 * time.Millisecond
)

// migrate applies the migrations that the database lacks. Each migration is one transaction, so if two processes start
// at the same time, one of them fails on a table that exists already, rolls back, and has nothing left to do when it
// retries.
func migrate(ctx context.Context, writer *sql.DB, log *zap.Logger) error {
	var err error
	for range migrationTries {
		if err = migrateOnce(ctx, writer, log); err == nil || errors.Is(err, ErrNewer) {
			return err
		}
		pause := time.NewTimer(migrationPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("migrate database: %w", errors.Join(context.Cause(ctx), err))
		}
	}
	return err
}

func migrateOnce(ctx context.Context, writer *sql.DB, log *zap.Logger) error {
	provider, err := newProvider(writer)
	if err != nil {
		return err
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	if current > newest {
		return newerError(current, newest)
	}
	if current > 0 && current < newest {
		log.Info("the database is being migrated", zap.Int64("from", current), zap.Int64("to", newest))
	}
	if pending, err := provider.HasPending(ctx); err != nil || !pending {
		return err
	}
	if err := repairSchema(ctx, writer); err != nil {
		return fmt.Errorf("repair schema: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}

// newProvider returns the migrations. Those that a database lacks are applied also if it has later ones: for some
// commits, main had migrations 8 and 9 without 7, and databases made then are upgraded too.
func newProvider(writer *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, writer, files, goose.WithLogger(goose.NopLogger()),
		goose.WithDisableGlobalRegistry(true), goose.WithAllowOutofOrder(true))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return provider, nil
}

// newestVersion returns the version of the last migration.
func newestVersion() (newest int64, err error) {
	versions, err := migrationVersions()
	if err != nil {
		return 0, err
	}
	return slices.Max(versions), nil
}

// migrationVersions returns the versions of the migrations.
func migrationVersions() (versions []int64, err error) {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	for _, f := range files {
		version, err := goose.NumericComponent(f.Name())
		if err != nil {
			return nil, fmt.Errorf("read version of migration: %w", err)
		}
		versions = append(versions, version)
	}
	return versions, nil
}

// Schema is the version of a SQLite database's schema.
type Schema struct {
	Version int64 // its last migration; 0 if there is no schema
	Known   int64 // the last migration that this program knows
	Pending int   // number of migrations that this program knows and the schema lacks
}

// Schema reads the version of a SQLite database's schema. The error is ErrNewer if it is newer than this program, and
// ErrUnknownContent if basegate has not made its tables.
func (db *DB) Schema(ctx context.Context) (s Schema, err error) {
	known, err := migrationVersions()
	if err != nil {
		return s, err
	}
	s.Known, s.Pending = slices.Max(known), len(known)
	reader := db.Read()
	var tables int
	if err := reader.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE type = 'table'").Scan(&tables); err != nil {
		return s, fmt.Errorf("read schema: %w", damaged(err))
	}
	if tables == 0 {
		return s, nil
	}
	versions, err := hasTable(ctx, reader, "goose_db_version")
	switch {
	case err != nil:
		return s, fmt.Errorf("read schema: %w", err)
	case !versions:
		return s, ErrUnknownContent
	}
	rows, err := reader.QueryContext(ctx, "SELECT version_id FROM goose_db_version WHERE is_applied")
	if err != nil {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		if err := rows.Scan(&version); err != nil {
			return s, fmt.Errorf("read schema version: %w", err)
		}
		s.Version = max(s.Version, version)
		known = slices.DeleteFunc(known, func(k int64) bool { return k == version })
	}
	if err := rows.Err(); err != nil {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	s.Pending = len(known)
	if s.Version > s.Known {
		return s, newerError(s.Version, s.Known)
	}
	return s, nil
}

// CheckAccess returns an error unless this process can write the SQLite database at path, or create it. It changes nothing.
func CheckAccess(path string) error {
	for _, p := range []string{path, filepath.Dir(path)} {
		err := unix.Access(p, unix.W_OK)
		if errors.Is(err, fs.ErrNotExist) && p == path {
			continue
		}
		if err != nil {
			return explainAccess(path, fmt.Errorf("write %s: %w", p, err))
		}
	}
	return nil
}

func newerError(version, newest int64) error {
	return fmt.Errorf("%w: its schema version is %d, this program knows up to %d; to go back to this program, restore a "+
		"backup made before the upgrade", ErrNewer, version, newest)
}
