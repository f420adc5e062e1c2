package postgrestest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"basegate/internal/poll"
)

// StartPooler starts PgBouncer before a database of the server, until the end of the test, with pool_mode and further lines of
// its configuration. It returns the address of the database through it.
func (s *Server) StartPooler(tb testing.TB, database, mode, more string) (address string) {
	tb.Helper()
	const program = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal("PgBouncer is not installed: apt-get install pgbouncer")
		}
		tb.Skip("PgBouncer is not installed: apt-get install pgbouncer")
	}
	folder := makeFolder(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(folder) })
	config := filepath.Join(folder, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
%s = host=%s user=postgres
[pgbouncer]
unix_socket_dir = %s
listen_port = 6432
auth_type = any
pool_mode = %s
%s
`, database, s.folder, folder, mode, more)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil { //nolint:gosec // it holds no secret
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), program, config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged(tb)}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	poll.Until(tb, "PgBouncer listens", func() bool {
		_, err := os.Stat(filepath.Join(folder, ".s.PGSQL.6432"))
		return err == nil
	})
	return "postgres://postgres@/" + database + "?" + url.Values{"host": {folder}, "port": {"6432"}}.Encode()
}
