package receipt_test

import (
	"context"
	"net/http"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"basegate/budget/receipt"
	"basegate/database"
	"basegate/internal/databasetest"
)

const origin = "log.example.org/receipts"

// fixture is a log in a folder of its own.
type fixture struct {
	t        testing.TB
	settings receipt.Settings
	path     string // of a SQLite database
	db       *database.DB
	log      *receipt.Log
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	folder := tb.TempDir()
	f := &fixture{t: tb, settings: receipt.Settings{Folder: filepath.Join(folder, "receipts"), Key: filepath.Join(folder, "receipts", "key"), Origin: origin, Transport: http.DefaultTransport}}
	f.openDatabase(filepath.Join(folder, "base.db"))
	return f
}

func (f *fixture) openDatabase(path string) {
	f.t.Helper()
	db, err := database.Open(f.t.Context(), databasetest.SQLite(f.t, path), zap.NewNop())
	if err != nil {
		f.t.Fatal(err)
	}
	f.path, f.db = path, db
	f.t.Cleanup(func() {
		f.stop()
		if err := db.Close(); err != nil {
			f.t.Error(err)
		}
	})
}

// open opens the log without starting it.
func (f *fixture) open() error {
	log, err := receipt.Open(f.t.Context(), f.settings, f.db, zap.NewNop())
	if err == nil {
		f.log = log
	}
	return err
}

func (f *fixture) start() {
	f.t.Helper()
	if err := f.open(); err != nil {
		f.t.Fatal(err)
	}
	f.log.Start(context.WithoutCancel(f.t.Context()))
}

func (f *fixture) stop() {
	if f.log != nil {
		f.log.Close()
		f.log = nil
	}
}

const (
	request = `{"model": "m", "prompt": "Say this is a test", "temperature": 0.70}`
	answer  = `{"id":"cmpl-1","choices":[{"text":" This is."}]}`
)

// record is what a gateway knows of a plain answer.
func record() receipt.Record {
	return receipt.Record{
		Kind: receipt.Completion, RequestID: "req_1", Model: "m", Checkpoint: "org/m", VLLMVersion: "0.11.0", GPU: "H100",
		Parameters: map[string]string{"temperature": "0.7", "max_tokens": "16"}, Also: []string{"stop"},
		Usage: receipt.Usage{PromptTokens: 5, CompletionTokens: 3, TotalTokens: 8}, FinishReasons: []string{"stop"},
	}
}

// seal makes a receipt and inserts its entry.
func (f *fixture) seal(r receipt.Record, write func(*receipt.Builder)) *receipt.Entry {
	f.t.Helper()
	builder := f.log.NewBuilder(false)
	write(builder)
	entry, err := builder.Seal(r, "key_1", []byte(request))
	if err == nil {
		err = entry.Write(f.t.Context())
	}
	if err != nil {
		f.t.Error(err)
	}
	return entry
}

func (f *fixture) sealPlain() *receipt.Entry {
	f.t.Helper()
	return f.seal(record(), func(b *receipt.Builder) { b.Write([]byte(answer)) })
}

// proven returns the receipt of an entry, whose proof it waits for.
func (f *fixture) proven(e *receipt.Entry) *receipt.Receipt {
	f.t.Helper()
	for {
		if r := e.Receipt(f.t.Context()); r.Checkpoint != "" || f.t.Context().Err() != nil {
			return r
		}
	}
}

// whole returns the text of a receipt, proof included.
func (f *fixture) whole(e *receipt.Entry) []byte {
	f.t.Helper()
	text, err := f.proven(e).Encode()
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// add adds n entries and waits until a tree head covers them.
func (f *fixture) add(n int) {
	f.t.Helper()
	var last *receipt.Entry
	for range n {
		last = f.sealPlain()
	}
	f.proven(last)
}

// exec changes the database behind the log's back.
func (f *fixture) exec(statements ...string) {
	f.t.Helper()
	if err := f.tryExec(statements...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) tryExec(statements ...string) error {
	return f.db.WriteExclusive(f.t.Context(), func(tx database.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(f.t.Context(), s); err != nil {
				return err
			}
		}
		return nil
	})
}
