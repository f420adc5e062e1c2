//go:build e2e

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// A backup is made under load and restored somewhere else: the keys work there, and every answer that was seen whole
// before the backup began is on its ledger.
func TestABackupUnderLoadIsRestored(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	place := newSite(t, settings{}, mock.URL())
	g := place.serve()
	before := &receipts{seen: map[string]gjson.Result{}}
	for range 20 {
		before.ask(g, g.secret, false)
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	after := &receipts{seen: map[string]gjson.Result{}}
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					after.ask(g, g.secret, true)
				}
			}
		})
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	place.run("backup", copied)
	close(stop)
	clients.Wait()

	elsewhere := newSite(t, settings{}, mock.URL())
	must(t, os.Remove(elsewhere.database))
	for _, end := range []string{"-wal", "-shm"} {
		os.Remove(elsewhere.database + end)
	}
	must(t, os.Rename(copied, elsewhere.database))
	again := elsewhere.serveTo(g.secret)
	if got := again.complete(small); got.status != http.StatusOK {
		t.Errorf("the key: %d %s", got.status, got.body)
	}
	rows := map[string]ledgerRow{}
	for _, row := range elsewhere.usage() {
		rows[row.ID] = row
	}
	for id, usage := range before.seen {
		if row := rows[id]; row.State != "settled" || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("%s cost %s, but the copy says %+v", id, usage.Raw, row)
		}
	}
	if len(before.seen) < 20 || len(after.seen) == 0 {
		t.Error("nothing was under way, so this has shown nothing")
	}
}
