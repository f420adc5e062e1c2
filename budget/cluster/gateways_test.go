package cluster_test

import (
	"testing"

	"basegate/budget/cluster"
	"basegate/database/postgres"
)

func TestGatewaysAreListedWithTheirStateAndLoad(t *testing.T) {
	d := newDatabase(t)
	db, err := postgres.Open(t.Context(), postgres.Settings{URL: d.url})
	must(t, err)
	t.Cleanup(db.Close)
	pool := db.OpenPool(1, nil)
	t.Cleanup(func() { pool.Close() })
	list := func() []cluster.Gateway {
		t.Helper()
		all, err := cluster.Gateways(t.Context(), pool)
		must(t, err)
		return all
	}
	if got := list(); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	for _, name := range []string{"b", "a", "left", "silent", "forgotten"} {
		d.exec(t, `SELECT ledger_join_v1($1, 'v1.2', 1)`, name)
	}
	d.exec(t, `SELECT ledger_join_v1('b', 'v1.3', 1)`)
	d.exec(t, `SELECT ledger_leave_v1(id, epoch) FROM gateway WHERE name IN ('left', 'forgotten')`)
	d.exec(t, `UPDATE gateway SET beat_at = beat_at - 20000000 WHERE name = 'silent'`)
	d.exec(t, `UPDATE gateway SET beat_at = beat_at - 100000000000 WHERE name = 'forgotten'`)
	d.exec(t, `INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint, workload, user_tag, stream, details)
		SELECT 'r' || n, g.id, g.epoch, 'acc', 'key', current_date, 0, 1, 1, 'm', 'e', '', '', false, '' FROM gateway g, generate_series(1, 3) n WHERE name = 'a'`)
	all := list()
	want := []struct {
		name     string
		state    cluster.GatewayState
		version  string
		inFlight int64
	}{
		{"a", cluster.GatewayAlive, "v1.2", 3},
		{"b", cluster.GatewayAlive, "v1.3", 0},
		{"left", cluster.GatewayEnded, "v1.2", 0},
		{"silent", cluster.GatewaySilent, "v1.2", 0},
	}
	if len(all) != len(want) {
		t.Fatalf("got %+v, want %d gateways", all, len(want))
	}
	for i, w := range want {
		g := all[i]
		if g.Name != w.name || g.State != w.state || g.Alive != (w.state == cluster.GatewayAlive) || g.Version != w.version ||
			g.InFlight != w.inFlight || g.HeartbeatLag < 0 || (g.HeartbeatLag >= 20) != (w.name == "silent") {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
	if all[1].Epoch <= all[0].Epoch {
		t.Errorf("got epoch %d after a restart, want more than %d", all[1].Epoch, all[0].Epoch)
	}
}
