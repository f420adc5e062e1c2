package receipt_test

import (
	"context"
	"syscall"
	"testing"

	"basegate/database"
)

// BenchmarkReceipt makes receipts of plain answers as 64 concurrent requests do, tree heads included. cpu-µs/op is the CPU
// time of the whole process for one; without is that of an empty write in the same transaction.
func BenchmarkReceipt(b *testing.B) {
	for _, receipts := range []bool{false, true} {
		name := "without"
		if receipts {
			name = "with"
		}
		b.Run(name, func(b *testing.B) {
			f := newFixture(b)
			f.start()
			ctx := context.Background()
			body := make([]byte, 2<<10)
			b.SetParallelism(32)
			before := cpuTime(b)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					confirm := func(context.Context) error { return nil }
					insert := func(database.Tx) error { return nil }
					if receipts {
						draft := f.log.NewDraft()
						draft.Write(body)
						sealed, err := draft.Seal(entry(), "key_1", []byte(request))
						if err != nil {
							b.Fatal(err)
						}
						insert = func(tx database.Tx) error { return sealed.Insert(ctx, tx) }
						confirm = sealed.Confirm
					}
					if err := f.db.WriteGrouped(ctx, insert); err != nil {
						b.Fatal(err)
					}
					if err := confirm(ctx); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.StopTimer()
			f.stop()
			b.ReportMetric((cpuTime(b)-before)/float64(b.N), "cpu-µs/op")
		})
	}
}

// cpuTime returns the CPU time of the process, in microseconds.
func cpuTime(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e6 + float64(u.Utime.Usec+u.Stime.Usec)
}
