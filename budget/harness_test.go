package budget_test

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/internal/databasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newPath(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "base.db")
}

// openDatabase opens a database that is closed at the end of the test.
func openDatabase(tb testing.TB, path string) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), databasetest.SQLite(tb, path), zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// startLedger starts a ledger that is closed at the end of the test.
func startLedger(tb testing.TB, db *database.DB) *budget.Ledger {
	tb.Helper()
	l := budget.New(db, zap.NewNop(), budget.Settings{})
	must(tb, l.Start(tb.Context()))
	tb.Cleanup(l.Close)
	return l
}

func newLedger(tb testing.TB) *budget.Ledger {
	tb.Helper()
	return startLedger(tb, openDatabase(tb, newPath(tb)))
}

var lastID atomic.Int64

func newRequest() budget.Request {
	return budget.Request{
		ID: "req_" + strconv.FormatInt(lastID.Add(1), 10), Model: "llama-8b", Endpoint: "/v1/completions",
		Workload: "interactive",
	}
}

// demand returns an exact demand for one candidate.
func demand(prompt, maxTokens int64) budget.Demand {
	return budget.Demand{PromptTokens: prompt, Exact: true, Candidates: 1, MaxTokens: maxTokens}
}

func reserve(tb testing.TB, l *budget.Ledger, p budget.Payer, d budget.Demand) budget.Reservation {
	tb.Helper()
	r, err := l.Reserve(tb.Context(), p, newRequest(), d, nil)
	must(tb, err)
	return r
}

func settle(tb testing.TB, r budget.Reservation, prompt, completion int64) {
	tb.Helper()
	must(tb, r.Settle(tb.Context(), budget.Outcome{Prompt: prompt, Completion: completion, Status: 200}))
}

// spend makes one request that uses the given tokens.
func spend(tb testing.TB, l *budget.Ledger, key, account string, prompt, completion int64) {
	tb.Helper()
	settle(tb, reserve(tb, l, budget.Payer{Key: key, Account: account}, demand(prompt, max(completion, 1))), prompt, completion)
}

// fakeRequester is a budget.Requester that records how often its methods are called.
type fakeRequester struct {
	tokens    int64
	countErr  error
	memoryErr error

	counted, memoryReserved, memoryReleased int
	before                                  func() (int, bool)
}

func (f *fakeRequester) CountPrompt(context.Context) (int64, []int64, error) {
	f.counted++
	return f.tokens, nil, f.countErr
}

func (f *fakeRequester) Wait(before func() (int, bool)) (over func(), err error) {
	f.memoryReserved++
	f.before = before
	return func() { f.memoryReleased++ }, f.memoryErr
}

// insertRows inserts rows of one month, from 1000 keys of 100 accounts.
func insertRows(tb testing.TB, db *database.DB, rows int, from time.Time) {
	tb.Helper()
	const text = `
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		SELECT 'req_' || lower(hex(randomblob(12))), $2 + i * ($3 / $1), 'key_' || (i * 7919 % 1000),
			'acc_' || (i * 7919 % 100), 'llama-8b', 'gpu1', '/v1/completions', 'batch', '', i % 2,
			200, '', 'settled', 100 + i % 50, 20 + i % 7, 10, 20000, 900000
		FROM n`
	must(tb, db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(tb.Context(), text, rows, from.UnixMicro(), int64(20*24*time.Hour/time.Microsecond))
		return err
	}))
}

func parseTime(tb testing.TB, text string) time.Time {
	tb.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	must(tb, err)
	return parsed
}
