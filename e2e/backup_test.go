//go:build e2e

package e2e_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// A backup that is made under load is restored in another environment: the keys work there, and the ledger has every
// response that was completed before the backup started.
func TestBackupMadeUnderLoadIsComplete(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	g := env.serve()
	before := &completedResponses{usage: map[string]gjson.Result{}}
	for range 20 {
		before.send(g, g.secret, false)
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	during := &completedResponses{usage: map[string]gjson.Result{}}
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					during.send(g, g.secret, true)
				}
			}
		})
	}
	backup := filepath.Join(t.TempDir(), "copy.db")
	env.run("backup", backup)
	close(stop)
	clients.Wait()

	if _, stderr, code := runCommand(t, "restore", backup, "--config", env.config); code != 1 || !strings.Contains(stderr, "serves as a gateway, listening on") {
		t.Errorf("a restore while the gateway serves: exit code %d, %q; want 1 and the gateway's address", code, stderr)
	}
	restored := newEnvironment(t, settings{}, mock.URL())
	restored.run("restore", backup)
	g2 := restored.serveWithKey(g.secret)
	if got := g2.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("a key of the backup: %d %s", got.status, got.body)
	}
	rows := map[string]ledgerRow{}
	for _, row := range restored.usageRows() {
		rows[row.ID] = row
	}
	for id, usage := range before.usage {
		if row := rows[id]; row.State != "settled" || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("request %s: the response reports %s, the row in the backup is %+v", id, usage.Raw, row)
		}
	}
	if len(before.usage) < 20 || len(during.usage) == 0 {
		t.Error("no load before or during the backup: the test has not tested anything")
	}
}

// A reader that goes away ends `basegate backup -` by SIGPIPE, and leaves no copy of the database behind. What a backup that was
// killed has left is gone after the next start of the gateway.
func TestBackupToAPipeLeavesNoCopy(t *testing.T) {
	skipPostgres(t, "pg_dump makes the backups")
	env := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL())
	copies := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(filepath.Dir(env.database), ".basegate-copy-*"))
		must(t, err)
		return found
	}
	t.Setenv("TMPDIR", "")
	reader, writer, err := os.Pipe()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), binary, "backup", "-", "--config", env.config)
	cmd.Stdout = writer
	must(t, reader.Close())
	if err := cmd.Run(); err == nil {
		t.Error("a backup without a reader has succeeded")
	}
	must(t, writer.Close())
	if left := copies(); len(left) > 0 {
		t.Errorf("the backup has left %v", left)
	}

	killed := filepath.Join(filepath.Dir(env.database), ".basegate-copy-1234567")
	must(t, os.Mkdir(killed, 0o700))
	writeFile(t, filepath.Join(killed, "part.db"), "a copy")
	env.serve()
	if left := copies(); len(left) > 0 {
		t.Errorf("the start has left %v", left)
	}
}
