package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
)

// rows returns the requests that have ended, oldest first.
func rows(tb testing.TB, l *budget.Ledger) []usage.Row {
	tb.Helper()
	all := usageBy(tb, l, usage.Filter{}, usage.ByRequest)
	slices.Reverse(all)
	return all
}

func usageBy(tb testing.TB, l *budget.Ledger, f usage.Filter, by usage.Grouping) []usage.Row {
	tb.Helper()
	all, err := usage.New(l.Database(), zap.NewNop()).List(tb.Context(), f, by)
	must(tb, err)
	return all
}

func TestRowHoldsTheRequestAndItsOutcome(t *testing.T) {
	l := newLedger(t)
	q := budget.Request{
		ID: "req_1", KeyID: "ignored", Model: "llama-8b", Endpoint: "/v1/completions", Workload: "batch", User: "š",
		Stream: true, Time: time.Now().Add(-time.Millisecond).UTC().Truncate(time.Microsecond),
	}
	r, err := l.Reserve(t.Context(), budget.Payer{Key: "key", Account: "acc"}, q, demand(10, 20), nil)
	must(t, err)
	must(t, budget.OpenRow(t.Context(), r))
	if len(rows(t, l)) != 0 {
		t.Error("a request in flight is included in usage")
	}
	r.SetBackend("gpu1")
	r.SetBackend("gpu2")
	must(t, r.Settle(t.Context(), budget.Outcome{
		Prompt: 9, Completion: 4, Status: 502, Code: "vllm_oom",
		Queue: time.Microsecond, FirstToken: time.Millisecond, Total: time.Second,
		Reported: usage.Reported{CachedTokens: new(int64(8)), Prefill: new(int64(7))},
	}))
	want := []usage.Row{{
		Requests: 1, Errors: 1, Streams: 1, PromptTokens: 9, CompletionTokens: 4, Time: q.Time, KeyID: "key", AccountID: "acc", Model: "llama-8b",
		RequestID: "req_1", Backend: "gpu2", Endpoint: "/v1/completions", Workload: "batch", User: "š", Stream: true,
		Status: 502, Code: "vllm_oom", State: usage.Settled,
		Queue: time.Microsecond, FirstToken: time.Millisecond, Total: time.Second,
		CachedTokens: 8, KnownTokens: 9, Reported: usage.Reported{CachedTokens: new(int64(8)), Prefill: new(int64(7))},
	}}
	if diff := cmp.Diff(want, rows(t, l)); diff != "" {
		t.Errorf("rows (-want +got)\n%s", diff)
	}
}

func TestSettleIsIdempotent(t *testing.T) {
	l := newLedger(t)
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
	r := reserve(t, l, p, demand(10, 20))
	settle(t, r, 10, 5)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			settle(t, r, 10, 20)
			r.SetPromptTokens(10)
			r.SetProgress(20)
			r.Release()
		})
	}
	all.Wait()
	if h, _ := l.Balance(p).TightestTotal(); h.Remaining() != 85 || l.Reserved() != 0 {
		t.Errorf("%d tokens remain and %d are reserved, want 85 and 0", h.Remaining(), l.Reserved())
	}
	if got := rows(t, l); len(got) != 1 || got[0].CompletionTokens != 5 || got[0].State != usage.Settled {
		t.Errorf("rows: got %+v, want one settled with 5 completion tokens", got)
	}
}

func TestReleaseChargesTheRecordedProgress(t *testing.T) {
	l := newLedger(t)
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
	reserve(t, l, p, demand(10, 20)).Release()
	if h, _ := l.Balance(p).TightestTotal(); h.Remaining() != 100 {
		t.Errorf("without progress: %d tokens remain, want 100", h.Remaining())
	}
	r := reserve(t, l, p, demand(10, 20))
	r.SetPromptTokens(9)
	r.SetProgress(3)
	r.Release()
	r.Release()
	if h, _ := l.Balance(p).TightestTotal(); h.Remaining() != 88 {
		t.Errorf("with progress: %d tokens remain, want 88", h.Remaining())
	}
	must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 50})) // has no effect, but waits for the write
	got := rows(t, l)
	if len(got) != 2 || got[1].PromptTokens != 9 || got[1].CompletionTokens != 3 || got[1].State != usage.Interrupted {
		t.Errorf("rows: got %+v, want the second interrupted with 9 and 3 tokens", got)
	}
}

// Most requests end before they are a second old, and their settlement is then their only write.
func TestRowIsInsertedBeforeTheEndOfALongRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		l := startLedger(t, db)
		inFlight := func() (n int) {
			must(t, db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM inflight`).Scan(&n))
			return n
		}
		p := budget.Payer{Key: "key", Account: "acc"}
		short := reserve(t, l, p, demand(1, 1))
		settle(t, short, 1, 1)
		must(t, budget.OpenRow(t.Context(), short)) // the request has ended
		long := reserve(t, l, p, demand(1, 1))
		time.Sleep(850 * time.Millisecond)
		if n := inFlight(); n != 0 {
			t.Errorf("%d rows in flight after 850 ms, want 0", n)
		}
		time.Sleep(200 * time.Millisecond)
		if n := inFlight(); n != 1 {
			t.Errorf("%d rows in flight after a second, want 1", n)
		}
		settle(t, long, 1, 1)
		if got := rows(t, l); len(got) != 2 {
			t.Errorf("%d rows at the end, want 2", len(got))
		}
	})
}

// A stream that advances all the time is written once if it ends within a second. A longer one gets a row in flight, which
// is not written again within the next second, and is never older than a second and the interval of the checkpoints.
func TestStreamIsWrittenOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(t.Context(), `
				CREATE TABLE writes (kind TEXT NOT NULL, tokens BIGINT NOT NULL);
				CREATE TRIGGER inserted AFTER INSERT ON inflight BEGIN INSERT INTO writes VALUES ('insert', NEW.completion_tokens); END;
				CREATE TRIGGER updated AFTER UPDATE ON inflight BEGIN INSERT INTO writes VALUES ('update', NEW.completion_tokens); END;
				CREATE TRIGGER moved AFTER INSERT ON requests BEGIN INSERT INTO writes VALUES ('end', NEW.completion_tokens); END`)
			return err
		}))
		l := startLedger(t, db)
		writes := func() (all string) {
			must(t, db.Read().QueryRowContext(t.Context(), `SELECT coalesce(group_concat(kind || ' ' || tokens, ', '), '') FROM writes`).Scan(&all))
			return all
		}
		p := budget.Payer{Key: "key", Account: "acc"}
		stream := func(milliseconds int64) {
			r := reserve(t, l, p, demand(1, 10_000))
			for n := range milliseconds {
				r.SetProgress(n)
				time.Sleep(time.Millisecond)
			}
			settle(t, r, 1, milliseconds)
		}
		stream(800)
		if got, want := writes(), "end 800"; got != want {
			t.Errorf("a stream of 800 ms is written as %q, want %q", got, want)
		}
		must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(t.Context(), `DELETE FROM writes`)
			return err
		}))
		stream(3250)
		var first, second, third int64
		if _, err := fmt.Sscanf(writes(), "insert %d, update %d, update %d, end 3250", &first, &second, &third); err != nil {
			t.Fatalf("a stream of 3250 ms is written as %q, want an insert, two updates and the end: %v", writes(), err)
		}
		if first < 890 || first > 1010 || second-first < 990 || second-first > 1110 || third-second < 990 || third-second > 1110 {
			t.Errorf("the row in flight is written at %d, %d and %d ms, want the first at about 950 and then once a second", first, second, third)
		}
	})
}

func TestADuplicateIDIsNotWritten(t *testing.T) {
	l := newLedger(t)
	p := budget.Payer{Key: "key", Account: "acc"}
	first, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, demand(1, 1), nil)
	must(t, err)
	must(t, budget.OpenRow(t.Context(), first))
	second, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, demand(1, 1), nil)
	must(t, err)
	third, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, demand(1, 1), nil)
	must(t, err)
	if err := third.Settle(t.Context(), budget.Outcome{Prompt: 7}); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("Settle without Wait: got error %v, want ErrDuplicate", err)
	}
	if err := budget.OpenRow(t.Context(), second); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("Wait: got error %v, want ErrDuplicate", err)
	}
	if err := second.Settle(t.Context(), budget.Outcome{Prompt: 7}); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("Settle after Wait: got error %v, want ErrDuplicate", err)
	}
	settle(t, first, 1, 1)
	if got := rows(t, l); len(got) != 1 || got[0].PromptTokens != 1 {
		t.Errorf("rows: got %+v, want one with 1 prompt token", got)
	}
}

// snapshot copies a database in use, in the state in which a crash would leave it.
func snapshot(tb testing.TB, path string) string {
	tb.Helper()
	to := newPath(tb)
	for _, end := range []string{"", "-wal"} {
		in, err := os.Open(path + end)
		must(tb, err)
		out, err := os.Create(to + end)
		must(tb, err)
		_, err = io.Copy(out, in)
		must(tb, errors.Join(err, in.Close(), out.Close()))
	}
	return to
}

func TestCrashKeepsSettlementsAndCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		l := startLedger(t, openDatabase(t, path))
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		done := reserve(t, l, p, demand(10, 20))
		settle(t, done, 10, 15)
		quiet := reserve(t, l, p, demand(30, 100))
		stream := reserve(t, l, p, budget.Demand{PromptTokens: 90, Candidates: 1, MaxTokens: 100})
		stream.SetBackend("gpu1")
		stream.SetPromptTokens(40)
		stream.SetProgress(1)
		time.Sleep(2500 * time.Millisecond)
		stream.SetPromptTokens(40)
		stream.SetProgress(7)
		time.Sleep(time.Second)
		synctest.Wait()
		must(t, budget.OpenRow(t.Context(), stream))
		stream.SetPromptTokens(40)
		stream.SetProgress(8) // after the last checkpoint
		for range 2 {         // a second recovery has the same result
			recovered := startLedger(t, openDatabase(t, snapshot(t, path)))
			h, _ := recovered.Balance(p).TightestTotal()
			if h.Remaining() != 1000-25-30-47 {
				t.Errorf("%d tokens remain, want %d", h.Remaining(), 1000-25-30-47)
			}
			var got []string
			for _, r := range rows(t, recovered) {
				got = append(got, fmt.Sprint(r.State, " ", r.PromptTokens, " ", r.CompletionTokens, " ", r.Backend))
			}
			want := []string{"settled 10 15 ", "interrupted 30 0 ", "interrupted 40 7 gpu1"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rows (-want +got)\n%s", diff)
			}
		}
		settle(t, quiet, 30, 0)
		settle(t, stream, 40, 9)
	})
}

func TestStartCountsTheCurrentWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		p := budget.Payer{Key: "key", Account: "acc", KeyCaps: quota.Caps{quota.MonthTotal: quota.Limit(100)}}
		day := p
		day.KeyCaps = quota.Caps{quota.DayTotal: quota.Limit(100)}
		for i, when := range []string{"2000-01-31T23:59:59Z", "2000-02-01T00:00:01Z", "2000-02-29T00:00:01Z"} {
			time.Sleep(time.Until(parseTime(t, when)))
			db := openDatabase(t, path)
			l := startLedger(t, db)
			settle(t, reserve(t, l, p, demand(1, 9)), 1, int64(i))
			l.Close()
			must(t, db.Close())
		}
		l := startLedger(t, openDatabase(t, path))
		month, _ := l.Balance(p).TightestTotal()
		today, _ := l.Balance(day).TightestTotal()
		if month.Remaining() != 100-2-3 || today.Remaining() != 100-3 {
			t.Errorf("%d tokens of the month and %d of the day remain, want 95 and 97", month.Remaining(), today.Remaining())
		}
	})
}

// setDiskFull makes the database behave as on a full disk, or ends that.
func setDiskFull(tb testing.TB, db *database.DB, full bool) {
	tb.Helper()
	text := "PRAGMA max_page_count = 1000000"
	if full {
		text = "PRAGMA max_page_count = 1"
	}
	must(tb, db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(tb.Context(), text)
		return err
	}))
}

func TestFullDiskRefusesRequestsAndRetriesSettlements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		l := startLedger(t, db)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1<<20)
		var admitted []budget.Reservation
		for range 200 {
			admitted = append(admitted, reserve(t, l, p, demand(1, 9)))
		}
		must(t, budget.OpenRow(t.Context(), admitted[199]))
		setDiskFull(t, db, true)
		var refused budget.Reservation
		for refused == nil { // until the existing pages are full
			r := reserve(t, l, p, demand(1, 9))
			if err := budget.OpenRow(t.Context(), r); err != nil {
				if !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
				refused = r
			} else {
				admitted = append(admitted, r)
			}
		}
		// The row may be on disk although its write has failed, so its settlement, of 0 tokens, is written too.
		outcomes := map[budget.Reservation]budget.Outcome{refused: {Status: 503, Code: string(make([]byte, 2000))}}
		for _, r := range admitted {
			outcomes[r] = budget.Outcome{Prompt: 1, Completion: 5, Code: string(make([]byte, 2000))}
		}
		failed := 0
		for r, outcome := range outcomes {
			if err := r.Settle(t.Context(), outcome); err != nil {
				if !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
				failed++
			}
		}
		if failed <= 1 || l.Backlog() != failed {
			t.Errorf("%d settlements failed and %d are in the backlog, want equally many and more than 1", failed, l.Backlog())
		}
		if h, _ := l.Balance(p).TightestTotal(); h.Limit-h.Remaining() != int64(6*len(admitted)) {
			t.Errorf("%d tokens are charged, want %d", h.Limit-h.Remaining(), 6*len(admitted))
		}
		time.Sleep(3 * time.Second)
		setDiskFull(t, db, false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := l.Backlog(); n != 0 {
			t.Errorf("%d settlements are in the backlog, want 0", n)
		}
		if got := len(rows(t, l)); got != len(admitted)+1 {
			t.Errorf("got %d rows, want %d", got, len(admitted)+1)
		}
	})
}

// The response that the client gets instead is what it is charged for: in memory at once, on disk later.
func TestFallbackIsChargedIfTheOutcomeCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		db := openDatabase(t, path)
		l := startLedger(t, db)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
		plain, stream := reserve(t, l, p, demand(10, 90)), reserve(t, l, p, demand(10, 90))
		must(t, os.Rename(path, path+".away"))
		for r, fallback := range map[budget.Reservation]budget.Outcome{
			plain: {Status: 503, Code: "overloaded"}, stream: {Prompt: 10, Completion: 50, Status: 200, Code: "overloaded"},
		} {
			r.SetBackend("gpu1")
			outcome := budget.Outcome{Prompt: 10, Completion: 50, Status: 200, Fallback: &fallback}
			for range 2 {
				if err := r.Settle(t.Context(), outcome); !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
			}
		}
		if h, _ := l.Balance(p).TightestTotal(); h.Remaining() != 940 || l.Reserved() != 0 {
			t.Errorf("%d tokens remain and %d are reserved, want 940 and 0", h.Remaining(), l.Reserved())
		}
		must(t, os.Rename(path+".away", path))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		tokens := map[int]int64{503: 0, 200: 60} // by status
		for _, row := range rows(t, l) {
			if row.Code != "overloaded" || row.Backend != "gpu1" || row.PromptTokens+row.CompletionTokens != tokens[row.Status] {
				t.Errorf("got row %+v, want the fallback", row)
			}
		}
		if n := len(rows(t, l)); n != 2 || l.Backlog() != 0 {
			t.Errorf("%d rows, %d settlements in the backlog; want 2 and 0", n, l.Backlog())
		}
	})
}

// A settlement that is cancelled in the database's queue is not lost: the ledger writes what the client was charged.
func TestCancelledSettlementIsWrittenLater(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	r := reserve(t, l, payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000), demand(10, 90))
	blocks, unblock := make(chan struct{}), make(chan struct{})
	blocked := db.Submit(func(database.Tx) error { close(blocks); <-unblock; return nil })
	<-blocks
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.Settle(ended, budget.Outcome{Prompt: 10, Completion: 50, Fallback: &budget.Outcome{Status: 503}})
	close(unblock)
	must(t, blocked.Wait(t.Context()))
	if !errors.Is(err, database.ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want ErrCancelled with the cause", err)
	}
	l.Close()
	if got := rows(t, l); len(got) != 1 || got[0].State != usage.Settled || got[0].Status != 503 || got[0].PromptTokens != 0 {
		t.Errorf("got rows %+v, want the fallback", got)
	}
}

func TestWritesFailIfTheDatabaseIsClosed(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	held := reserve(t, l, budget.Payer{Key: "key"}, demand(1, 1))
	must(t, db.Close())
	r := reserve(t, l, budget.Payer{Key: "key"}, demand(1, 1))
	if err := budget.OpenRow(t.Context(), r); !errors.Is(err, database.ErrClosed) {
		t.Errorf("Wait: got error %v, want ErrClosed", err)
	}
	r.Release()
	if err := held.Settle(t.Context(), budget.Outcome{Prompt: 1}); !errors.Is(err, database.ErrClosed) {
		t.Errorf("Settle: got error %v, want ErrClosed", err)
	}
}

func TestCloseWritesReleasedReservations(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := startLedger(t, db)
	r := reserve(t, l, budget.Payer{Key: "key"}, demand(1, 9))
	r.SetPromptTokens(1)
	r.SetProgress(4)
	r.Release()
	l.Close()
	l.Close()
	if got := rows(t, l); len(got) != 1 || got[0].CompletionTokens != 4 {
		t.Errorf("rows: got %+v, want one with 4 completion tokens", got)
	}
}

// BenchmarkStart measures the time that this takes with a million rows.
func TestStartCountsAllRowsOfTheMonth(t *testing.T) {
	db := openDatabase(t, newPath(t))
	now := time.Now().UTC()
	insertRows(t, db, 20_000, time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC))
	l := startLedger(t, db)
	h, _ := l.Balance(budget.Payer{Key: "key_1", Account: "acc_1", KeyCaps: quota.Caps{quota.MonthTotal: quota.Limit(1 << 30)}}).TightestTotal()
	all := usageBy(t, l, usage.Filter{Key: "key_1"}, usage.ByKey)
	if used := h.Limit - h.Remaining(); len(all) != 1 || used != all[0].PromptTokens+all[0].CompletionTokens || used == 0 {
		t.Errorf("%d tokens are used, want the sum of %+v", used, all)
	}
}

func TestDuplicateIDAmongManySettlementsFailsAlone(t *testing.T) {
	l := newLedger(t)
	p := budget.Payer{Key: "key", Account: "acc"}
	request := func(id string) budget.Reservation {
		r, err := l.Reserve(t.Context(), p, budget.Request{ID: id}, demand(1, 1), nil)
		must(t, err)
		return r
	}
	inFlight := request("in flight")
	must(t, budget.OpenRow(t.Context(), inFlight))
	settle(t, request("settled"), 1, 1)
	const others = 64
	var duplicates atomic.Int64
	var all sync.WaitGroup
	for i := range others + 2 {
		id := fmt.Sprint("request ", i)
		switch i {
		case 20:
			id = "in flight"
		case 40:
			id = "settled"
		}
		r := request(id)
		all.Go(func() {
			err := r.Settle(t.Context(), budget.Outcome{Prompt: 2})
			if errors.Is(err, budget.ErrDuplicate) && (i == 20 || i == 40) {
				duplicates.Add(1)
			} else if err != nil {
				t.Errorf("%s: got error %v", id, err)
			}
		})
	}
	all.Wait()
	settle(t, inFlight, 1, 1)
	if got := duplicates.Load(); got != 2 {
		t.Errorf("%d settlements failed as duplicates, want 2", got)
	}
	ids := map[string]bool{}
	for _, r := range rows(t, l) {
		if ids[r.RequestID] {
			t.Errorf("%s has two rows", r.RequestID)
		}
		ids[r.RequestID] = true
	}
	if len(ids) != others+2 {
		t.Errorf("%d rows, want %d", len(ids), others+2)
	}
}
