package database_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/zap"
	logobserver "go.uber.org/zap/zaptest/observer"

	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// postgresSettings returns those of a new database on PostgreSQL, without which it skips the test.
func postgresSettings(t *testing.T) database.Settings {
	t.Helper()
	if !databasetest.Postgres() {
		t.Skip("of PostgreSQL only: make test-postgres runs it")
	}
	return databasetest.Settings(t, filepath.Join(t.TempDir(), "base.db"))
}

// connect returns a connection that is not the DB's.
func connect(t *testing.T, s database.Settings) *sql.DB {
	t.Helper()
	pool, err := sql.Open("pgx", s.URL)
	must(t, err)
	t.Cleanup(func() { pool.Close() })
	return pool
}

// terminate ends all connections to the database but the one it uses, as a restart of the server does.
func terminate(t *testing.T, s database.Settings) {
	t.Helper()
	_, err := connect(t, s).ExecContext(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	must(t, err)
}

func TestWritesOfTwoGatewaysSeeEachOther(t *testing.T) {
	s := postgresSettings(t)
	one := openNotes(t, s)
	two := openWith(t, s, zap.NewNop())
	must(t, one.WriteGrouped(t.Context(), execute("INSERT INTO notes (id, text) VALUES (0, '')")))
	const writes = 100
	addOne := func(tx database.Tx) error {
		var length int
		if err := tx.QueryRowContext(t.Context(), "SELECT length(text) FROM notes WHERE id = 0").Scan(&length); err != nil {
			return err
		}
		_, err := tx.ExecContext(t.Context(), "UPDATE notes SET text = $1 WHERE id = 0", strings.Repeat("x", length+1))
		return err
	}
	var all sync.WaitGroup
	for _, db := range []*database.DB{one, two} {
		for range 4 {
			all.Go(func() {
				for range writes / 4 {
					if err := db.WriteGrouped(t.Context(), addOne); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if n := count(t, one, "length(text) = 200"); n != 1 {
		t.Error("writes that read before were lost")
	}
}

func TestWriteWhoseConnectionIsLostFailsAsUnavailable(t *testing.T) {
	s := postgresSettings(t)
	db := openNotes(t, s)
	before := db.Submit(func(tx database.Tx) error {
		if err := note(1)(tx); err != nil {
			return err
		}
		terminate(t, s)
		return note(2)(tx)
	})
	if err := before.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("got error %v, want ErrUnavailable", err)
	}
	if err := db.Ping(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("Ping after a failed write: got error %v, want ErrUnavailable", err)
	}
	poll.Until(t, "the database can be written again", func() bool { return db.Ping(t.Context()) == nil })
	must(t, db.WriteGrouped(t.Context(), note(3)))
	if n := count(t, db, "true"); n != 1 {
		t.Errorf("%d notes, want the one that was written after the connection was lost", n)
	}
}

// A gateway that does not go on must not keep the others from writing.
func TestStoppedTransactionIsEndedByTheServer(t *testing.T) {
	s := postgresSettings(t)
	stopped, db := openNotes(t, s), openWith(t, s, zap.NewNop())
	resume := make(chan struct{})
	holding := make(chan struct{})
	held := stopped.Submit(func(tx database.Tx) error {
		err := note(1)(tx)
		close(holding)
		<-resume
		return err
	})
	<-holding
	poll.Until(t, "another gateway writes", func() bool { return db.WriteGrouped(t.Context(), note(2)) == nil })
	close(resume)
	if err := held.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("the stopped write: got error %v, want ErrUnavailable", err)
	}
	if n := count(t, db, "id = 1"); n != 0 {
		t.Error("the stopped write was committed")
	}
}

func TestConcurrentOpensOfANewPostgresDatabaseMigrateItOnce(t *testing.T) {
	s := postgresSettings(t)
	_, err := connect(t, s).ExecContext(t.Context(), "DROP SCHEMA basegate CASCADE")
	must(t, err)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			db, err := database.Open(t.Context(), s, zap.NewNop())
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
	must(t, openWith(t, s, zap.NewNop()).Ping(t.Context()))
}

func TestNewerPostgresDatabaseIsRefused(t *testing.T) {
	s := postgresSettings(t)
	_, err := connect(t, s).ExecContext(t.Context(), `INSERT INTO basegate.schema_migrations (version_id, is_applied) VALUES (9999, true);
		UPDATE basegate.schema_compatibility SET oldest = 9998`)
	must(t, err)
	for _, s.SchemaCurrent = range []bool{false, true} {
		_, err := database.Open(t.Context(), s, zap.NewNop())
		if !errors.Is(err, database.ErrNewer) || !strings.Contains(err.Error(), "version 9999, which needs a program that knows version 9998") {
			t.Errorf("SchemaCurrent %v: got error %v, want ErrNewer with both versions", s.SchemaCurrent, err)
		}
	}
}

func TestNewerPostgresDatabaseThatOnlyHasMoreIsServed(t *testing.T) {
	s := postgresSettings(t)
	_, err := connect(t, s).ExecContext(t.Context(), "INSERT INTO basegate.schema_migrations (version_id, is_applied) VALUES (9999, true)")
	must(t, err)
	for _, s.SchemaCurrent = range []bool{false, true} {
		core, logged := logobserver.New(zap.WarnLevel)
		must(t, openWith(t, s, zap.New(core)).Ping(t.Context()))
		entries := logged.FilterMessageSnippet("the schema is newer than this program").All()
		if len(entries) != 1 || entries[0].ContextMap()["schema"] != int64(9999) || entries[0].ContextMap()["known"] == nil {
			t.Errorf("SchemaCurrent %v: got %v, want a warning with both versions", s.SchemaCurrent, logged.All())
		}
	}
}

func TestErrorsOfOpenDoNotShowThePassword(t *testing.T) {
	s := postgresSettings(t)
	address, err := url.Parse(s.URL)
	must(t, err)
	for name, wrong := range map[string]func(*url.URL){
		"no such database": func(u *url.URL) { u.Path = "/missing" },
		"no such role":     func(u *url.URL) { u.User = url.UserPassword("nobody", "hunter2") },
		"no server":        func(u *url.URL) { u.RawQuery = "host=/nowhere" },
		"malformed":        func(u *url.URL) { u.RawQuery = "sslmode=perhaps" },
	} {
		u := *address
		u.User = url.UserPassword("postgres", "hunter2")
		wrong(&u)
		_, err := database.Open(t.Context(), database.Settings{URL: u.String()}, zap.NewNop())
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got error %v, want one without the password", name, err)
		}
	}
}

// A snapshot that is held makes each update of the ledger's counters slower. Within a report, a session holds that of its
// latest query until the next one.
func TestReportHoldsNoSnapshotAfterItsEnd(t *testing.T) {
	s := postgresSettings(t)
	db, observer := openNotes(t, s), connect(t, s)
	var pid, n int
	must(t, db.Report(t.Context(), "a", time.Minute, func(ctx context.Context, from database.Reader) error {
		for id := range 2 {
			must(t, from.QueryRowContext(ctx, "SELECT pg_backend_pid(), count(*) FROM notes").Scan(&pid, &n))
			if n != id {
				t.Errorf("got %d notes, want %d: each query sees what is committed", n, id)
			}
			must(t, db.WriteGrouped(t.Context(), note(id)))
		}
		return nil
	}))
	const held = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
	must(t, observer.QueryRowContext(t.Context(), held, pid).Scan(&n))
	if n != 0 {
		t.Error("the session holds a snapshot after the report has ended")
	}
}

func TestReadsEndWhileTheServerHangs(t *testing.T) {
	t.Parallel() // it waits
	s := postgresSettings(t)
	direct, err := url.Parse(s.URL)
	must(t, err)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	s.URL = proxy.URL(strings.TrimPrefix(direct.Path, "/"))
	db := openNotes(t, s)
	proxy.Pause()
	t.Cleanup(proxy.Resume) // before the database is closed
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	scan := func(row database.Scanner) (id int, err error) { return id, row.Scan(&id) }
	const text = "SELECT id FROM notes"
	ends := func(what string, err error) { // a new connection has a limit of its own
		if err == nil || errors.Is(err, sql.ErrNoRows) || ctx.Err() != nil {
			t.Errorf("%s: got error %v, want one of a server that does not respond", what, err)
		}
	}
	var reads sync.WaitGroup
	for range 20 { // more than the pool has connections
		reads.Go(func() {
			_, err := database.List(ctx, db.Read(), scan, text)
			ends("rows", err)
		})
		reads.Go(func() {
			_, err := database.One(ctx, db.Read(), scan, text)
			ends("a row", err)
		})
	}
	reads.Wait()
	proxy.Resume()
	if _, err := database.One(ctx, db.Read(), scan, text); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("when the server continues: got error %v, want ErrNoRows", err)
	}
}
