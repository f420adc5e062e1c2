package proxy

import (
	"fmt"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"basegate/budget/receipt"
	"basegate/database"
)

// BenchmarkReceiptEvents adds a stream of 200 events to its receipt, in the portions in which a client receives them.
func BenchmarkReceiptEvents(b *testing.B) {
	folder := b.TempDir()
	db, err := database.Open(b.Context(), database.Settings{Path: filepath.Join(folder, "base.db")}, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	log, err := receipt.Open(b.Context(), receipt.Settings{Folder: filepath.Join(folder, "receipts"), Key: filepath.Join(folder, "receipts", "key"), Origin: "log.example.org"}, db, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	event := []byte(`data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1760000000,"model":"bench",` +
		`"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	for _, atOnce := range []int{1, 20} {
		b.Run(fmt.Sprintf("portions=%d", atOnce), func(b *testing.B) {
			var portion []byte
			for range atOnce {
				portion = append(portion, event...)
			}
			b.ReportAllocs()
			for b.Loop() {
				state := &receiptState{builder: log.NewBuilder(false)}
				for range 200 / atOnce {
					state.addEvents(portion)
				}
			}
		})
	}
}
