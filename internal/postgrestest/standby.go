package postgrestest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"basegate/internal/poll"
)

// Replica starts a streaming standby of the server, which is stopped at the end of the test.
func (s *Server) Replica(tb testing.TB) *Server {
	tb.Helper()
	r := &Server{folder: makeFolder(tb), bin: s.bin, options: s.options, port: s.port}
	tb.Cleanup(r.remove)
	backup := s.command(tb, "pg_basebackup", "-d", s.URL("postgres"), "-D", r.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	backup.Dir = r.folder
	if output, err := backup.CombinedOutput(); err != nil {
		tb.Fatalf("pg_basebackup: %v\n%s", err, output)
	}
	r.Run(tb)
	return r
}

// Promote makes a standby of primary a primary, after it has applied all commits.
func (s *Server) Promote(tb testing.TB, primary *Server) {
	tb.Helper()
	end := primary.value(tb, "SELECT pg_current_wal_flush_lsn()::text")
	poll.Until(tb, "the standby has applied all commits", func() bool {
		return s.value(tb, "SELECT (pg_last_wal_replay_lsn() >= '"+end+"')::text") == "true"
	})
	s.Exec(tb, "postgres", "SELECT pg_promote()")
}

// Demote restarts the server as a standby, which closes all connections.
func (s *Server) Demote(tb testing.TB) {
	tb.Helper()
	s.Stop(tb)
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // it is empty
		tb.Fatal(err)
	}
	s.Run(tb)
}

// Fence makes the server refuse writes, and leaves its connections open.
func (s *Server) Fence(tb testing.TB) {
	tb.Helper()
	s.Exec(tb, "postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
	s.Exec(tb, "postgres", "SELECT pg_reload_conf()")
	poll.Until(tb, "the server refuses writes", func() bool { return s.value(tb, "SHOW default_transaction_read_only") == "on" })
}

// value returns the only value of a query.
func (s *Server) value(tb testing.TB, query string) (value string) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context()) // it may be called by a clean-up
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := conn.QueryRow(ctx, query).Scan(&value); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return value
}
