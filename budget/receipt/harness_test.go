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
	f.db = db
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

// entry is what a gateway knows of a plain answer.
func entry() receipt.Entry {
	return receipt.Entry{
		Kind: receipt.Completion, RequestID: "req_1", Model: "m", Checkpoint: "org/m", VLLMVersion: "0.11.0", GPU: "H100",
		Parameters: map[string]string{"temperature": "0.7", "max_tokens": "16"}, Also: []string{"stop"},
		Usage: receipt.Usage{PromptTokens: 5, CompletionTokens: 3, TotalTokens: 8}, FinishReasons: []string{"stop"},
	}
}

// seal makes a receipt and inserts its entry.
func (f *fixture) seal(e receipt.Entry, write func(*receipt.Draft)) *receipt.Sealed {
	f.t.Helper()
	draft := f.log.NewDraft()
	write(draft)
	sealed, err := draft.Seal(e, "key_1", []byte(request))
	if err == nil {
		err = sealed.Write(f.t.Context())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return sealed
}

func (f *fixture) sealPlain() *receipt.Sealed {
	f.t.Helper()
	return f.seal(entry(), func(d *receipt.Draft) { d.Write([]byte(answer)) })
}

// whole returns the text of a receipt, proof included.
func (f *fixture) whole(s *receipt.Sealed) []byte {
	f.t.Helper()
	r, err := s.Receipt(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := r.Encode()
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// add adds n entries and waits until a tree head covers them.
func (f *fixture) add(n int) {
	f.t.Helper()
	var last *receipt.Sealed
	for range n {
		last = f.sealPlain()
	}
	f.whole(last)
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
