package database

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"go.uber.org/zap"
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
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return 0, fmt.Errorf("find migrations: %w", err)
	}
	for _, f := range files {
		version, err := goose.NumericComponent(f.Name())
		if err != nil {
			return 0, fmt.Errorf("read version of migration: %w", err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}

func newerError(version, newest int64) error {
	return fmt.Errorf("%w: its schema version is %d, this program knows up to %d; to go back to this program, restore a "+
		"backup made before the upgrade", ErrNewer, version, newest)
}
