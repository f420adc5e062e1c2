package refusals_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/budget/refusals"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func openDatabase(tb testing.TB) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), databasetest.Settings(tb, filepath.Join(tb.TempDir(), "base.db")), zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() { db.Close() })
	return db
}

// at is the hour of all refusals.
var at = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// refusal returns the nth refusal of an account.
func refusal(account string, n int) *refusals.Refusal {
	return &refusals.Refusal{
		RequestID: fmt.Sprintf("req_%s_%d", account, n), Time: at.Add(time.Duration(n) * time.Millisecond), AccountID: account,
		KeyID: "key1", Endpoint: "/v1/completions", Status: 429, Code: "budget_exceeded", Total: time.Millisecond,
	}
}

func selectInt(tb testing.TB, db *database.DB, query string) (n int) {
	tb.Helper()
	must(tb, db.Read().QueryRowContext(tb.Context(), query).Scan(&n))
	return n
}

func TestRefusalIsWrittenWithinSecondsAndReadAsARequest(t *testing.T) {
	db := openDatabase(t)
	r := refusals.New(db, zap.NewNop(), refusals.Default)
	r.Start(t.Context())
	defer r.Close()
	f := refusal("ada", 1)
	f.Model, f.User, f.Stream, f.Queue, f.Boot = "m", "run-1", true, 2*time.Second, 3*time.Second
	f.Param, f.Expected = "n", "expected 1 to 8"
	f.Time = time.Now().UTC().Truncate(time.Second) // an old one would be deleted at once
	r.Record(f)
	store := usage.New(db, zap.NewNop())
	poll.Until(t, "the refusal is written", func() bool {
		_, found, err := store.Request(t.Context(), "ada", f.RequestID)
		return err == nil && found
	})
	got, _, err := store.Request(t.Context(), "", f.RequestID)
	must(t, err)
	if got.State != usage.Refused || got.Status != 429 || got.Code != f.Code || got.Model != "m" || got.User != "run-1" ||
		!got.Stream || got.Queue != f.Queue || got.Boot != f.Boot || got.Param != f.Param || got.Expected != f.Expected || !got.Time.Equal(f.Time) {
		t.Errorf("got %+v, want what was recorded", got)
	}
	if _, found, err := store.Request(t.Context(), "another", f.RequestID); err != nil || found {
		t.Errorf("another account finds the request: %v, %v", found, err)
	}
}

func TestFloodIsCountedButHasFewRows(t *testing.T) {
	db := openDatabase(t)
	few := refusals.Default
	few.AccountBurst, few.AccountInterval, few.Burst, few.PerSecond, few.AccountRows = 10, time.Hour, 25, 1, 5
	r := refusals.New(db, zap.NewNop(), few)
	for n := range 100_000 {
		r.Record(refusal("flood", n))
	}
	r.Record(refusal("ada", 1)) // another account still has a row
	r.Flush(t.Context())
	if n := selectInt(t, db, `SELECT count(*) FROM refusals WHERE account_id = 'flood'`); n != 10 {
		t.Errorf("an account with a burst of 10 has %d rows", n)
	}
	if n := selectInt(t, db, `SELECT count(*) FROM refusals WHERE account_id = 'ada'`); n != 1 {
		t.Errorf("an account beside the flood has %d rows, want 1", n)
	}
	counts, err := usage.New(db, zap.NewNop()).Refusals(t.Context(), usage.Filter{Account: "flood", Since: at, Until: at.Add(time.Hour)})
	must(t, err)
	if len(counts) != 1 || counts[0] != (usage.RefusalCount{Code: "budget_exceeded", Requests: 100_000}) {
		t.Errorf("got %v, want 100,000 refusals with budget_exceeded", counts)
	}
	for i := range 100 { // many accounts at once are limited together
		for n := range 5 {
			r.Record(refusal(fmt.Sprint("account", i), n))
		}
	}
	r.Flush(t.Context())
	if n := selectInt(t, db, `SELECT count(*) FROM refusals`); n > 30 {
		t.Errorf("all accounts together have %d rows, want at most the burst of 25 and those of the meantime", n)
	}
	must(t, r.PruneAt(t.Context(), at))
	if n := selectInt(t, db, `SELECT count(*) FROM refusals WHERE account_id = 'flood'`); n != 5 {
		t.Errorf("%d rows of an account are kept, want 5", n)
	}
}

func TestOldRefusalsAreDeleted(t *testing.T) {
	db := openDatabase(t)
	short := refusals.Default
	short.Rows, short.Keep, short.KeepCounts = 20, time.Hour, 2*time.Hour
	r := refusals.New(db, zap.NewNop(), short)
	for n := range 30 {
		r.Record(refusal("ada", n))
	}
	r.Flush(t.Context())
	must(t, r.PruneAt(t.Context(), at))
	if n := selectInt(t, db, `SELECT count(*) FROM refusals`); n != 20 {
		t.Errorf("%d rows are kept, want 20", n)
	}
	must(t, r.PruneAt(t.Context(), at.Add(61*time.Minute)))
	if n := selectInt(t, db, `SELECT count(*) FROM refusals`); n != 0 {
		t.Errorf("%d rows are kept beyond their time", n)
	}
	if n := selectInt(t, db, `SELECT sum(requests) FROM refusal_hours`); n != 30 {
		t.Errorf("%d refusals are counted, want 30", n)
	}
	must(t, r.PruneAt(t.Context(), at.Add(4*time.Hour)))
	if n := selectInt(t, db, `SELECT count(*) FROM refusal_hours`); n != 0 {
		t.Errorf("%d numbers are kept beyond their time", n)
	}
}

func TestNumbersSurviveAnOutage(t *testing.T) {
	db := openDatabase(t)
	r := refusals.New(db, zap.NewNop(), refusals.Default)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `ALTER TABLE refusal_hours RENAME TO elsewhere`)
		return err
	}))
	r.Record(refusal("ada", 1))
	r.Flush(t.Context())
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `ALTER TABLE elsewhere RENAME TO refusal_hours`)
		return err
	}))
	r.Record(refusal("ada", 2))
	r.Flush(t.Context())
	if n := selectInt(t, db, `SELECT sum(requests) FROM refusal_hours`); n != 2 {
		t.Errorf("%d refusals are counted, want 2", n)
	}
}

func BenchmarkRecordFlood(b *testing.B) {
	r := refusals.New(openDatabase(b), zap.NewNop(), refusals.Default)
	f := refusal("flood", 1)
	b.ReportAllocs()
	for b.Loop() {
		r.Record(f)
	}
}
