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

func TestCopyThatWasKilledLeavesTheTargetEmpty(t *testing.T) {
	from := filepath.Join(filepath.Dir(newLedger(t, 60_000)), "basegate.db")
	server := postgrestest.Start(t)
	url := server.URL(server.Create(t, ""))
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	hold, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer hold.Close(context.WithoutCancel(t.Context()))
	_, err = hold.Exec(t.Context(), `CREATE TABLE public.held ()`)
	must(t, err)
	_, err = hold.Exec(t.Context(), `BEGIN; LOCK TABLE public.held IN ACCESS EXCLUSIVE MODE`)
	must(t, err) // the copy's ANALYZE, its last statement before the commit, waits for it
	cmd := exec.CommandContext(t.Context(), os.Args[0], "database", "copy", "--from", from, "--to", url)
	cmd.Args[0] = "basegate"
	must(t, cmd.Start())
	poll.Until(t, "requests are copied", func() (copying bool) {
		must(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0
			AND relid = to_regclass('basegate.requests'))
			OR EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'public.held'::regclass)`).Scan(&copying))
		return copying
	})
	must(t, cmd.Process.Kill())
	if cmd.Wait() == nil {
		t.Fatal("the copy was complete before it was killed")
	}
	_, err = hold.Exec(t.Context(), `ROLLBACK`)
	must(t, err)
	code, stderr := copyDatabase(from, url)
	if code != 0 || !strings.Contains(stderr, "and verified: 60000 requests") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, stderr := copyDatabase(from, url); code != 1 || !strings.Contains(stderr, "the target is not empty") {
		t.Errorf("a second copy: exit code %d: %s", code, stderr)
	}
}
