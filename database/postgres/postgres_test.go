package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"basegate/database/postgres"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Main{M: m}) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func open(tb testing.TB, s postgres.Settings) *postgres.DB {
	tb.Helper()
	db, err := postgres.Open(tb.Context(), s)
	must(tb, err)
	tb.Cleanup(db.Close)
	return db
}

func newDatabase(tb testing.TB) (server *postgrestest.Server, name string) {
	tb.Helper()
	server = postgrestest.Shared(tb)
	return server, server.Create(tb, "")
}

func TestProcessesThatMigrateAtTheSameTimeAgree(t *testing.T) {
	server, name := newDatabase(t)
	versions := make([]int64, 3)
	var group sync.WaitGroup
	for i := range versions {
		db := open(t, postgres.Settings{URL: server.URL(name)})
		group.Go(func() {
			s, err := db.Migrate(t.Context())
			if err != nil {
				t.Error(err)
			}
			versions[i] = s.Version
		})
	}
	group.Wait()
	if slices.Min(versions) != slices.Max(versions) || versions[0] == 0 {
		t.Errorf("got versions %v, want the same", versions)
	}
}

func TestURLInAnErrorDoesNotShowThePassword(t *testing.T) {
	_, err := postgres.Open(t.Context(), postgres.Settings{URL: "postgres://user:secret@host:port/db"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error without the password", err)
	}
}

// PGHOST or a parameter can send a connection elsewhere than the URL seems to say.
func TestServersOfOtherMachinesNeedVerifiedCertificates(t *testing.T) {
	t.Setenv("PGHOST", "192.0.2.1")
	for _, url := range []string{
		"postgres:///base", "postgres://u@192.0.2.1/base?sslmode=require", "postgres://u@localhost/base?host=192.0.2.1&sslmode=disable",
		"postgres://u@localhost,192.0.2.1/base?sslmode=prefer", "postgres://u@192.0.2.1/base?sslmode=verify-ca",
	} {
		if _, err := postgres.Open(t.Context(), postgres.Settings{URL: url}); !errors.Is(err, postgres.ErrUnverified) {
			t.Errorf("%s: got %v, want ErrUnverified", url, err)
		}
	}
}

func TestDisconnectEndsStatementsThatWait(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name) + "&statement_timeout=0"})
	handle := db.OpenPool(1, nil)
	defer handle.Close()
	conn, err := db.Connect(t.Context())
	must(t, err)
	pooled, err := db.Pool().Acquire(t.Context())
	must(t, err)
	defer pooled.Release()
	_, err = pooled.Exec(t.Context(), "SET statement_timeout = 0") // the pool has a limit of its own
	must(t, err)
	const statement = "SELECT pg_sleep(3600)"
	ended := make(chan error)
	go func() { _, err := conn.Exec(t.Context(), statement); ended <- err }()
	go func() { _, err := pooled.Exec(t.Context(), statement); ended <- err }()
	go func() { _, err := handle.ExecContext(t.Context(), statement); ended <- err }()
	observer, err := open(t, postgres.Settings{URL: server.URL(name)}).Connect(t.Context())
	must(t, err)
	defer observer.Close(context.WithoutCancel(t.Context()))
	poll.Until(t, "all statements run", func() (all bool) {
		must(t, observer.QueryRow(t.Context(), `SELECT count(*) = 3 FROM pg_stat_activity WHERE datname = $1 AND wait_event = 'PgSleep'`, name).Scan(&all))
		return all
	})
	db.Disconnect()
	for range 3 {
		if err := <-ended; err == nil {
			t.Error("a statement has ended without an error")
		}
	}
	if conn, err := db.Connect(t.Context()); err == nil {
		conn.Close(t.Context())
		t.Error("a connection was made afterwards")
	}
}

func TestConnectionsHaveLimits(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	conn, err := db.Connect(t.Context())
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for setting, want := range map[string]string{
		"statement_timeout": "2s", "lock_timeout": "1s", "idle_in_transaction_session_timeout": "5s", "search_path": "basegate",
		"timezone": "UTC",
	} {
		var got string
		must(t, conn.QueryRow(t.Context(), `SELECT current_setting($1)`, setting).Scan(&got))
		if got != want {
			t.Errorf("%s: got %s, want %s", setting, got, want)
		}
	}
}

// A client that stops within a transaction would hold its locks, and keep dead rows from being removed.
func TestIdleTransactionIsEnded(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name), IdleInTx: 100 * time.Millisecond})
	conn, err := db.Connect(t.Context())
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	must(t, err)
	observer, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	defer observer.Close(context.WithoutCancel(t.Context()))
	poll.Until(t, "the server has ended the session", func() bool {
		var left int
		must(t, observer.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, conn.PgConn().PID()).Scan(&left))
		return left == 0
	})
	if _, err := conn.Exec(t.Context(), `SELECT 1`); !postgres.IsConnection(err) {
		t.Errorf("got %v, want a lost connection", err)
	}
}

func TestErrorsAreClassified(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	for _, c := range []struct {
		statement        string
		data, connection bool
	}{
		{`SELECT 1 / 0`, true, false},
		{`SELECT 'x'::bigint`, true, false},
		{`SELECT no_such_column`, false, false},
		{`SELECT pg_terminate_backend(pg_backend_pid())`, false, true},
	} {
		_, err := db.Pool().Exec(t.Context(), c.statement)
		if err == nil || postgres.IsData(err) != c.data || postgres.IsConnection(err) != c.connection {
			t.Errorf("%s: got %v, data %v, connection %v", c.statement, err, postgres.IsData(err), postgres.IsConnection(err))
		}
	}
}

// The role of the gateways calls the functions and reads; it cannot write a table or call an internal function.
func TestRuntimeRoleCannotWriteTables(t *testing.T) {
	server, name := newDatabase(t)
	server.Exec(t, name, `DO $$ BEGIN CREATE ROLE basegate_runtime LOGIN; CREATE ROLE basegate_reader LOGIN; END $$`)
	t.Cleanup(func() {
		server.Exec(t, name, `DROP OWNED BY basegate_runtime, basegate_reader; DROP ROLE basegate_runtime, basegate_reader`)
	})
	_, err := open(t, postgres.Settings{URL: server.URL(name)}).Migrate(t.Context())
	must(t, err)
	for _, c := range []struct {
		role, statement string
		allowed         bool
	}{
		{"basegate_runtime", `SELECT ledger_join_v1('gateway', 'test', 1)`, true},
		{"basegate_runtime", `SELECT ledger_write_v1(1, 1, 0, 1, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL)`, true},
		{"basegate_runtime", `SELECT ledger_partitions_v1(3)`, true},
		{"basegate_runtime", `SELECT * FROM requests`, true},
		{"basegate_runtime", `UPDATE owner SET month_in = 0`, false},
		{"basegate_runtime", `DELETE FROM requests`, false},
		{"basegate_runtime", `UPDATE schema_migrations SET is_applied = true`, false},
		{"basegate_runtime", `UPDATE schema_compatibility SET oldest = 1`, false},
		{"basegate_runtime", `SELECT oldest FROM schema_compatibility`, true},
		{"basegate_runtime", `INSERT INTO boots (model, backend, ended_at, took_us) VALUES ('m', 'b', 1, 1)`, true},
		{"basegate_runtime", `INSERT INTO model_windows (model, begins_at, ends_at) VALUES ('m', 1, 2)`, true},
		{"basegate_runtime", `INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('a', 'a', 'a', false, 'active', 1)`, true},
		{"basegate_reader", `INSERT INTO boots (model, backend, ended_at, took_us) VALUES ('m', 'b', 1, 1)`, false},
		{"basegate_runtime", `SELECT ledger_end(1)`, false},
		{"basegate_runtime", `SELECT ledger_grants()`, false},
		{"basegate_reader", `SELECT * FROM owner`, true},
		{"basegate_reader", `SELECT ledger_join_v1('gateway', 'test', 1)`, false},
	} {
		db, err := postgres.Open(t.Context(), postgres.Settings{URL: strings.Replace(server.URL(name), "postgres@", c.role+"@", 1)})
		must(t, err)
		_, err = db.Pool().Exec(t.Context(), c.statement)
		db.Close()
		if allowed := postgres.Code(err) != "42501"; allowed != c.allowed || allowed && err != nil {
			t.Errorf("%s: %s: got %v, want allowed %v", c.role, c.statement, err, c.allowed)
		}
	}
}
