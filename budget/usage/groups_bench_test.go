package usage_test

import (
	"syscall"
	"testing"
	"time"

	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/postgrestest"
)

// BenchmarkDailyLatencies reads the latencies of all accounts in 144 days by day: those of 103,680 rollups, of 720 series
// with six requests a day. The CPU time is that of this process and of PostgreSQL.
func BenchmarkDailyLatencies(b *testing.B) {
	s, db := newStore(b)
	const (
		series = `
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 720)
			INSERT INTO usage_series (id, account_id, key_id, model, endpoint, workload)
			SELECT i, 'acc' || (i % 20), 'key' || (i % 60), 'm' || (i / 60 % 3), '/v' || (i / 180 % 2), 'w' || (i / 360) FROM n`
		days = `
			WITH RECURSIVE n (i) AS (SELECT CAST($1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < $2)
			INSERT INTO usage_days (series, period, requests, errors, streams, prompt_tokens, completion_tokens)
			SELECT s.id, i, 6, 0, 3, 3000, 900 FROM usage_series s CROSS JOIN n`
		latencies = `
			INSERT INTO usage_latencies (series, period, counts)
			SELECT series, period, '1169,1177,1189,1536,1729,1737,1742,1745,1747' FROM usage_days`
	)
	execute(b, db, series)
	first := epoch.Unix() / 86400
	execute(b, db, days, first, first+6*24-1)
	execute(b, db, latencies)
	execute(b, db, `UPDATE usage_watermark SET seq = 1`) // otherwise the rollups include nothing
	var server *postgrestest.Server
	if databasetest.Postgres() {
		server = postgrestest.Shared(b)
		must(b, db.WriteExclusive(b.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(b.Context(), `ANALYZE usage_latencies`)
			return err
		}))
	}
	filter := usage.Filter{Since: epoch, Until: epoch.AddDate(0, 0, 6*24), Latency: true}
	before := cpuTime(b, server)
	for b.Loop() {
		groups, err := s.Groups(b.Context(), filter, usage.ByDay)
		must(b, err)
		if n := groups[0][0].Latency.Total.Count(); len(groups[0]) != 6*24 || n != 6*720 {
			b.Fatalf("%d days, of which the first has %d durations, want 144 and 4320", len(groups[0]), n)
		}
	}
	b.ReportMetric(float64((cpuTime(b, server)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// cpuTime returns the CPU time of this process and of a server, unless that is nil.
func cpuTime(tb testing.TB, server *postgrestest.Server) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	all := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	if server != nil {
		all += server.CPU(tb)
	}
	return all
}
