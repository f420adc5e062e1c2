package batch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/proxy"
	"basegate/proxy/stream"
)

// cappedCompleter serves lines at once, each for ten tokens of a real ledger.
type cappedCompleter struct {
	ledger *budget.Ledger
	payer  budget.Payer
}

type freePlace struct{}

func (freePlace) Release() {}

func (*cappedCompleter) AcquirePlace(string, int, bool) (proxy.Place, proxy.WaitReason) {
	return freePlace{}, ""
}

func (c *cappedCompleter) Standing(string) proxy.Standing {
	if e := c.ledger.Balance(c.payer).Exhausted(); e != nil {
		return proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: e.ResetsAt}
	}
	return proxy.Standing{}
}

func (*cappedCompleter) Checker(context.Context, string, string, bool) (proxy.LineCheck, error) {
	return func(string, []byte) (proxy.CheckedLine, error) { return proxy.CheckedLine{Model: "m"}, nil }, nil
}

func (*cappedCompleter) Allocate(string) admission.Allocation { return admission.Allocation{} }

func (c *cappedCompleter) ServeLine(ctx context.Context, l proxy.Line) proxy.LineResult {
	id := newID("req_")
	r, err := c.ledger.TryReserve(ctx, c.payer, budget.Request{
		ID: id, Model: "m", KeyID: l.Key, AccountID: l.Account, Batch: l.Batch, Time: time.Now(),
	}, budget.Demand{PromptTokens: 4, Exact: true, Candidates: 1, MaxTokens: 6, MinTokens: 6}, nil)
	if exceeded, ok := errors.AsType[*budget.Exceeded](err); ok || errors.Is(err, budget.ErrReserved) {
		waits := proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForBudget}
		if ok {
			waits.ResetsAt = exceeded.ResetsAt
		}
		return waits
	}
	if err != nil {
		return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForCapacity}
	}
	return proxy.LineResult{
		Usage:     stream.Usage{Prompt: 4, Completion: 6},
		RequestID: id, Status: 200, Body: []byte(`{"usage":{"prompt_tokens":4,"completion_tokens":6}}`),
		Settlement: r.Prepare(budget.Outcome{Prompt: 4, Completion: 6, Status: 200}), Release: func() {},
	}
}

// A batch that has used up the budget of a day waits for the next one, says so, and goes on then.
func TestBatchWaitsUntilItsBudgetResets(t *testing.T) {
	databasetest.SkipPostgres(t, "its ledger takes the time from the server, which does not follow the clock of the test")
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		pass(time.Until(midnight) - 30*time.Second)
		db, err := database.Open(t.Context(), databasetest.SQLite(t, filepath.Join(dir, "base.db")), zap.NewNop())
		must(err)
		defer db.Close()
		ledger := budget.New(db, zap.NewNop(), budget.Settings{})
		must(ledger.Start(t.Context()))
		defer ledger.Close()
		store, err := storage.OpenDisk(filepath.Join(dir, "files"))
		must(err)
		defer store.Close()
		completer := &cappedCompleter{ledger, budget.Payer{Key: "k", Account: "a", KeyCaps: quota.Caps{quota.DayTotal: quota.Limit(35)}}}
		s := New(db, store, completer, Settings{
			MaxFileBytes: 1 << 20, MaxAccountBytes: 1 << 20, MaxAccountFiles: 10, MaxBodyBytes: 1 << 10, Keep: time.Hour, MaxUnfinished: 10, PerBackend: 2, Attempts: 1,
		}, zap.NewNop())
		must(s.Start(t.Context()))
		defer s.Close()
		var file strings.Builder
		for i := range 5 {
			fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"a"}}`+"\n", i)
		}
		b, err := s.Create(t.Context(), "a", "k", "lines.jsonl", "24h", strings.NewReader(file.String()))
		must(err)

		pass(25*time.Second + 10*time.Millisecond) // between two looks at the budget
		d, err := s.BatchOf(t.Context(), "", b.ID)
		must(err)
		if d.Status != InProgress || d.Completed != 3 {
			t.Errorf("before midnight: %s with %d lines, want in_progress with the 3 that fit", d.Status, d.Completed)
		}
		s.mu.Lock()
		if n := len(s.jobs); n != 0 {
			t.Errorf("%d batches are in memory before midnight, want none", n)
		}
		s.mu.Unlock()
		if w := d.WaitsFor(); w == nil || w.Reason != proxy.WaitsForBudget || w.ResetsAt == nil || *w.ResetsAt != midnight.Unix() {
			t.Errorf("before midnight it waits for %+v, want the budget until %d", w, midnight.Unix())
		}

		pass(15 * time.Second)
		d, err = s.BatchOf(t.Context(), "", b.ID)
		must(err)
		if d.Status != Completed || d.Completed != 5 || d.InputTokens+d.OutputTokens != 50 {
			t.Errorf("after midnight: %s with %d lines and %d tokens, want completed with 5 and 50", d.Status, d.Completed, d.InputTokens+d.OutputTokens)
		}
		var rows, tokens int
		must(db.Read().QueryRowContext(t.Context(), `SELECT count(*), sum(prompt_tokens + completion_tokens) FROM requests WHERE state = 'settled'`).Scan(&rows, &tokens))
		if rows != 5 || tokens != 50 {
			t.Errorf("the ledger has %d rows with %d tokens, want 5 with 50", rows, tokens)
		}
	})
}
