package receipt_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"basegate/budget/receipt"
	"basegate/database"
)

// benchEvents is how many events a stream of the benchmarks has.
const benchEvents = 200

// benchAnswers returns the events of a stream, and a plain answer.
func benchAnswers() (events, plain []byte) {
	for i := range benchEvents {
		events = fmt.Appendf(events, `data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1760000000,"model":"bench",`+
			`"choices":[{"index":0,"text":" word%03d","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`+"\n\n", i)
	}
	return events, []byte(`{"choices":[{"text":"` + strings.Repeat("word ", 400) + `"}]}`)
}

// BenchmarkBuilder makes the entry of an answer, without the log.
func BenchmarkBuilder(b *testing.B) {
	events, plain := benchAnswers()
	f := newFixture(b)
	if err := f.open(); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		write func(*receipt.Builder)
	}{
		{"plain", func(b *receipt.Builder) { b.Write(plain) }},
		{"stream", func(b *receipt.Builder) {
			b.WriteEvents(events)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				builder := f.log.NewBuilder(false)
				c.write(builder)
				if _, err := builder.Seal(record(), "key_1", []byte(request)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReceipt makes receipts as concurrent requests do, tree heads included: 64 with plain answers, and 16 with streams,
// which wait for a tree head with their entry. cpu-µs/op is the CPU time of the whole process for one; without is that of an
// empty write in the same transaction.
func BenchmarkReceipt(b *testing.B) {
	events, plain := benchAnswers()
	write := func(b *receipt.Builder) { b.Write(plain) }
	b.Run("without", func(b *testing.B) { benchmarkReceipt(b, 64, nil, false) })
	b.Run("plain", func(b *testing.B) { benchmarkReceipt(b, 64, write, false) })
	write = func(b *receipt.Builder) { b.WriteEvents(events) }
	b.Run("stream", func(b *testing.B) { benchmarkReceipt(b, 16, write, true) })
}

func benchmarkReceipt(b *testing.B, concurrency int, write func(*receipt.Builder), stream bool) {
	b.Helper()
	f := newFixture(b)
	f.start()
	ctx := context.Background()
	one := func() error {
		if write == nil {
			return f.db.WriteGrouped(ctx, func(database.Tx) error { return nil })
		}
		builder := f.log.NewBuilder(stream)
		defer builder.Close()
		write(builder)
		entry, err := builder.Seal(record(), "key_1", []byte(request))
		if err != nil {
			return err
		}
		write := f.db.EnqueueStatement(func(tx database.Execer) error { return insertPending(ctx, tx, entry) })
		if stream {
			entry.AwaitRound(ctx)
		}
		if err := write.Wait(ctx); err != nil {
			return err
		}
		if err := entry.Confirm(ctx); err != nil || !stream {
			return err
		}
		_, err = entry.Receipt(ctx).Encode()
		return err
	}
	b.SetParallelism(concurrency / 2)
	before := cpuTime(b)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := one(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	f.stop()
	b.ReportMetric((cpuTime(b)-before)/float64(b.N), "cpu-µs/op")
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
