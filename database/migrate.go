package database

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"basegate/database/postgres"
	"basegate/internal/wait"
)

//go:embed migrations/*.sql
var embedded embed.FS

var migrations, _ = fs.Sub(embedded, "migrations") // the path is valid

// Retries of migrations that another process applies at the same time.
const (
	migrationTries = 20
	migrationPause = 50 * time.Millisecond
)

// Schema is the version of a database's schema.
type Schema = postgres.Schema

// migrate applies the migrations that the database lacks. Each migration is one transaction, so if two processes start
// at the same time, one of them fails on a table that exists already, rolls back, and has nothing left to do when it
// retries.
func migrate(ctx context.Context, writer *sql.DB, log *zap.Logger) error {
	for try := 1; ; try++ {
		s, err := readSchema(ctx, writer)
		switch {
		case err != nil:
			return err
		case s.Newer():
			return s.Check()
		case s.Pending() == 0:
			return nil
		case s.Version > 0 && try == 1:
			log.Info("the database is being migrated", zap.Int64("from", s.Version), zap.Int64("to", s.Known))
		}
		err = postgres.ApplyMigrations(ctx, goose.DialectSQLite3, writer, migrations)
		if err == nil || try == migrationTries {
			return err
		}
		if !wait.For(ctx, migrationPause) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Schema reads the version of a SQLite database's schema. The error is ErrNewer if it is newer than this program,
// and ErrUnknownContent if basegate has not made it.
func (db *DB) Schema(ctx context.Context) (Schema, error) {
	s, err := readSchema(ctx, db.Read())
	if err == nil && s.Newer() {
		err = s.Check()
	}
	return s, err
}

func readSchema(ctx context.Context, db *sql.DB) (s Schema, err error) {
	s.Known = postgres.KnownVersion(migrations)
	var tables, versions int
	const text = `SELECT count(*), count(*) FILTER (WHERE name = $1) FROM sqlite_schema WHERE type = 'table'`
	if err := db.QueryRowContext(ctx, text, postgres.VersionTable).Scan(&tables, &versions); err != nil {
		return s, fmt.Errorf("read schema: %w", damaged(err))
	}
	switch {
	case tables == 0:
		return s, nil
	case versions == 0:
		return s, ErrUnknownContent
	}
	if err := db.QueryRowContext(ctx, postgres.SelectVersion).Scan(&s.Version); err != nil {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	if s.Newer() {
		s.Oldest = s.Version // SQLite's is not upgraded under gateways that serve, so migrations need not spare older ones
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
