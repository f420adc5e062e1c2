package database_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/database"
)

// BenchmarkBatch measures durable writes of two statements, which the ledger makes for a request, by a number of
// concurrent goroutines. ns/op is the time per write over all goroutines.
func BenchmarkBatch(b *testing.B) {
	for _, durability := range []string{"flushed at commit", "flushed every second"} {
		for _, submitters := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/%d", durability, submitters), func(b *testing.B) {
				s := database.Settings{Path: filepath.Join(b.TempDir(), "base.db")}
				if durability == "flushed every second" {
					s.Flush = time.Second
				}
				db := openNotes(b, s)
				benchmarkBatch(b, db, submitters)
			})
		}
	}
}

func benchmarkBatch(b *testing.B, db *database.DB, submitters int) {
	b.Helper()
	must(b, db.WriteExclusive(b.Context(), execute("CREATE TABLE sums (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")))
	must(b, db.WriteExclusive(b.Context(), execute("INSERT INTO sums (id, n) VALUES (1, 0)")))
	var next atomic.Int64
	ctx := b.Context()
	write := func(tx database.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO notes (id, text) VALUES ($1, $2)", next.Add(1), "a row of the ledger"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE sums SET n = n + $1 WHERE id = 1", 1)
		return err
	}
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	left := atomic.Int64{}
	left.Store(int64(b.N))
	for range submitters {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := db.WriteGrouped(ctx, write); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

func BenchmarkRead(b *testing.B) {
	db := openNotes(b, database.Settings{})
	must(b, db.WriteExclusive(b.Context(), note(1)))
	ctx := b.Context()
	for b.Loop() {
		var text string
		if err := db.Read().QueryRowContext(ctx, "SELECT text FROM notes WHERE id = $1", 1).Scan(&text); err != nil {
			b.Fatal(err)
		}
	}
}
