package cli_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"basegate/cli"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// copyDatabase runs the command in this process.
func copyDatabase(from, to string) (code int, stderr string) {
	var out bytes.Buffer
	code = cli.Run(context.Background(), []string{"database", "copy", "--from", from, "--to", to}, &out, &out)
	return code, out.String()
}

func TestCopyThatWasKilledContinues(t *testing.T) {
	from := filepath.Join(filepath.Dir(newLedger(t, 60_000)), "basegate.db")
	server := postgrestest.Start(t)
	url := server.URL(server.Create(t, ""))
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	killed := 0
	for ; killed < 3; killed++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "database", "copy", "--from", from, "--to", url)
		cmd.Args[0] = "basegate"
		before := copied(t, conn)
		must(t, cmd.Start())
		poll.Until(t, "rows are copied", func() bool { return copied(t, conn) > before })
		must(t, cmd.Process.Kill())
		if cmd.Wait() == nil {
			break
		}
	}
	if rows := copied(t, conn); killed < 3 || rows == 0 || rows >= 60_000 {
		t.Fatalf("killed %d times, with %d rows copied: want an unfinished copy", killed, rows)
	}
	code, stderr := copyDatabase(from, url)
	if code != 0 || !strings.Contains(stderr, "continuing a copy that was interrupted") || !strings.Contains(stderr, "and verified: 60000 requests") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	back := filepath.Join(t.TempDir(), "back.db")
	if code, stderr := copyDatabase(url, back); code != 0 || !strings.Contains(stderr, "and verified: 60000 requests") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, stderr := copyDatabase(from, url); code != 1 || !strings.Contains(stderr, "the target is not empty") {
		t.Errorf("a second copy: exit code %d: %s", code, stderr)
	}
}

// copied returns the requests that an unfinished copy has.
func copied(t *testing.T, conn *pgx.Conn) (rows int64) {
	t.Helper()
	var exists bool
	must(t, conn.QueryRow(t.Context(), `SELECT to_regclass('basegate.database_copy') IS NOT NULL`).Scan(&exists))
	if exists {
		must(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM basegate.requests`).Scan(&rows))
	}
	return rows
}
