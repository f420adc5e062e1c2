package cluster_test

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/budget/cluster"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

func TestClockThatDiffersFromTheDatabasesWarns(t *testing.T) {
	db := newDatabase(t)
	db.setClock(t, time.Now().Add(time.Hour))
	core, logs := observer.New(zap.WarnLevel)
	opened := open(t, db.url)
	t.Cleanup(opened.Close)
	l := cluster.New(opened, zap.New(core), cluster.Settings{Name: "gateway", Beat: 20 * time.Millisecond})
	must(t, l.Start(t.Context()))
	t.Cleanup(l.Close)
	poll.Until(t, "the gateway warns", func() bool { return logs.FilterMessageSnippet("clock differs").Len() > 0 })
}

// The end of a dead gateway's epoch that fails is tried again with a later heartbeat.
func TestReapingThatFailsIsTriedAgain(t *testing.T) {
	db := newDatabase(t)
	s := cluster.Settings{Name: "dead", Beat: 20 * time.Millisecond, Dead: 200 * time.Millisecond}
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	dead := start(t, &testDatabase{url: through(t, proxy, db)}, s)
	gateway, _ := dead.Identity()
	tx, err := db.conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared(25191, $1)`, gateway) // as a call that does not end
	must(t, err)
	core, logs := observer.New(zap.WarnLevel)
	opened := open(t, db.url)
	t.Cleanup(opened.Close)
	s.Name = "other"
	other := cluster.New(opened, zap.New(core), s)
	must(t, other.Start(t.Context()))
	t.Cleanup(other.Close)
	proxy.Pause()
	t.Cleanup(proxy.Resume)
	poll.Until(t, "reaping has failed", func() bool { return logs.FilterMessageSnippet("could not be ended").Len() > 0 })
	must(t, tx.Rollback(t.Context()))
	poll.Until(t, "the gateway is reaped", func() bool { return other.Values(t)["reaped_gateways_total"] == 1 })
}
