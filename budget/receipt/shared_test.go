package receipt_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/receipt"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main{M: m}.Run()) }

// cluster is a log on PostgreSQL that several gateways share.
type cluster struct {
	t      *testing.T
	server *postgrestest.Server
	name   string // of the database
	key    string // the file of the signing key
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := postgrestest.Shared(t)
	return &cluster{t: t, server: server, name: server.Create(t, ""), key: filepath.Join(t.TempDir(), "key")}
}

// gateway opens the log as a gateway does, without starting it.
func (c *cluster) gateway() *fixture {
	c.t.Helper()
	f, err := c.tryGateway(c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *cluster) tryGateway(key string) (*fixture, error) {
	c.t.Helper()
	db, err := database.Open(c.t.Context(), database.Settings{URL: c.server.URL(c.name)}, zap.NewNop())
	if err != nil {
		c.t.Fatal(err)
	}
	f := &fixture{t: c.t, db: db, settings: receipt.Settings{Key: key, Origin: origin}}
	c.t.Cleanup(func() {
		f.stop()
		if err := db.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return f, f.open()
}

// insertPending inserts the entry as a settlement does.
func insertPending(ctx context.Context, tx database.Execer, entry *receipt.Entry) error {
	return budget.InsertReceipt(ctx, tx, "key_1", entry.Pending())
}

// onEachEngine returns a log on SQLite and one on PostgreSQL, which are open.
func onEachEngine(t *testing.T) map[string]*fixture {
	t.Helper()
	lone := newFixture(t)
	if err := lone.open(); err != nil {
		t.Fatal(err)
	}
	return map[string]*fixture{"SQLite": lone, "PostgreSQL": newCluster(t).gateway()}
}

func (f *fixture) run() {
	f.log.Start(context.WithoutCancel(f.t.Context()))
}

func TestGatewaysShareOneLog(t *testing.T) {
	c := newCluster(t)
	a, b := c.gateway(), c.gateway()
	a.run()
	b.run()
	const each = 40
	places := map[int64]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, f := range []*fixture{a, b} {
		for range 4 {
			all.Go(func() {
				for range each / 4 {
					r := f.proven(f.sealPlain())
					if err := r.Verify([]byte(request), []byte(answer), a.log.VerifierKey()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					places[*r.LeafIndex] = true
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if len(places) != 2*each || !places[0] || !places[2*each-1] {
		t.Errorf("%d places, want each from 0 to %d once", len(places), 2*each-1)
	}
	if found, err := receipt.Check(t.Context(), a.settings, a.db, true); err != nil || found.Size != 2*each || found.Waiting != 0 {
		t.Errorf("got %+v, error %v, want %d entries", found, err, 2*each)
	}
	entry := a.sealPlain()
	poll.Until(t, "the other gateway has the entry", func() bool { return b.log.Size() > 2*each })
	got := get(t, func(w http.ResponseWriter, r *http.Request) error {
		return b.log.ServeReceipt(w, r, entry.LeafHash().String(), "key_1")
	}, "?nonce=1")
	r, err := receipt.Parse([]byte(got))
	if err == nil {
		err = r.Verify([]byte(request), []byte(answer), b.log.VerifierKey())
	}
	if err != nil {
		t.Errorf("at the other gateway: %v in %s", err, got)
	}
	if got := get(t, func(w http.ResponseWriter, r *http.Request) error {
		return b.log.ServeReceipt(w, r, strings.Repeat("0", 64), "key_1")
	}, ""); got != "not_found" {
		t.Errorf("an unknown leaf hash: got %s, want not_found", got)
	}
}

// A gateway that dies keeps the lease until it expires; what it has committed is whole, and what it has not is absent.
func TestLogGoesOnAfterItsSequencerIsKilled(t *testing.T) {
	c := newCluster(t)
	a, b := c.gateway(), c.gateway()
	a.run()
	r := a.proven(a.sealPlain())
	published := r.Checkpoint
	// The process of a ends in the middle of a transaction: its sessions are terminated, and it never comes back.
	a.sealPlain()
	c.server.Exec(t, c.name, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	a.log = nil
	b.run()
	last := b.proven(b.sealPlain())
	older, err := receipt.OpenCheckpoint(published, b.log.VerifierKey())
	if err != nil {
		t.Fatal(err)
	}
	newer, err := receipt.OpenCheckpoint(last.Checkpoint, b.log.VerifierKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := receipt.CheckConsistency(older, newer, receipt.StoredTiles(t.Context(), b.db.Read())); err != nil || newer.Size != 3 {
		t.Errorf("the tree head of %d entries: %v, want 3 entries that extend those of the killed gateway", newer.Size, err)
	}
	if found, err := receipt.Check(t.Context(), b.settings, b.db, true); err != nil || found.Size != 3 {
		t.Errorf("got %+v, error %v, want 3 entries", found, err)
	}
}

func TestEntryThatIsSettledTwiceIsNumberedOnce(t *testing.T) {
	for name, f := range onEachEngine(t) {
		t.Run(name, func(t *testing.T) {
			entry := f.sealPlain()
			again := func(tx database.Tx) error { return insertPending(t.Context(), tx, entry) }
			before := f.db.WriteGrouped(t.Context(), again) // on PostgreSQL it takes an id
			second := f.sealPlain()
			f.run()
			first := f.proven(entry)
			if err := errors.Join(before, f.db.WriteGrouped(t.Context(), again)); err != nil {
				t.Fatal(err)
			}
			if r := f.proven(second); *first.LeafIndex != 0 || *r.LeafIndex != 1 {
				t.Errorf("got places %d and %d, want 0 and 1", *first.LeafIndex, *r.LeafIndex)
			}
			if found, err := receipt.Check(t.Context(), f.settings, f.db, true); err != nil || found.Size != 2 || found.Waiting != 0 {
				t.Errorf("got %+v, error %v, want two entries", found, err)
			}
		})
	}
}

func TestSharedLogRefusesToStart(t *testing.T) {
	for name, test := range map[string]struct {
		change func(c *cluster, a *fixture)
		want   string
	}{
		"with another key": {func(c *cluster, _ *fixture) { c.key += "-other" }, "the signing key of the receipt log is missing"},
		"with entries that were removed": {func(_ *cluster, a *fixture) {
			a.exec("ALTER TABLE receipts DISABLE TRIGGER ALL", "DELETE FROM receipts WHERE seq = 2")
		}, "has lost its tail"},
		"with a standby that is not waited for": {func(c *cluster, _ *fixture) {
			c.server.Exec(c.t, c.name, "SELECT pg_create_physical_replication_slot('standby')")
			c.t.Cleanup(func() { c.server.Exec(c.t, "postgres", "SELECT pg_drop_replication_slot('standby')") })
		}, "PostgreSQL has standbys and waits for none of them"},
		"without synchronous commits": {func(c *cluster, _ *fixture) {
			c.server.Exec(c.t, c.name, "ALTER DATABASE "+c.name+" SET synchronous_commit = off")
		}, "synchronous_commit of PostgreSQL is off"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			a := c.gateway()
			a.run()
			for range 3 {
				a.proven(a.sealPlain())
			}
			a.stop()
			test.change(c, a)
			if _, err := c.tryGateway(c.key); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestGatewayStopsAtALogThatWasSetBack(t *testing.T) {
	for name, f := range onEachEngine(t) {
		t.Run(name, func(t *testing.T) {
			f.run()
			before := f.proven(f.sealPlain()).Checkpoint
			f.proven(f.sealPlain())
			unprotect := "DROP TRIGGER receipts_deleted"
			if f.db.Postgres() != nil {
				unprotect = "ALTER TABLE receipts DISABLE TRIGGER ALL"
			}
			f.exec(unprotect, "DELETE FROM receipts WHERE seq = 2",
				"UPDATE receipt_log SET size = 1, checkpoint = '"+before+"'") // as a failover to a standby that lacks the second entry
			if r := f.sealPlain().Receipt(t.Context()); r.Checkpoint != "" || f.log.Size() != 2 {
				t.Errorf("got %+v, want no proof from a log that does not extend what this gateway has published", r)
			}
		})
	}
}

func TestSharedEntriesCannotBeChanged(t *testing.T) {
	c := newCluster(t)
	a := c.gateway()
	a.run()
	a.proven(a.sealPlain())
	for _, statement := range []string{"DELETE FROM receipts", "UPDATE receipts SET entry = ''", "UPDATE receipts SET seq = 2", "TRUNCATE receipts"} {
		if err := a.tryExec(statement); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func TestNewSharedLogHasTheEntriesOfTheOldOne(t *testing.T) {
	c := newCluster(t)
	a := c.gateway()
	a.run()
	old := a.proven(a.sealPlain())
	for range 2 {
		a.proven(a.sealPlain())
	}
	key, suffix, err := receipt.NewLog(t.Context(), a.settings, a.db, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil || key == old.Log || suffix == "" {
		t.Fatalf("got key %s, suffix %q, error %v", key, suffix, err)
	}
	// A gateway that still has the old key adds nothing.
	if r := a.sealPlain().Receipt(t.Context()); r.Checkpoint != "" {
		t.Errorf("with the old key: got %+v, want no proof", r)
	}
	a.stop()
	b := c.gateway()
	b.run()
	if r := b.proven(b.sealPlain()); *r.LeafIndex != 4 || r.Log != key {
		t.Errorf("got place %d in %s, want 4, after the one that the old gateway has left, in %s", *r.LeafIndex, r.Log, key)
	}
	if err := old.Verify([]byte(request), []byte(answer), old.Log); err != nil {
		t.Errorf("a receipt of the old log: %v", err)
	}
	if _, err := receipt.Check(t.Context(), b.settings, b.db, true); err != nil {
		t.Error(err)
	}
}

func TestGatewaysThatStartTogetherHaveOneKey(t *testing.T) {
	c := newCluster(t)
	c.gateway().stop()
	c.server.Exec(t, c.name, "TRUNCATE basegate.receipt_log")
	if err := os.Remove(c.key); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	keys := make([]string, 4)
	for i := range keys {
		all.Go(func() {
			f, err := c.tryGateway(c.key)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = f.log.VerifierKey()
		})
	}
	all.Wait()
	for _, key := range keys {
		if key != keys[0] || key == "" {
			t.Errorf("got the keys %q, want one", keys)
		}
	}
}
