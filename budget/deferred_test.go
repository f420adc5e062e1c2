package budget_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/usage"
	"basegate/database"
)

var errRolledBack = errors.New("rolled back")

// prepare reserves and prepares the settlement of a request of one attempt that failed and one that succeeded.
func prepare(t *testing.T, l *budget.Ledger, inFlight bool) (budget.Request, budget.Settlement) {
	t.Helper()
	request := newRequest()
	r, err := l.TryReserve(t.Context(), budget.Payer{Key: "k", Account: "a"}, request, demand(3, 5), nil)
	must(t, err)
	if inFlight {
		must(t, budget.OpenRow(t.Context(), r))
	}
	return request, r.Prepare(budget.Outcome{Prompt: 3, Completion: 4, Status: 200, Boot: 90 * time.Second, Attempts: retried})
}

var retried = []usage.Attempt{
	{Backend: "gpu1", Class: "reset", Start: 2 * time.Millisecond, Took: time.Second},
	{Backend: "gpu2", Class: "success", Status: 200, Start: 1200 * time.Millisecond, Took: 3 * time.Second},
}

// writeSettlement writes a settlement in a transaction that is rolled back if commit is false.
func writeSettlement(t *testing.T, db *database.DB, s budget.Settlement, commit bool) {
	t.Helper()
	err := db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		if err := s.Write(t.Context(), tx); err != nil {
			return err
		}
		if !commit {
			return errRolledBack
		}
		return nil
	})
	if commit || !errors.Is(err, errRolledBack) {
		must(t, err)
	}
}

func TestDeferredSettlementKeepsAttemptsAndBoot(t *testing.T) {
	for name, c := range map[string]struct{ inFlight, again bool }{
		"at once": {}, "in flight before": {inFlight: true}, "after a transaction that failed": {again: true},
		"in flight, after a transaction that failed": {inFlight: true, again: true},
	} {
		db := openDatabase(t, newPath(t))
		l := startLedger(t, db)
		request, s := prepare(t, l, c.inFlight)
		if c.again {
			writeSettlement(t, db, s, false)
		}
		writeSettlement(t, db, s, true)
		s.Commit()
		got, found, err := usage.New(db, zap.NewNop()).Request(t.Context(), "a", request.ID)
		must(t, err)
		if diff := cmp.Diff(retried, got.Attempts); !found || diff != "" || got.Boot != 90*time.Second {
			t.Errorf("%s: found %v, boot %v, attempts:\n%s", name, found, got.Boot, diff)
		}
		if got.State != usage.Settled || got.PromptTokens != 3 || got.CompletionTokens != 4 {
			t.Errorf("%s: got %s with %d and %d tokens, want settled with 3 and 4", name, got.State, got.PromptTokens, got.CompletionTokens)
		}
	}
}

// An abandoned settlement whose transaction reached the disk, although it failed, stands: the result that it pays for does.
func TestAbandonLeavesARowThatReachedTheDisk(t *testing.T) {
	for _, written := range []bool{false, true} {
		db := openDatabase(t, newPath(t))
		l := budget.New(db, zap.NewNop(), budget.Settings{})
		must(t, l.Start(t.Context()))
		request, s := prepare(t, l, true)
		writeSettlement(t, db, s, written)
		s.Abandon()
		l.Close()
		got, found, err := usage.New(db, zap.NewNop()).Request(t.Context(), "a", request.ID)
		must(t, err)
		want := usage.Interrupted
		if written {
			want = usage.Settled
		}
		if !found || got.State != want || (got.PromptTokens > 0) != written {
			t.Errorf("written %v: found %v, %s with %d tokens, want %s", written, found, got.State, got.PromptTokens, want)
		}
	}
}

func TestDeferredSettlementOfATakenIDFails(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	request := newRequest()
	first, err := l.Reserve(t.Context(), budget.Payer{Key: "k", Account: "a"}, request, demand(1, 1), nil)
	must(t, err)
	must(t, budget.OpenRow(t.Context(), first))
	second, err := l.TryReserve(t.Context(), budget.Payer{Key: "k", Account: "a"}, request, demand(1, 1), nil)
	must(t, err)
	s := second.Prepare(budget.Outcome{Prompt: 1, Status: 200})
	err = db.WriteGrouped(t.Context(), func(tx database.Tx) error { return s.Write(t.Context(), tx) })
	if !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("got %v, want ErrDuplicate", err)
	}
	s.Abandon()
	settle(t, first, 1, 1)
}
