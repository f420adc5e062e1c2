// Package databasetest gives tests a migrated database: a SQLite file, or a database of a PostgreSQL server of their own if the
// environment has BASEGATE_TEST_ENGINE=postgres. It is imported by tests only.
package databasetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/postgrestest"
)

// Main runs the tests of a package and then stops the server. The TestMain of a package that calls Settings must run it.
type Main = postgrestest.Main

// Postgres reports whether tests run on PostgreSQL.
func Postgres() bool { return os.Getenv("BASEGATE_TEST_ENGINE") == "postgres" }

// created holds the names of the databases that exist, by the paths of their tests. template is an empty one with all
// tables, of which they are copies.
var created struct {
	sync.Mutex
	template string
	names    map[string]string
}

// Settings returns those of the database of a test that has a path. The same path is the same database on either engine.
// On PostgreSQL it is dropped at the end of the test that has first asked for it.
func Settings(tb testing.TB, path string) database.Settings {
	tb.Helper()
	if !Postgres() {
		return SQLite(tb, path)
	}
	return PostgresSettings(tb, path)
}

// SQLite returns the settings of a SQLite database at path, whichever engine is selected. A file that does not exist is
// created with all tables. Commits are not flushed: a test of what survives a power failure uses settings of its own.
func SQLite(tb testing.TB, path string) database.Settings {
	tb.Helper()
	Create(tb, path)
	return database.Settings{Path: path, Flush: time.Hour}
}

// Create creates a SQLite database with all tables at path, unless there is a file.
func Create(tb testing.TB, path string) {
	tb.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	template.Do(func() { template.content, template.err = migrate(context.WithoutCancel(tb.Context())) }) // for other tests too
	err := template.err
	if err == nil {
		err = os.WriteFile(path, template.content, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// template is the content of an empty database with all tables: migrating takes longer than most tests.
var template struct {
	sync.Once
	content []byte
	err     error
}

func migrate(ctx context.Context) ([]byte, error) {
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "migrated.db")
	db, err := database.Open(ctx, database.Settings{Path: path, Flush: time.Hour}, zap.NewNop())
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// PostgresSettings is Settings for a test of what only PostgreSQL has, whichever engine is selected.
func PostgresSettings(tb testing.TB, path string) database.Settings {
	tb.Helper()
	server := postgrestest.Shared(tb)
	created.Lock()
	defer created.Unlock()
	if created.names == nil {
		created.names = map[string]string{}
		created.template = createTemplate(tb, server)
	}
	name := created.names[path]
	if name == "" {
		name = server.Create(tb, created.template)
		created.names[path] = name
		tb.Cleanup(func() {
			created.Lock()
			defer created.Unlock()
			delete(created.names, path)
			server.Exec(tb, "postgres", "DROP DATABASE "+name+" WITH (FORCE)")
		})
	}
	return database.Settings{URL: server.URL(name)}
}

func createTemplate(tb testing.TB, server *postgrestest.Server) (name string) {
	tb.Helper()
	name = server.Create(tb, "")
	db, err := database.Open(tb.Context(), database.Settings{URL: server.URL(name)}, zap.NewNop())
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	if postgrestest.Newer() {
		server.Expand(tb, name)
	}
	return name
}

// CreatePartitions creates what PostgreSQL needs for rows of the ledger in the months from one time to another.
func CreatePartitions(tb testing.TB, db *database.DB, from, to time.Time) {
	tb.Helper()
	if db.Postgres() == nil {
		return
	}
	for at := from; !at.After(to); at = at.AddDate(0, 1, 0) {
		err := db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(tb.Context(), `SELECT ledger_partition_v1($1)`, at.UnixMicro())
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// SkipPostgres skips a test of what only SQLite has.
func SkipPostgres(tb testing.TB, reason string) {
	tb.Helper()
	if Postgres() {
		tb.Skip("on PostgreSQL: " + reason)
	}
}
