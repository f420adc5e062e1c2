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
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("find migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, writer, files,
		goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true),
		goose.WithAllowOutofOrder(true)) // branches may merge in another order than that of their migrations
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	if current > newest {
		return fmt.Errorf("%w: its version is %d, this program knows up to %d", ErrNewer, current, newest)
	}
	if current > 0 && current < newest {
		log.Info("the database is being migrated", zap.Int64("from", current), zap.Int64("to", newest))
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}
