//go:build e2e

package e2e_test

import (
	"net/http"
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
