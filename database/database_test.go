package database_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/database"
	"basegate/internal/databasetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childPath) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(databasetest.Main{M: m})
}

func open(tb testing.TB, path string) *database.DB {
	tb.Helper()
	return openWith(tb, database.Settings{Path: path}, zap.NewNop())
}

func openWith(tb testing.TB, s database.Settings, log *zap.Logger) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), s, log)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// openNotes opens a new database with a table "notes". Without a path it is on the engine that the tests run on.
func openNotes(tb testing.TB, s database.Settings) *database.DB {
	tb.Helper()
	if s.Path == "" && s.URL == "" {
		engine := databasetest.Settings(tb, filepath.Join(tb.TempDir(), "base.db"))
		s.Path, s.URL = engine.Path, engine.URL
	}
	db := openWith(tb, s, zap.NewNop())
	createNotes(tb, db)
	return db
}

func createNotes(tb testing.TB, db *database.DB) {
	tb.Helper()
	must(tb, db.WriteExclusive(tb.Context(), execute("CREATE TABLE notes (id BIGINT PRIMARY KEY, text TEXT NOT NULL)")))
}

func execute(text string, args ...any) func(database.Tx) error {
	return func(tx database.Tx) error { return executeStatement(text, args...)(tx) }
}

// executeStatement is execute for SubmitStatement.
func executeStatement(text string, args ...any) func(database.Execer) error {
	return func(tx database.Execer) error {
		_, err := tx.ExecContext(context.Background(), text, args...)
		return err
	}
}

func note(id int) func(database.Tx) error {
	return execute("INSERT INTO notes (text, id) VALUES ($2, $1)", id, "note")
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func count(tb testing.TB, db *database.DB, where string) int {
	tb.Helper()
	var n int
	must(tb, db.Read().QueryRowContext(tb.Context(), "SELECT count(*) FROM notes WHERE "+where).Scan(&n))
	return n
}

func TestOpenCreatesFilesThatOnlyTheOwnerMayRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "with spaces, 100% ? & #.db")
	openNotes(t, database.Settings{Path: path})
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	must(t, err)
	for _, file := range files {
		info, err := os.Stat(file)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", file, info.Mode())
		}
		if !strings.HasPrefix(file, path) {
			t.Errorf("%s was created, want only %s and its -wal and -shm files", file, path)
		}
	}
}

func TestOpenSetsThePragmasForDurability(t *testing.T) {
	db := openNotes(t, database.Settings{Path: filepath.Join(t.TempDir(), "base.db")})
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "foreign_keys": "1"} {
			var got string
			if err := tx.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
				return err
			}
			if got != want {
				t.Errorf("%s is %s, want %s", pragma, got, want)
			}
		}
		return nil
	}))
}

func TestOpenExplainsWhatIsWrongWithThePath(t *testing.T) {
	folder := t.TempDir()
	garbage := filepath.Join(folder, "garbage")
	must(t, os.WriteFile(garbage, []byte(strings.Repeat("this is not a database\n", 100)), 0o600))
	for path, want := range map[string]string{
		"":                                   "the path of the database is empty",
		folder:                               folder + " is a directory",
		filepath.Join(folder, "none", "b"):   "no such file or directory",
		filepath.Join(garbage, "b"):          "not a directory",
		garbage:                              "file is not a database",
		filepath.Join(folder, "\x00", "bad"): "invalid argument",
	} {
		db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
		if err == nil {
			_ = db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("path %q: got error %v, want one with %q", path, err, want)
		}
	}
}

func TestReadCannotWrite(t *testing.T) {
	db := openNotes(t, database.Settings{})
	if _, err := db.Read().ExecContext(t.Context(), "INSERT INTO notes (id, text) VALUES (1, 'x')"); err == nil {
		t.Error("a write through Read() succeeded")
	}
}

func TestNumberedParametersMayStandInAnyOrder(t *testing.T) {
	db := openNotes(t, database.Settings{})
	const text = `SELECT $2, '$1', $1, "text" /* $3 */ FROM (SELECT 'it''s $1' AS "text") AS one -- $4`
	var second, literal, first, column string
	must(t, db.Read().QueryRowContext(t.Context(), text, "one", "two").Scan(&second, &literal, &first, &column))
	if first != "one" || second != "two" || literal != "$1" || column != "it's $1" {
		t.Errorf("got $1 = %q, $2 = %q, literal %q, column %q", first, second, literal, column)
	}
	prepared, err := db.Read().PrepareContext(t.Context(), "SELECT $2, $1")
	must(t, err)
	defer prepared.Close()
	must(t, prepared.QueryRowContext(t.Context(), "one", "two").Scan(&second, &first))
	if first != "one" || second != "two" {
		t.Errorf("prepared statement: got $1 = %q, $2 = %q", first, second)
	}
}

func TestOpenRefusesANewerDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	must(t, db.WriteExclusive(t.Context(), execute("INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, 1)")))
	must(t, db.Close())
	_, err = database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	if !errors.Is(err, database.ErrNewer) || !strings.Contains(err.Error(), "9999") {
		t.Errorf("got error %v, want ErrNewer with version 9999", err)
	}
}

func TestConcurrentOpensOfANewDatabaseSucceed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			db, err := database.Open(t.Context(), database.Settings{Path: path, LockWait: 10 * time.Second}, zap.NewNop())
			if err != nil {
				t.Error(err)
				return
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var revision int
	must(t, open(t, path).Read().QueryRowContext(t.Context(), "SELECT revision FROM keys_revision").Scan(&revision))
}

func TestTwoOpenDatabasesSeeEachOthersWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	one := openNotes(t, database.Settings{Path: path})
	two := open(t, path)
	for id := range 20 {
		must(t, []*database.DB{one, two}[id%2].WriteGrouped(t.Context(), note(id)))
	}
	if a, b := count(t, one, "true"), count(t, two, "true"); a != 20 || b != 20 {
		t.Errorf("the two databases count %d and %d notes, want 20", a, b)
	}
}

func TestPingFailsIfTheDatabaseIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	must(t, db.Ping(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Ping(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: got error %v, want context.Canceled", err)
	}
	must(t, db.Close())
	if db.Ping(t.Context()) == nil {
		t.Error("Ping of a closed database succeeded")
	}
}

func observedLogger() (*zap.Logger, *observer.ObservedLogs) {
	core, logged := observer.New(zap.InfoLevel)
	return zap.New(core), logged
}

// On a loaded machine, opening a new file takes longer than a process waits for another one's lock.
func TestOpeningMayTakeLongerThanTheWaitForALock(t *testing.T) {
	t.Parallel()
	openWith(t, database.Settings{Path: filepath.Join(t.TempDir(), "test.db"), LockWait: time.Nanosecond}, zap.NewNop())
}
