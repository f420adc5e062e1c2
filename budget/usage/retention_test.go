package usage_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/internal/databasetest"
)

// The sums stay, and neither the check nor a rebuild of the rollups misses the rows.
func TestWholeMonthsAreDeletedAndTheirSumsStay(t *testing.T) {
	if !databasetest.Postgres() {
		t.Skip("SQLite keeps all requests")
	}
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(11, 12))
	var all []usage.Row
	for i := range 300 {
		all = append(all, randomRow(random, i))
	}
	insert(t, db, all...)
	march := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	retention := usage.NewRetention(db, zap.NewNop(), time.Since(march)) // February is over for longer than that
	if err := retention.Apply(t.Context()); err == nil || !strings.Contains(err.Error(), "not all of them are summed up") {
		t.Errorf("got error %v, want one about rows that the rollups do not include", err)
	}
	must(t, s.Rebuild(t.Context()))
	expectedMonths := expected(all, usage.Filter{}, usage.ByMonth)
	for range 2 { // again, there is nothing to do
		must(t, retention.Apply(t.Context()))
		var oldest, left int64
		must(t, db.Read().QueryRowContext(t.Context(), `SELECT min(time), count(*) FROM requests`).Scan(&oldest, &left))
		if oldest < march.UnixMicro() || left == 0 || left == 300 {
			t.Errorf("%d rows since %v are left, want those since %v", left, time.UnixMicro(oldest).UTC(), march)
		}
		for _, by := range []usage.Grouping{usage.ByMonth, usage.ByUser} {
			groups, err := s.Groups(t.Context(), usage.Filter{}, by)
			must(t, err)
			if diff := cmp.Diff(expected(all, usage.Filter{}, by), sumsOf(groups[0], by)); diff != "" {
				t.Errorf("by %s (-want +got)\n%s", by, diff)
			}
		}
		requireConsistent(t, s)
		must(t, s.Rebuild(t.Context()))
	}
	if len(expectedMonths) < 3 {
		t.Error("the rows are of too few months for this test")
	}
}

// A gateway that dies between the detaching and the deletion of a month leaves a table behind.
func TestInterruptedDeletionOfAMonthIsFinished(t *testing.T) {
	if !databasetest.Postgres() {
		t.Skip("SQLite keeps all requests")
	}
	_, db := newStore(t)
	_, err := db.Postgres().Pool().Exec(t.Context(), `ALTER TABLE requests DETACH PARTITION requests_2026_01 CONCURRENTLY`)
	must(t, err)
	must(t, usage.NewRetention(db, zap.NewNop(), 31*24*time.Hour).Apply(t.Context()))
	rows, err := db.Read().QueryContext(t.Context(), `SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^requests_2'`)
	must(t, err)
	defer rows.Close()
	var left []string
	for rows.Next() {
		var name string
		must(t, rows.Scan(&name))
		left = append(left, name)
	}
	must(t, rows.Err())
	if slices.Contains(left, "requests_2026_01") || slices.Contains(left, "requests_2026_03") || len(left) < 4 {
		t.Errorf("got the tables %v, want those of this month and later ones", left)
	}
}
