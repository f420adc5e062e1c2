package budget_test

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
)

// cpuTime returns the CPU time that the process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// payerWithLargeCaps returns a payer whose key and account have the caps of months and days, none of which is reached.
func payerWithLargeCaps() budget.Payer {
	large := quota.Limit(1 << 50)
	caps := quota.Caps{quota.MonthTotal: large, quota.DayTotal: large, quota.MonthInput: large, quota.MonthOutput: large}
	return budget.Payer{Key: "key", Account: "acc", KeyCaps: caps, AccountCaps: caps}
}

func BenchmarkReserveSettle(b *testing.B) {
	p := payerWithLargeCaps()
	for _, c := range []struct {
		name    string
		workers int
		wait    bool // for the row to be inserted, as a stream does
	}{
		{"plain 1", 1, false},
		{"plain 64", 64, false},
		{"plain 256", 256, false},
		{"stream 64", 64, true},
		{"stream 256", 256, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLedger(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var workers sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			began := cpuTime(b)
			for range c.workers {
				// One goroutine serves many requests, as that of a connection does.
				workers.Go(func() {
					for left.Add(-1) >= 0 {
						r, err := l.Reserve(b.Context(), p, newRequest(), demand(100, 100), nil)
						if err == nil && c.wait {
							err = budget.OpenRow(b.Context(), r)
						}
						if err == nil {
							err = r.Settle(b.Context(), budget.Outcome{Prompt: 100, Completion: 20, Status: 200})
						}
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			workers.Wait()
			b.ReportMetric(float64((cpuTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkDecide is BenchmarkReserveSettle without the rows: it measures the work done under the ledger's lock.
func BenchmarkDecide(b *testing.B) {
	db := openDatabase(b, newPath(b))
	l := startLedger(b, db)
	must(b, db.Close())
	p := payerWithLargeCaps()
	b.ReportAllocs()
	for b.Loop() {
		r, err := l.Reserve(b.Context(), p, budget.Request{ID: "req"}, demand(100, 100), nil)
		must(b, err)
		_ = r.Settle(b.Context(), budget.Outcome{}) // the database is closed
	}
}

// BenchmarkStart starts a ledger with a million rows of the current month.
func BenchmarkStart(b *testing.B) {
	db := openDatabase(b, newPath(b))
	now := time.Now().UTC()
	insertRows(b, db, 1_000_000, time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC))
	for b.Loop() {
		l := budget.New(db, zap.NewNop(), budget.Settings{})
		must(b, l.Start(b.Context()))
		l.Close()
	}
}
