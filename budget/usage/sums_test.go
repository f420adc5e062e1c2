package usage_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/postgrestest"
)

// Latencies of several rollups are read as one value. A damaged one among them must not shift the others.
func TestDamagedLatenciesAreAnError(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(11, 12))
	for i := range 200 {
		insert(t, db, randomRow(random, i))
	}
	must(t, s.AddBatch(t.Context(), 200))
	for _, damaged := range [][]byte{nil, {0}, {0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {1, 5}, {0xff}} {
		execute(t, db, `
			UPDATE usage_days SET latency = $1 WHERE (series, period) = (SELECT series, period FROM usage_days ORDER BY series, period LIMIT 1)`,
			append([]byte{}, damaged...))
		_, err := s.Groups(t.Context(), usage.Filter{Latency: true}, usage.ByEndpoint)
		if err == nil || !strings.Contains(err.Error(), "basegate database check --repair") {
			t.Errorf("latencies %x: got error %v, want one that says how to repair them", damaged, err)
		}
	}
}

// The sums over all keys of a database that an earlier version has made are those of its rollups.
func TestMigrationSumsUpTheTagsOfAllKeys(t *testing.T) {
	if postgrestest.Newer() {
		t.Skip("a later schema is not migrated")
	}
	settings := databasetest.Settings(t, filepath.Join(t.TempDir(), "base.db"))
	db, err := database.Open(t.Context(), settings, zap.NewNop())
	must(t, err)
	databasetest.CreatePartitions(t, db, epoch.AddDate(0, -2, 0), epoch.AddDate(0, 2, 0))
	random := rand.New(rand.NewPCG(13, 14))
	for i := range 100 {
		insert(t, db, randomRow(random, i))
	}
	must(t, usage.New(db, zap.NewNop()).AddBatch(t.Context(), 100))
	undo := []string{`DROP FUNCTION usage_sum_tags CASCADE`}
	if db.Postgres() == nil {
		undo = []string{`DELETE FROM goose_db_version WHERE version_id = 19`}
		for _, table := range []string{"usage_tag_days", "usage_tag_months"} {
			for _, event := range []string{"inserted", "updated", "deleted"} {
				undo = append(undo, "DROP TRIGGER "+table+"_"+event)
			}
		}
	}
	for _, text := range append(undo, `DROP TABLE usage_tag_day_sums`, `DROP TABLE usage_tag_month_sums`) {
		execute(t, db, text)
	}
	if db.Postgres() != nil { // which does not go back to a migration before the last one
		migration, err := os.ReadFile("../../database/postgres/migrations/0012_tag_sums.sql")
		must(t, err)
		execute(t, db, string(migration))
	}
	must(t, db.Close())
	db, err = database.Open(t.Context(), settings, zap.NewNop())
	must(t, err)
	defer func() { must(t, db.Close()) }()
	s := usage.New(db, zap.NewNop())
	requireConsistent(t, s)
	rows, err := s.List(t.Context(), usage.Filter{}, usage.ByUser)
	must(t, err)
	if len(rows) != 6 {
		t.Errorf("%d user tags have usage after the migration, want 6", len(rows))
	}
}
