package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
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

// A gateway that has stopped in the middle of a pipeline, on any of its connections, holds its lock until others end the session.
func TestStoppedSessionOfADeadGatewayDoesNotKeepItAlive(t *testing.T) {
	db := newDatabase(t)
	s := cluster.Settings{Name: "dead", Beat: 20 * time.Millisecond, Dead: 200 * time.Millisecond}
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	dead := start(t, &testDatabase{url: through(t, proxy, db)}, s)
	gateway, _ := dead.Identity()
	pool := open(t, db.url)
	t.Cleanup(pool.Close)
	session, err := pool.Pool().Acquire(t.Context())
	must(t, err)
	defer session.Release()
	messages := session.Conn().PgConn().Frontend()
	messages.SendParse(&pgproto3.Parse{Query: fmt.Sprintf(`SELECT pg_advisory_xact_lock_shared(25191, %d)`, gateway)})
	messages.SendBind(&pgproto3.Bind{})
	messages.SendExecute(&pgproto3.Execute{}) // and no Sync
	must(t, messages.Flush())
	poll.Until(t, "the session has the lock", func() (has bool) {
		db.query(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 25191 AND objid = $1::integer AND granted)`,
			[]any{gateway}, &has)
		return has
	})
	proxy.Pause()
	t.Cleanup(proxy.Resume)
	s.Name = "other"
	other := start(t, db, s)
	poll.Until(t, "the gateway is reaped", func() bool { return other.Values(t)["reaped_gateways_total"] == 1 })
}
