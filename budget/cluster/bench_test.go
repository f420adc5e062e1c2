package cluster_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/internal/postgrestest"
)

// BenchmarkLedger makes requests one after the other from a number of goroutines, with commits that wait for the disk. It reports
// requests a second, round trips, and the processor time of all of PostgreSQL's processes for each request.
func BenchmarkLedger(b *testing.B) {
	server := postgrestest.Start(b, postgrestest.Durable)
	for _, accounts := range []int{1, 100} {
		for _, n := range []int{1, 32, 256} {
			b.Run(fmt.Sprintf("accounts=%d/requests=%d", accounts, n), func(b *testing.B) { benchmarkLedger(b, server, accounts, n) })
		}
	}
}

// BenchmarkRow measures commits of one updated row on one connection, as a measure of the machine.
func BenchmarkRow(b *testing.B) {
	server := postgrestest.Start(b, postgrestest.Durable)
	d := connect(b, server.URL(server.Create(b, "")))
	d.exec(b, `CREATE TABLE public.counter (id bigint PRIMARY KEY, n bigint) WITH (fillfactor = 20)`)
	d.exec(b, `INSERT INTO public.counter VALUES (1, 0)`)
	cpu, began := server.CPU(b), time.Now()
	rows := 0
	for b.Loop() {
		d.exec(b, `UPDATE public.counter SET n = n + 1 WHERE id = 1`)
		rows++
	}
	b.ReportMetric(float64(rows)/time.Since(began).Seconds(), "rows/s")
	b.ReportMetric(float64((server.CPU(b)-cpu).Microseconds())/float64(rows), "µs-postgres/row")
	b.ReportMetric(0, "ns/op")
}

func benchmarkLedger(b *testing.B, server *postgrestest.Server, accounts, n int) {
	b.Helper()
	url := server.URL(server.Create(b, ""))
	db := open(b, url)
	_, err := db.Migrate(b.Context())
	must(b, err)
	db.Close()
	d := connect(b, url)
	l := start(b, d, cluster.Settings{Name: "gateway"})
	var owners []cluster.Owner
	for i := range accounts {
		account := cluster.Owner{ID: fmt.Sprint("acc", i), Caps: quota.Caps{quota.MonthTotal: quota.Limit(1 << 50)}, Enabled: true}
		owners = append(owners, account, cluster.Owner{ID: fmt.Sprint("key", i), Account: account.ID, Slots: 1000, Enabled: true})
	}
	must(b, l.SetOwners(b.Context(), owners))
	var left, made atomic.Int64
	left.Store(int64(b.N))
	calls := l.Values(b)["calls_total"]
	b.ResetTimer()
	cpu, began := server.CPU(b), time.Now()
	var workers sync.WaitGroup
	for w := range n {
		workers.Go(func() {
			for i := w; left.Add(-1) >= 0; i += n {
				p := budget.Payer{Key: fmt.Sprint("key", i%accounts), Account: fmt.Sprint("acc", i%accounts)}
				r, err := l.Reserve(b.Context(), p, newRequest(), demand(100, 200), nil)
				if err == nil {
					err = r.Settle(b.Context(), budget.Outcome{Prompt: 100, Completion: 150, Status: 200, Backend: "gpu1"})
				}
				if err != nil {
					b.Error(err)
				}
				made.Add(1)
			}
		})
	}
	workers.Wait()
	took, used, requests := time.Since(began), server.CPU(b)-cpu, float64(made.Load())
	b.ReportMetric(requests/took.Seconds(), "requests/s")
	b.ReportMetric(float64(used.Microseconds())/requests, "µs-postgres/request")
	b.ReportMetric((l.Values(b)["calls_total"]-calls)/requests, "trips/request")
	b.ReportMetric(0, "ns/op")
}
