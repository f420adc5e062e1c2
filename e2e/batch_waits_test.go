//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// createCapped creates a key without budget, and returns its secret and its id.
func (e *environment) createCapped(email, name string) (secret, id string) {
	e.t.Helper()
	secret = strings.TrimSpace(e.run("key", "create", "--account", email, "--name", name, "--monthly-budget", "0"))
	return secret, gjson.Get(e.run("key", "list", "--json"), `#(name=="`+name+`").id`).Str
}

// A batch whose key may not send lines says so, starts no model, and ends when the key is revoked.
func TestBatchWaitsForItsKeyAndStartsNoModel(t *testing.T) {
	t.Parallel() // it waits
	l := newLaunchedModel(t, 0)
	env := newEnvironment(t, settings{probeTimeout: loadedProbe, models: l.config("m", ", boot_estimate: 1s", "")})
	email := env.newAccount("waiting@example.org")
	secret, key := env.createCapped(email, "spent")
	g := env.serve()
	g.waitForKey(secret)
	file, ids := batchLines(3)
	id := g.createBatch(secret, file)
	waitsFor := func(reason string) {
		t.Helper()
		poll.Until(t, "the batch waits for its "+reason, func() bool {
			return gjson.Get(g.run("batch", "show", id), "waiting_for.reason").Str == reason
		})
	}
	waitsFor("budget")
	if at := g.batch(secret, id).Get("waiting_for.resets_at").Int(); at <= time.Now().Unix() {
		t.Errorf("the budget resets at %d", at)
	}
	if list := g.run("batch", "list"); !strings.Contains(list, "WAITS FOR") || !strings.Contains(list, "budget") {
		t.Errorf("the list does not say what the batch waits for:\n%s", list)
	}
	g.run("key", "pause", key)
	waitsFor("key")
	g.run("account", "disable", email)
	g.run("key", "resume", key)
	waitsFor("account")
	g.run("account", "approve", email)
	waitsFor("budget")
	g.run("key", "revoke", key)
	poll.Until(t, "the batch has ended", func() bool { return gjson.Get(g.run("batch", "show", id), "status").Str == "cancelled" })
	other := strings.TrimSpace(env.run("key", "create", "--account", email, "--name", "reader"))
	g.waitForKey(other)
	_, failures := g.checkResults(other, g.batch(other, id), ids)
	for line, o := range failures {
		if o.Get("error.code").Str != "batch_cancelled" || o.Get("error.message").Str != "the key was revoked" {
			t.Errorf("%s: %s", line, o.Raw)
		}
	}
	if ran := l.ranCommands(); len(ran) > 0 {
		t.Errorf("the model was started for a batch that cannot run: %v", ran)
	}
	g.waitForBatch(other, g.createBatch(other, file), "completed")
	if ran := l.ranCommands(); len(ran) != 1 {
		t.Errorf("for a batch that can run: %v, want one start", ran)
	}
}

// Waiting batches by the thousand are rows: another account's batch runs at once, and memory and the write-ahead log stay within
// their limits.
func TestWaitingBatchesDoNotDelayOthers(t *testing.T) {
	const accounts, creators = 4, 4
	batches, within := 401, 5*time.Minute // more than the default limit for one of the accounts
	if _, requireTimes := attackDuration(t); requireTimes {
		batches, within = 10_000, 2*time.Second
	}
	useBinaryWithoutRaceDetector(t)
	t.Setenv("GOMEMLIMIT", fmt.Sprint(attackMemoryLimit))
	env := newEnvironment(t, settings{extra: fmt.Sprintf("limits: {unfinished_batches_per_account: %d}", batches)}, startMock(t, mockvllm.Options{}).URL())
	var secrets []string
	for i := range accounts {
		secret, _ := env.createCapped(env.newAccount(fmt.Sprintf("user%d@example.org", i)), fmt.Sprint("spent ", i))
		secrets = append(secrets, secret)
	}
	honest := env.createKey("honest")
	g := env.serve()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := g.watchLog(ctx)
	file, _ := batchLines(1)
	var created atomic.Int64
	var creating sync.WaitGroup
	for _, secret := range secrets {
		g.waitForKey(secret)
		uploaded := gjson.Get(g.upload(secret, file, "purpose", "batch").body, "id").Str
		body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, uploaded)
		for range creators {
			creating.Go(func() {
				for created.Add(1) <= int64(batches) {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/batches", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Authorization", "Bearer "+secret)
					resp, err := httpClient.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						t.Errorf("a batch: %d", resp.StatusCode)
						return
					}
				}
			})
		}
	}
	creating.Wait()
	run := func(when string) {
		t.Helper()
		id := g.createBatch(honest, file)
		began := time.Now()
		poll.Within(t, within, when+", the batch of another account has ended", func() bool {
			return g.batch(honest, id).Get("status").Str == "completed"
		})
		t.Logf("%s, the batch of another account took %v", when, time.Since(began))
	}
	run("while batches are validated")
	db := g.openLedger()
	poll.Within(t, 10*time.Minute, "the batches wait", func() bool {
		var waiting int
		must(t, db.QueryRow(`SELECT count(*) FROM batches WHERE waits_for = 'budget' AND parked_at > 0`).Scan(&waiting))
		return waiting == batches
	})
	run("while batches wait")
	peak, _ := g.resident()
	cancel()
	logSize := log()
	t.Logf("%d waiting batches: peak %d MiB resident; write-ahead log up to %d MiB", batches, peak>>20, logSize>>20)
	if peak > attackResident {
		t.Errorf("the peak was %d MiB resident, want at most %d", peak>>20, attackResident>>20)
	}
	if logSize > maxLog {
		t.Errorf("the write-ahead log grew to %d MiB, want at most %d", logSize>>20, maxLog>>20)
	}
}
