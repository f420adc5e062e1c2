package usage_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"basegate/budget/usage"
)

// Latencies of several rollups are read as one value. A damaged one among them must not shift the others.
func TestDamagedLatenciesAreAnError(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(11, 12))
	for i := range 200 {
		insert(t, db, randomRow(random, i))
	}
	must(t, s.AddBatch(t.Context(), 200))
	for _, damaged := range []string{"x", "1", "2047", "-1024", "1024;1024", "99999999999999999999"} {
		execute(t, db, `
			UPDATE usage_latencies SET counts = $1
			WHERE (series, period) = (SELECT series, period FROM usage_latencies ORDER BY series, period LIMIT 1)`, damaged)
		_, err := s.Groups(t.Context(), usage.Filter{Latency: true}, usage.ByEndpoint)
		if err == nil || !strings.Contains(err.Error(), "basegate database check --repair") {
			t.Errorf("latencies %q: got error %v, want one that says how to repair them", damaged, err)
		}
	}
}
