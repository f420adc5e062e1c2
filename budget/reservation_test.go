package budget_test

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/database"
	"basegate/quota"
)

// rows are the requests that have ended, oldest first, without their times.
func rows(tb testing.TB, l *budget.Ledger) []budget.Row {
	tb.Helper()
	all, err := l.Usage(tb.Context(), budget.Filter{}, budget.ByRequest)
	must(tb, err)
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}

func TestARowTellsWhatHappened(t *testing.T) {
	l := newLedger(t)
	q := budget.Request{
		ID: "req_1", KeyID: "nobody", Model: "llama-8b", Endpoint: "/v1/completions", Workload: "batch", User: "š",
		Stream: true, Time: time.Now().Add(-time.Millisecond).UTC().Truncate(time.Microsecond),
	}
	r, err := l.Reserve(t.Context(), budget.Payer{Key: "key", Account: "acc"}, q, exactly(10, 20), nil)
	must(t, err)
	must(t, r.Wait(t.Context()))
	if len(rows(t, l)) != 0 {
		t.Error("a request in flight is usage")
	}
	r.SetBackend("gpu1")
	r.SetBackend("gpu2")
	must(t, r.Settle(t.Context(), budget.Outcome{
		Prompt: 9, Completion: 4, Status: 502, Code: "vllm_oom",
		Queue: time.Microsecond, FirstToken: time.Millisecond, Total: time.Second,
	}))
	want := []budget.Row{{
		Requests: 1, PromptTokens: 9, CompletionTokens: 4, Time: q.Time, KeyID: "key", AccountID: "acc", Model: "llama-8b",
		RequestID: "req_1", Backend: "gpu2", Endpoint: "/v1/completions", Workload: "batch", User: "š", Stream: true,
		Status: 502, Code: "vllm_oom", State: budget.Settled,
		Queue: time.Microsecond, FirstToken: time.Millisecond, Total: time.Second,
	}}
	if diff := cmp.Diff(want, rows(t, l)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSettleTwiceChangesNothing(t *testing.T) {
	l := newLedger(t)
	p := capOf(budget.Key, budget.Month, budget.Total, 100)
	r := reserve(t, l, p, exactly(10, 20))
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
	if h, _ := l.Tightest(p); h.Remaining != 85 || l.Reserved() != 0 {
		t.Errorf("%d remain, %d reserved", h.Remaining, l.Reserved())
	}
	if got := rows(t, l); len(got) != 1 || got[0].CompletionTokens != 5 || got[0].State != budget.Settled {
		t.Errorf("%+v", got)
	}
}

func TestReleaseChargesWhatIsKnown(t *testing.T) {
	l := newLedger(t)
	p := capOf(budget.Key, budget.Month, budget.Total, 100)
	reserve(t, l, p, exactly(10, 20)).Release()
	if h, _ := l.Tightest(p); h.Remaining != 100 {
		t.Errorf("%d remain where nothing is known", h.Remaining)
	}
	r := reserve(t, l, p, exactly(10, 20))
	r.SetPromptTokens(9)
	r.SetProgress(3)
	r.Release()
	r.Release()
	if h, _ := l.Tightest(p); h.Remaining != 88 {
		t.Errorf("%d remain", h.Remaining)
	}
	must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 50})) // too late, and says whether the end is on disk
	got := rows(t, l)
	if len(got) != 2 || got[1].PromptTokens != 9 || got[1].CompletionTokens != 3 || got[1].State != budget.Interrupted {
		t.Errorf("%+v", got)
	}
}

// Most requests end soon, and then their end is their one write.
func TestARequestThatLastsIsOnDiskBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		l := start(t, db)
		inFlight := func() (n int) {
			must(t, db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM requests WHERE state = 'in_flight'`).Scan(&n))
			return n
		}
		p := budget.Payer{Key: "key", Account: "acc"}
		soon := reserve(t, l, p, exactly(1, 1))
		settle(t, soon, 1, 1)
		must(t, soon.Wait(t.Context())) // too late, and nothing to wait for
		lasting := reserve(t, l, p, exactly(1, 1))
		time.Sleep(time.Millisecond)
		if n := inFlight(); n != 0 {
			t.Errorf("%d rows at once", n)
		}
		time.Sleep(time.Second)
		if n := inFlight(); n != 1 {
			t.Errorf("%d rows after a second", n)
		}
		settle(t, lasting, 1, 1)
		if got := rows(t, l); len(got) != 2 {
			t.Errorf("%d rows in the end", len(got))
		}
	})
}

func TestAnIdIsOnTheLedgerOnce(t *testing.T) {
	l := newLedger(t)
	p := budget.Payer{Key: "key", Account: "acc"}
	first, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, exactly(1, 1), nil)
	must(t, err)
	must(t, first.Wait(t.Context()))
	second, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, exactly(1, 1), nil)
	must(t, err)
	third, err := l.Reserve(t.Context(), p, budget.Request{ID: "same"}, exactly(1, 1), nil)
	must(t, err)
	if err := third.Settle(t.Context(), budget.Outcome{Prompt: 7}); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("it is closed without having been opened: %v", err)
	}
	if err := second.Wait(t.Context()); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("it is opened: %v", err)
	}
	if err := second.Settle(t.Context(), budget.Outcome{Prompt: 7}); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("it is closed: %v", err)
	}
	settle(t, first, 1, 1)
	if got := rows(t, l); len(got) != 1 || got[0].PromptTokens != 1 {
		t.Errorf("%+v", got)
	}
}

// snapshot copies a database that is in use, as a crash would leave it.
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

func TestACrashLosesNothingThatWasFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		l := start(t, openDatabase(t, path))
		p := capOf(budget.Key, budget.Month, budget.Total, 1000)
		done := reserve(t, l, p, exactly(10, 20))
		settle(t, done, 10, 15)
		quiet := reserve(t, l, p, exactly(30, 100))
		stream := reserve(t, l, p, budget.Demand{PromptTokens: 90, Candidates: 1, MaxTokens: 100})
		stream.SetBackend("gpu1")
		stream.SetPromptTokens(40)
		stream.SetProgress(1)
		time.Sleep(2500 * time.Millisecond)
		stream.SetPromptTokens(40)
		stream.SetProgress(7)
		time.Sleep(time.Second)
		synctest.Wait()
		must(t, stream.Wait(t.Context()))
		stream.SetPromptTokens(40)
		stream.SetProgress(8) // not yet a second old
		for range 2 {         // a second crash changes nothing more
			again := start(t, openDatabase(t, snapshot(t, path)))
			h, _ := again.Tightest(p)
			if h.Remaining != 1000-25-30-47 {
				t.Errorf("%d remain", h.Remaining)
			}
			var got []string
			for _, r := range rows(t, again) {
				got = append(got, name(r.State, " ", r.PromptTokens, " ", r.CompletionTokens, " ", r.Backend))
			}
			want := []string{"settled 10 15 ", "interrupted 30 0 ", "interrupted 40 7 gpu1"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
		settle(t, quiet, 30, 0)
		settle(t, stream, 40, 9)
	})
}

func TestAStartCountsThePresentWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		p := budget.Payer{Key: "key", Account: "acc", KeyCaps: quota.Caps{MonthTotal: quota.Limit(100)}}
		day := p
		day.KeyCaps = quota.Caps{DayTotal: quota.Limit(100)}
		for i, when := range []string{"2000-01-31T23:59:59Z", "2000-02-01T00:00:01Z", "2000-02-29T00:00:01Z"} {
			time.Sleep(time.Until(at(t, when)))
			db := openDatabase(t, path)
			l := start(t, db)
			settle(t, reserve(t, l, p, exactly(1, 9)), 1, int64(i))
			l.Close()
			must(t, db.Close())
		}
		l := start(t, openDatabase(t, path))
		month, _ := l.Tightest(p)
		today, _ := l.Tightest(day)
		if month.Remaining != 100-2-3 || today.Remaining != 100-3 {
			t.Errorf("%d of the month and %d of the day remain", month.Remaining, today.Remaining)
		}
	})
}

// full makes the database behave as on a full disk, or as on an empty one again.
func full(tb testing.TB, db *database.DB, yes bool) {
	tb.Helper()
	text := "PRAGMA max_page_count = 1000000"
	if yes {
		text = "PRAGMA max_page_count = 1"
	}
	must(tb, db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(context.WithoutCancel(tb.Context()), text)
		return err
	}))
}

func TestAFullDiskRefusesAndIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		l := start(t, db)
		p := capOf(budget.Key, budget.Month, budget.Total, 1<<20)
		var before []*budget.Reservation
		for range 200 {
			before = append(before, reserve(t, l, p, exactly(1, 9)))
		}
		must(t, before[199].Wait(t.Context()))
		full(t, db, true)
		var refused *budget.Reservation
		for refused == nil { // until the pages that there are have no room
			r := reserve(t, l, p, exactly(1, 9))
			if err := r.Wait(t.Context()); err != nil {
				if !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
				refused = r
			} else {
				before = append(before, r)
			}
		}
		// Its row may be on disk although its write has failed, so its end is written too, and costs nothing.
		if err := refused.Settle(t.Context(), budget.Outcome{Status: 503, Code: "overloaded"}); !errors.Is(err, database.ErrUnavailable) {
			t.Fatal(err)
		}
		long := budget.Outcome{Prompt: 1, Completion: 5, Code: string(make([]byte, 2000))}
		failed := 1
		for _, r := range before {
			if err := r.Settle(t.Context(), long); err != nil {
				if !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
				failed++
			}
		}
		if failed == 1 || l.Backlog() != failed {
			t.Errorf("%d rows were not written, %d wait", failed, l.Backlog())
		}
		if h, _ := l.Tightest(p); h.Limit-h.Remaining != int64(6*len(before)) {
			t.Errorf("%d tokens are charged", h.Limit-h.Remaining)
		}
		time.Sleep(3 * time.Second)
		full(t, db, false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := l.Backlog(); n != 0 {
			t.Errorf("%d rows still wait", n)
		}
		if got := len(rows(t, l)); got != len(before)+1 {
			t.Errorf("%d of %d rows", got, len(before)+1)
		}
	})
}

// What the client is told instead is what it costs, in memory at once and on disk later.
func TestAnEndThatCannotBeWrittenIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		db := openDatabase(t, path)
		l := start(t, db)
		p := capOf(budget.Key, budget.Month, budget.Total, 1000)
		plain, stream := reserve(t, l, p, exactly(10, 90)), reserve(t, l, p, exactly(10, 90))
		must(t, os.Rename(path, path+".away"))
		for r, unwritten := range map[*budget.Reservation]budget.Outcome{
			plain: {Status: 503, Code: "overloaded"}, stream: {Prompt: 10, Completion: 50, Status: 200, Code: "overloaded"},
		} {
			r.SetBackend("gpu1")
			end := budget.Outcome{Prompt: 10, Completion: 50, Status: 200, Fallback: &unwritten}
			for range 2 {
				if err := r.Settle(t.Context(), end); !errors.Is(err, database.ErrUnavailable) {
					t.Fatal(err)
				}
			}
		}
		if h, _ := l.Tightest(p); h.Remaining != 940 || l.Reserved() != 0 {
			t.Errorf("%d remain, %d are reserved", h.Remaining, l.Reserved())
		}
		must(t, os.Rename(path+".away", path))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, row := range rows(t, l) {
			if row.Code != "overloaded" || row.Backend != "gpu1" || row.PromptTokens+row.CompletionTokens != map[int]int64{503: 0, 200: 60}[row.Status] {
				t.Errorf("%+v", row)
			}
		}
		if n := len(rows(t, l)); n != 2 || l.Backlog() != 0 {
			t.Errorf("%d rows, %d wait", n, l.Backlog())
		}
	})
}

func TestAClosedDatabaseRefuses(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := start(t, db)
	held := reserve(t, l, budget.Payer{Key: "key"}, exactly(1, 1))
	must(t, db.Close())
	r := reserve(t, l, budget.Payer{Key: "key"}, exactly(1, 1))
	if err := r.Wait(t.Context()); !errors.Is(err, database.ErrClosed) {
		t.Errorf("opened: %v", err)
	}
	r.Release()
	if err := held.Settle(t.Context(), budget.Outcome{Prompt: 1}); !errors.Is(err, database.ErrClosed) {
		t.Errorf("settled: %v", err)
	}
}

func TestCloseWritesWhatCanBeWritten(t *testing.T) {
	db := openDatabase(t, newPath(t))
	l := start(t, db)
	r := reserve(t, l, budget.Payer{Key: "key"}, exactly(1, 9))
	r.SetPromptTokens(1)
	r.SetProgress(4)
	r.Release()
	l.Close()
	l.Close()
	if got := rows(t, l); len(got) != 1 || got[0].CompletionTokens != 4 {
		t.Errorf("%+v", got)
	}
}

func TestAMillionRowsAreCountedInTwoSeconds(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("takes a while")
	}
	db := openDatabase(t, newPath(t))
	now := time.Now().UTC()
	fill(t, db, 1_000_000, time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC))
	began := time.Now()
	l := start(t, db)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it takes %s", took)
	}
	h, _ := l.Tightest(budget.Payer{Key: "key_1", Account: "acc_1", KeyCaps: quota.Caps{MonthTotal: quota.Limit(1 << 30)}})
	all, err := l.Usage(t.Context(), budget.Filter{Key: "key_1"}, budget.ByKey)
	must(t, err)
	if used := h.Limit - h.Remaining; len(all) != 1 || used != all[0].PromptTokens+all[0].CompletionTokens || used == 0 {
		t.Errorf("%d tokens are used by %+v", used, all)
	}
}
