package budget_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/usage"
)

func TestAttemptsAndBootAreReadBack(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	store := usage.New(db, zap.NewNop())
	attempts := []usage.Attempt{
		{Backend: "gpu1", Class: "reset", Start: 2 * time.Millisecond, Took: time.Second},
		{Backend: "gpu2", Class: "success", Status: 200, Start: 1200 * time.Millisecond, Took: 3 * time.Second},
	}
	for name, opened := range map[string]bool{"settled at once": false, "in flight before": true} {
		request := newRequest()
		r, err := l.Reserve(t.Context(), budget.Payer{Key: "k", Account: "a"}, request, demand(1, 1), nil)
		must(t, err)
		if opened {
			must(t, budget.OpenRow(t.Context(), r))
		}
		must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 1, Status: 200, Boot: 90 * time.Second, Attempts: attempts}))
		got, found, err := store.Request(t.Context(), "a", request.ID)
		must(t, err)
		if diff := cmp.Diff(attempts, got.Attempts); !found || diff != "" || got.Boot != 90*time.Second {
			t.Errorf("%s: found %v, boot %v, attempts:\n%s", name, found, got.Boot, diff)
		}
	}
}

// A chain id is kept with the request, whether it has attempts to tell of or not.
func TestChainIDIsRecorded(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	store := usage.New(db, zap.NewNop())
	for name, attempts := range map[string][]usage.Attempt{
		"one attempt": nil, "two attempts": {{Backend: "gpu1", Class: "reset"}, {Backend: "gpu2", Class: "success"}},
	} {
		request := newRequest()
		request.ChainID = "45762"
		r, err := l.Reserve(t.Context(), budget.Payer{Key: "k", Account: "a"}, request, demand(1, 1), nil)
		must(t, err)
		must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 1, Status: 200, Attempts: attempts}))
		got, found, err := store.Request(t.Context(), "a", request.ID)
		must(t, err)
		if !found || got.ChainID != "45762" || len(got.Attempts) != len(attempts) {
			t.Errorf("%s: found %v, chain id %q, attempts %v", name, found, got.ChainID, got.Attempts)
		}
	}
	spend(t, l, "k", "a", 1, 1)
	rows, err := store.List(t.Context(), usage.Filter{}, usage.ByRequest)
	must(t, err)
	var listed []string
	for _, r := range rows {
		listed = append(listed, r.ChainID)
	}
	slices.Sort(listed)
	if diff := cmp.Diff([]string{"", "45762", "45762"}, listed); diff != "" {
		t.Errorf("the list of requests has other chain ids (-want +got):\n%s", diff)
	}
}

func TestFewAttemptsAreStored(t *testing.T) {
	many := make([]usage.Attempt, 100*usage.MaxAttempts)
	if text := usage.EncodeDetails(many, ""); len(text) > 1500 {
		t.Errorf("%d attempts take %d bytes", len(many), len(text))
	}
}
