package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/database/postgres"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// callTime limits one attempt to reach the new primary, as the calls of the ledger are limited.
const callTime = 5 * time.Second

// place returns what identifies a server for its clients: the folder of its data.
func place(s *postgrestest.Server) string { return filepath.Join(filepath.Dir(s.Socket()), "data") }

// atBoth returns the URL of a database that is at one of two addresses.
func atBoth(name string, first, second *postgrestest.Proxy, more string) string {
	return "postgres://postgres@" + first.Address() + "," + second.Address() + "/" + name + "?sslmode=disable" + more
}

// The old primary is fenced, so a write to it fails, but nothing closes connections to it: not those that read, listen or wait.
func TestConnectionsFollowThePrimary(t *testing.T) {
	for name, test := range map[string]struct {
		url  func(name string, first, second *postgrestest.Proxy) string
		end  func(*postgrestest.Server, testing.TB)
		move bool // the address follows the primary
	}{
		"an address moves from a read-only server": {
			url: func(name string, first, _ *postgrestest.Proxy) string { return first.URL(name) }, move: true,
			end: (*postgrestest.Server).Fence,
		},
		"an address moves from a server that has become a standby": {
			url: func(name string, first, _ *postgrestest.Proxy) string { return first.URL(name) }, move: true,
			end: (*postgrestest.Server).Demote,
		},
		"an address moves from a server that has frozen": {
			url: func(name string, first, _ *postgrestest.Proxy) string { return first.URL(name) }, move: true,
			end: (*postgrestest.Server).Pause,
		},
		"two hosts, the first is read-only": {
			url: func(name string, first, second *postgrestest.Proxy) string { return atBoth(name, first, second, "") },
			end: (*postgrestest.Server).Fence,
		},
		"two hosts, the first has become a standby": {
			url: func(name string, first, second *postgrestest.Proxy) string { return atBoth(name, first, second, "") },
			end: (*postgrestest.Server).Demote,
		},
		"two hosts, the first does not answer": {
			url: func(name string, first, second *postgrestest.Proxy) string { return atBoth(name, first, second, "") },
			end: (*postgrestest.Server).Pause,
		},
		"two hosts and target_session_attrs": {
			url: func(name string, first, second *postgrestest.Proxy) string {
				return atBoth(name, first, second, "&target_session_attrs=read-write")
			},
			end: (*postgrestest.Server).Demote,
		},
	} {
		t.Run(name, func(t *testing.T) {
			primary := postgrestest.Start(t)
			name := primary.Create(t, "")
			primary.Exec(t, name, "CREATE TABLE public.writes (n int)")
			standby := primary.Replica(t)
			first, second := postgrestest.NewProxy(t, primary), postgrestest.NewProxy(t, standby)
			db := open(t, postgres.Settings{URL: test.url(name, first, second)})
			reader := db.OpenPool(2, map[string]string{"default_transaction_read_only": "on"})
			defer reader.Close()
			writer := db.OpenPool(1, nil)
			defer writer.Close()
			must(t, writer.PingContext(t.Context()))
			must(t, reader.PingContext(t.Context()))
			listener, err := db.Connect(t.Context())
			must(t, err)
			_, err = listener.Exec(t.Context(), "LISTEN basegate")
			must(t, err)
			ended := make(chan error, 1)
			go func() { _, err := listener.WaitForNotification(t.Context()); ended <- err }()

			standby.Promote(t, primary)
			t.Cleanup(func() { primary.Resume(t) })
			test.end(primary, t)
			if test.move {
				first.Move(standby)
			}
			limited := func(operation func(context.Context) error) bool {
				ctx, cancel := context.WithTimeout(t.Context(), callTime)
				defer cancel()
				return operation(ctx) == nil
			}
			poll.Until(t, "a write reaches the new primary", func() bool {
				return limited(func(ctx context.Context) error {
					conn, err := db.Connect(ctx)
					if err != nil {
						return err
					}
					defer conn.Close(ctx)
					_, err = conn.Exec(ctx, "INSERT INTO public.writes VALUES (1)")
					return err
				})
			})
			if err := <-ended; err == nil {
				t.Error("the connection that listens to the old primary got a notification")
			}
			for what, read := range map[string]func(context.Context, *string) error{
				"the pool": func(ctx context.Context, to *string) error {
					return db.Pool().QueryRow(ctx, "SHOW data_directory").Scan(to)
				},
				"the readers": func(ctx context.Context, to *string) error {
					return reader.QueryRowContext(ctx, "SHOW data_directory").Scan(to)
				},
				"the writer": func(ctx context.Context, to *string) error {
					return writer.QueryRowContext(ctx, "SHOW data_directory").Scan(to)
				},
			} {
				var at string
				poll.Until(t, what+" work again", func() bool { return limited(func(ctx context.Context) error { return read(ctx, &at) }) })
				if at != place(standby) {
					t.Errorf("%s read from %s, want the new primary %s", what, at, place(standby))
				}
			}
		})
	}
}

// A write that fails on a server that has become read-only ends all connections, since others do not write.
func TestReadOnlyServerEndsAllConnections(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	server.Exec(t, name, "CREATE TABLE public.writes (n int)")
	db := open(t, postgres.Settings{URL: server.URL(name)})
	listener, err := db.Connect(t.Context())
	must(t, err)
	writer, err := db.Connect(t.Context())
	must(t, err)
	ended := make(chan error, 1)
	go func() { _, err := listener.WaitForNotification(t.Context()); ended <- err }()
	server.Fence(t)
	if _, err := writer.Exec(t.Context(), "INSERT INTO public.writes VALUES (1)"); postgres.Code(err) != "25006" || !postgres.IsConnection(err) {
		t.Errorf("got %v, want the refusal of a write, as the end of the connection", err)
	}
	if err := <-ended; err == nil || !writer.IsClosed() {
		t.Errorf("the connection that listens ended with %v, and the one that wrote is closed: %v", err, writer.IsClosed())
	}
	if _, err := db.Connect(t.Context()); !errors.Is(err, postgres.ErrReadOnly) {
		t.Errorf("got %v, want ErrReadOnly", err)
	}
	server.Exec(t, name, "ALTER SYSTEM RESET default_transaction_read_only")
	server.Exec(t, name, "SELECT pg_reload_conf()")
	poll.Until(t, "the server can be written again", func() bool {
		_, err := db.Pool().Exec(t.Context(), "INSERT INTO public.writes VALUES (1)")
		return err == nil
	})
}

// A session that does not write refuses a write by itself, which says nothing about the server.
func TestWriteInAReadOnlySessionEndsNoConnection(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	reader := db.OpenPool(1, map[string]string{"default_transaction_read_only": "on"})
	defer reader.Close()
	conn, err := db.Connect(t.Context())
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := reader.ExecContext(t.Context(), "CREATE TABLE public.writes (n int)"); postgres.Code(err) != "25006" {
		t.Errorf("got %v, want the refusal of a write", err)
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("another connection has ended: %v", err)
	}
}

func TestTheFirstMoveToAnotherServerIsReported(t *testing.T) {
	first, second := postgrestest.Start(t), postgrestest.Start(t)
	proxy := postgrestest.NewProxy(t, first)
	var moves atomic.Int64
	db := open(t, postgres.Settings{URL: proxy.URL("postgres"), Moved: func() { moves.Add(1) }})
	for i, to := range []*postgrestest.Server{first, second, first, second} {
		proxy.Move(to)
		conn, err := db.Connect(t.Context())
		must(t, err)
		must(t, conn.Close(t.Context()))
		if got, want := moves.Load(), int64(min(i, 1)); got != want {
			t.Fatalf("after %d moves, got %d calls, want %d", i, got, want)
		}
	}
}

func TestStandbyIsRefused(t *testing.T) {
	primary := postgrestest.Start(t)
	standby := primary.Replica(t)
	for _, attributes := range []string{"", "&target_session_attrs=any", "&target_session_attrs=primary", "&target_session_attrs=read-write", "&target_session_attrs=prefer-standby"} {
		db, err := postgres.Open(t.Context(), postgres.Settings{URL: standby.URL("postgres") + attributes})
		if err == nil {
			db.Close()
		}
		if !errors.Is(err, postgres.ErrStandby) {
			t.Errorf("%q: got error %v, want ErrStandby", attributes, err)
		}
		folders := url.QueryEscape(filepath.Dir(standby.Socket()) + "," + filepath.Dir(primary.Socket()))
		db = open(t, postgres.Settings{URL: "postgres://postgres@/postgres?port=5432&host=" + folders + attributes})
		for _, session := range []map[string]string{nil, {"default_transaction_read_only": "on"}} {
			pool := db.OpenPool(1, session)
			var at string
			if err := pool.QueryRowContext(t.Context(), "SHOW data_directory").Scan(&at); err != nil || at != place(primary) {
				t.Errorf("%q: a session with %v is at %s, error %v; want the primary %s", attributes, session, at, err, place(primary))
			}
			must(t, pool.Close())
		}
	}
}

// PgBouncer refuses most parameters of a startup message, or drops those that it is told to ignore.
func TestPoolerInSessionModeIsServed(t *testing.T) {
	server, name := newDatabase(t)
	for what, more := range poolers {
		t.Run(what, func(t *testing.T) {
			db := open(t, postgres.Settings{URL: server.StartPooler(t, name, "session", more)})
			pool := db.OpenPool(1, map[string]string{"default_transaction_read_only": "on", "jit": "off"})
			defer pool.Close()
			for setting, want := range map[string]string{
				"search_path": "basegate", "statement_timeout": "2s", "default_transaction_read_only": "on", "jit": "off", "application_name": "basegate",
			} {
				var got string
				must(t, pool.QueryRowContext(t.Context(), "SELECT current_setting($1)", setting).Scan(&got))
				if got != want {
					t.Errorf("%s is %s, want %s", setting, got, want)
				}
			}
			if _, err := db.Migrate(t.Context()); err != nil {
				t.Errorf("migrate through the pooler: %v", err)
			}
		})
	}
}

func TestPoolerInTransactionModeIsRefused(t *testing.T) {
	server, name := newDatabase(t)
	for what, more := range poolers {
		t.Run(what, func(t *testing.T) {
			if got := openError(t, server.StartPooler(t, name, "transaction", more)); !strings.Contains(got, postgres.ErrPooler.Error()) {
				t.Errorf("got %q, want %q", got, postgres.ErrPooler)
			}
		})
	}
}

// poolers are configurations of PgBouncer.
var poolers = map[string]string{
	"with its defaults":            "",
	"that takes servers in turn":   "server_round_robin = 1\nmin_pool_size = 4",
	"that ignores what it is sent": "ignore_startup_parameters = statement_timeout, lock_timeout, search_path, extra_float_digits",
}

func TestOptionsThatAPoolerRefusesAreNamed(t *testing.T) {
	server, name := newDatabase(t)
	got := openError(t, server.StartPooler(t, name, "session", "")+"&options="+url.QueryEscape("-c jit=off"))
	if !strings.Contains(got, "refuses the parameter options") {
		t.Errorf("got %q, want the parameter that the pooler refuses", got)
	}
}
