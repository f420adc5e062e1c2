package budget_test

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/quota"
)

// cpu is what the process has taken so far.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkReserveSettle(b *testing.B) {
	caps := quota.Caps{MonthTotal: quota.Limit(1 << 50), DayTotal: quota.Limit(1 << 50), MonthInput: quota.Limit(1 << 50), MonthOutput: quota.Limit(1 << 50)}
	p := budget.Payer{Key: "key", Account: "acc", KeyCaps: caps, AccountCaps: caps}
	for _, c := range []struct {
		name string
		at   int
		wait bool // for the row to be opened, as a stream does
	}{{"plain 1", 1, false}, {"plain 64", 64, false}, {"plain 256", 256, false}, {"stream 64", 64, true}, {"stream 256", 256, true}} {
		at := c.at
		b.Run(c.name, func(b *testing.B) {
			l := newLedger(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var workers sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			began := cpu(b)
			for range at {
				// One goroutine serves request after request, as that of a connection does.
				workers.Go(func() {
					for left.Add(-1) >= 0 {
						r, err := l.Reserve(b.Context(), p, request(), exactly(100, 100), nil)
						if err == nil && c.wait {
							err = r.Wait(b.Context())
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
			b.ReportMetric(float64((cpu(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkDecide is what is left of the above without the rows: all that happens under the ledger's lock.
func BenchmarkDecide(b *testing.B) {
	db := openDatabase(b, newPath(b))
	l := start(b, db)
	must(b, db.Close())
	caps := quota.Caps{MonthTotal: quota.Limit(1 << 50), DayTotal: quota.Limit(1 << 50), MonthInput: quota.Limit(1 << 50), MonthOutput: quota.Limit(1 << 50)}
	p := budget.Payer{Key: "key", Account: "acc", KeyCaps: caps, AccountCaps: caps}
	b.ReportAllocs()
	for b.Loop() {
		r, err := l.Reserve(b.Context(), p, budget.Request{ID: "req"}, exactly(100, 100), nil)
		must(b, err)
		_ = r.Settle(b.Context(), budget.Outcome{}) // the database is closed
	}
}

// BenchmarkStart starts a ledger over a million rows of the present month, with a crash's rows among them.
func BenchmarkStart(b *testing.B) {
	db := openDatabase(b, newPath(b))
	now := time.Now().UTC()
	fill(b, db, 1_000_000, time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC))
	for b.Loop() {
		l := budget.New(db, zap.NewNop(), budget.Settings{})
		must(b, l.Start(b.Context()))
		l.Close()
	}
}
