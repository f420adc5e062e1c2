package history_test

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/console/history"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

func openDB(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(t.TempDir(), "history.db")), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clock is a clock that only the test moves.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 22, 10, 30, 5, 0, time.UTC)} }

func (c *clock) read() time.Time { return c.now }

// newHistory returns a History that is not started, with the given clock.
func newHistory(db *database.DB, c *clock, g history.Gauges) *history.History {
	h := history.New(db, usage.New(db, zap.NewNop()), func() history.Gauges { return g })
	h.SetClock(c.read)
	return h
}

func valueOf(p *float64) float64 {
	if p == nil {
		return math.NaN()
	}
	return *p
}

// find returns the series of a model and backend.
func find(t *testing.T, r history.Report, k history.Key) history.Series {
	t.Helper()
	for _, s := range r.Series {
		if s.Key == k {
			return s
		}
	}
	t.Fatalf("there is no series %+v in the report", k)
	return history.Series{}
}

// counts returns what can be compared of totals.
func counts(t history.Totals) [5]int64 {
	return [5]int64{t.Requests, t.Failed, t.Refused, t.Prompt, t.Completion}
}

func TestReportHasRatesByModelAndBackend(t *testing.T) {
	c := newClock()
	gpu1 := history.Key{Model: "m", Backend: "gpu1"}
	h := newHistory(openDB(t), c, history.Gauges{Waiting: 7, Running: 2, InFlight: map[history.Key]int{gpu1: 3}})
	h.Sample()
	for range 20 {
		h.Record(proxy.Ended{Model: "m", Backend: "gpu1", Prompt: 100, Completion: 50, FirstToken: 200 * time.Millisecond})
	}
	h.Record(proxy.Ended{Model: "m", Backend: "gpu2", Code: "out_of_memory"})
	h.Record(proxy.Ended{Code: "invalid_api_key"})
	h.Record(proxy.Ended{Model: "m", Backend: "gpu1", Code: "client_gone"})
	h.Record(proxy.Ended{Model: "m", Code: "overloaded"})
	h.Record(proxy.Ended{Model: "m", Code: "modal_cold_boot"}) // it starts, which is no error

	r := h.Read(time.Hour, history.Step)
	last := r.Points - 1
	for key, want := range map[history.Key]float64{
		{}: 2.5, {Model: "m"}: 2.4, gpu1: 2.1, {Model: "m", Backend: "gpu2"}: .1,
	} {
		if got := valueOf(find(t, r, key).Requests[last]); math.Abs(got-want) > 1e-9 {
			t.Errorf("requests a second of %+v: got %v, want %v", key, got, want)
		}
	}
	s := find(t, r, gpu1)
	if got := valueOf(s.Tokens[last]); got != 300 {
		t.Errorf("tokens a second: got %v, want 300", got)
	}
	if got := valueOf(s.InFlight[last]); got != 3 {
		t.Errorf("attempts in flight: got %v, want 3", got)
	}
	if got := *find(t, r, history.Key{}).Total; got.Requests != 25 || got.Failed != 2 || got.Refused != 2 ||
		got.Prompt != 2000 || got.Completion != 1000 {
		t.Errorf("got totals %v, want 25 requests, 2 of them failed and 2 refused, 2000 and 1000 tokens", counts(got))
	}
	if got := valueOf(r.Waiting[last]); got != 7 {
		t.Errorf("queue depth: got %v, want 7", got)
	}
	var codes []string
	for _, c := range r.Codes {
		codes = append(codes, fmt.Sprintf("%d %s of %q: %s", c.Total, c.Code, c.Model, c.Outcome))
	}
	if got, want := strings.Join(codes, ", "), `1 client_gone of "m": client left, 1 invalid_api_key of "": refused, 1 modal_cold_boot of "m": refused, 1 out_of_memory of "m": error, 1 overloaded of "m": error`; got != want {
		t.Errorf("error codes: got %s, want %s", got, want)
	}
	if s := find(t, r, history.Key{}); valueOf(s.Failed[last]) != 2 || valueOf(s.Refused[last]) != 3 {
		t.Errorf("in the last interval: got %v errors of the service and %v refusals and clients that left, want 2 and 3",
			valueOf(s.Failed[last]), valueOf(s.Refused[last]))
	}
}

func TestQuantilesAreWithinAnEighth(t *testing.T) {
	h := newHistory(openDB(t), newClock(), history.Gauges{})
	for i := range 1000 {
		h.Record(proxy.Ended{Model: "m", FirstToken: time.Duration(i+1) * time.Millisecond})
	}
	got := find(t, h.Read(time.Hour, time.Minute), history.Key{Model: "m"}).Total
	for _, q := range []struct {
		name      string
		got, want float64
	}{{"p50", valueOf(got.FirstToken(.5)), .5}, {"p95", valueOf(got.FirstToken(.95)), .95}} {
		if !(math.Abs(q.got-q.want) <= .125*q.want) {
			t.Errorf("%s: got %v s, want %v s within an eighth", q.name, q.got, q.want)
		}
	}
}

// A gap in a chart says that the gateway did not run; a zero says that nobody called it.
func TestTimesWithoutTheGatewayAreUnknown(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	h.Sample()
	c.now = c.now.Add(10 * time.Minute)
	h.Sample()
	r := h.Read(time.Hour, history.Step)
	all := find(t, r, history.Key{})
	if got := valueOf(all.Requests[r.Points-1]); got != 0 {
		t.Errorf("while the gateway ran without requests: got %v a second, want 0", got)
	}
	if got := all.Requests[r.Points-30]; got != nil {
		t.Errorf("while the gateway did not run: got %v requests a second, want none known", *got)
	}
	if got := r.Waiting[r.Points-30]; got != nil {
		t.Errorf("while the gateway did not run: got a queue depth of %v, want none known", *got)
	}
}

// end inserts requests that have ended into the ledger, and numbers of refused ones.
func end(t *testing.T, db *database.DB, requests ...usage.Row) {
	t.Helper()
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		const account = `INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('acc', 'a@example.org', '', false, 'active', 1)
			ON CONFLICT DO NOTHING`
		if _, err := tx.ExecContext(t.Context(), account); err != nil {
			return err
		}
		for i, r := range requests {
			var err error
			if r.Model == "" {
				_, err = tx.ExecContext(t.Context(), `INSERT INTO refusal_hours (account_id, period, code, requests) VALUES ('acc', $1, $2, $3)`,
					r.Time.Unix()/3600, r.Code, r.Requests)
			} else {
				_, err = tx.ExecContext(t.Context(), `
					INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
						status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
					VALUES ($1, $2, 'key', 'acc', $3, 'gpu1', '', '', '', true, 200, $4, $5, $6, $7, 0, $8, $9)`,
					fmt.Sprint("req", i), r.Time.UnixMicro(), r.Model, r.Code, string(cmp.Or(r.State, usage.Settled)), r.PromptTokens, r.CompletionTokens,
					r.FirstToken.Microseconds(), 2*r.FirstToken.Microseconds())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// The day is what the ledger has of all gateways, and outlives a restart. The queue and the backends are this gateway's.
func TestDayHasWhatTheLedgerKnows(t *testing.T) {
	db, c := openDB(t), newClock()
	gpu1 := history.Key{Model: "m", Backend: "gpu1"}
	h := newHistory(db, c, history.Gauges{Waiting: 7, Running: 2, InFlight: map[history.Key]int{gpu1: 3}})
	h.Sample()
	h.Record(proxy.Ended{Model: "m", Backend: "gpu1", Code: "overloaded", Prompt: 5})
	h.Record(proxy.Ended{Model: "only here", Code: "overloaded"})
	hour := c.now.Truncate(time.Hour)
	end(t, db,
		usage.Row{Time: hour.Add(time.Minute), Model: "m", PromptTokens: 1000, CompletionTokens: 800, FirstToken: 500 * time.Millisecond},
		usage.Row{Time: hour.Add(-time.Minute), Model: "m", Code: "out_of_memory"},
		usage.Row{Time: hour.Add(-time.Minute), Model: "n", Code: "client_gone"},
		usage.Row{Time: hour.Add(-time.Minute), Model: "n", State: usage.Interrupted},
		usage.Row{Time: hour.Add(-23 * time.Hour), Model: "n", Code: "context_length_exceeded"},
		usage.Row{Time: hour.Add(-23*time.Hour - time.Second), Model: "n", Code: "out_of_memory"}, // a day ago
		usage.Row{Time: hour.Add(-2 * time.Hour), Code: "budget_exceeded", Requests: 4},
	)
	r, err := h.Day(t.Context(), "reader")
	must(t, err)
	if !r.Begin.Equal(hour.Add(-23*time.Hour)) || r.Points != 24 || r.Interval != time.Hour {
		t.Errorf("got %d points of %v from %v, want 24 hours with the current one", r.Points, r.Interval, r.Begin)
	}
	for key, want := range map[history.Key]history.Totals{
		{}:           {Requests: 9, Failed: 2, Refused: 5, Prompt: 1000, Completion: 800},
		{Model: "m"}: {Requests: 2, Failed: 1, Prompt: 1000, Completion: 800},
		{Model: "n"}: {Requests: 3, Failed: 1, Refused: 1},
		gpu1:         {Requests: 1, Failed: 1, Prompt: 5},
	} {
		got := *find(t, r, key).Total
		if counts(got) != counts(want) {
			t.Errorf("totals of %+v: got %v, want %v", key, counts(got), counts(want))
		}
	}
	if len(r.Series) != 4 {
		t.Errorf("got %d series, want no requests of this gateway beside those of the ledger", len(r.Series))
	}
	m := find(t, r, history.Key{Model: "m"})
	if got := valueOf(m.Tokens[23]); got != .5 {
		t.Errorf("tokens a second in the current hour: got %v, want 0.5", got)
	}
	if got := valueOf(m.FirstToken[23]); !(math.Abs(got-.5) <= .0625) || m.FirstToken[22] != nil {
		t.Errorf("median time to first token: got %v s, want 0.5 s in the current hour only", got)
	}
	if got := valueOf(r.Waiting[23]); got != 7 || r.Waiting[22] != nil {
		t.Errorf("queue depth: got %v in the current hour, want 7, and none known before", got)
	}
	if got := valueOf(find(t, r, gpu1).InFlight[23]); got != 3 {
		t.Errorf("attempts in flight: got %v, want 3", got)
	}
	var codes []string
	for _, c := range r.Codes {
		codes = append(codes, fmt.Sprintf("%d %s of %q", c.Total, c.Code, c.Model))
	}
	if got, want := strings.Join(codes, ", "), `4 budget_exceeded of "", 1 client_gone of "n", 1 context_length_exceeded of "n", 1 interrupted of "n", 1 out_of_memory of "m"`; got != want {
		t.Errorf("error codes: got %s, want %s", got, want)
	}
}

// A restart empties the last hour, and keeps events.
func TestEventsAreKeptOverARestart(t *testing.T) {
	db, c := openDB(t), newClock()
	before := newHistory(db, c, history.Gauges{Waiting: 1})
	before.Start(t.Context())
	before.Record(proxy.Ended{Model: "m"})
	before.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Detail: "5 failures"})
	before.Close()

	after := newHistory(db, c, history.Gauges{})
	after.Start(t.Context())
	defer after.Close()
	if got := find(t, after.Read(time.Hour, history.Step), history.Key{}).Total.Requests; got != 0 {
		t.Errorf("after the restart: got %d requests, want none", got)
	}
	got := events(t, after, c.now.Add(-time.Hour))
	if len(got) != 1 || got[0].Kind != history.BreakerOpened || got[0].Detail != "5 failures" || !got[0].Time.Equal(c.now) {
		t.Errorf("after the restart: got events %+v, want the breaker's", got)
	}
}

// events returns the events since a time, once all are written.
func events(t *testing.T, h *history.History, since time.Time) []history.Event {
	t.Helper()
	must(t, h.Flush(t.Context()))
	all, err := h.Events(t.Context(), since, 100)
	must(t, err)
	return all
}

func TestMemoryIsBoundedByTime(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	for range 30 * 360 {
		h.Record(proxy.Ended{Model: "m"})
		c.now = c.now.Add(history.Step)
	}
	c.now = c.now.Add(-history.Step)
	if got := find(t, h.Read(time.Hour, history.Step), history.Key{Model: "m"}).Total.Requests; got != 360 {
		t.Errorf("got %d requests of the last hour, want 360", got)
	}
	if got := find(t, h.Read(3*time.Hour, time.Hour), history.Key{Model: "m"}).Total.Requests; got > 360 {
		t.Errorf("got %d requests in memory, want an hour's", got)
	}
}

func TestOldEventsAreDeleted(t *testing.T) {
	db, c := openDB(t), newClock()
	h := newHistory(db, c, history.Gauges{})
	for range 30 {
		h.Add(t.Context(), history.Event{Kind: history.BootBegun})
		c.now = c.now.Add(time.Hour)
	}
	must(t, h.Flush(t.Context()))
	var rows int
	must(t, db.Read().QueryRow("SELECT count(*) FROM history_events").Scan(&rows))
	if rows != 25 {
		t.Errorf("got %d rows after 30 hours, want those of a day", rows)
	}
}

func TestTotalsAreThoseOfTheLastMinutesWhateverTheClockSays(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	hour := c.now.Truncate(time.Hour).Add(time.Hour)
	for _, at := range []time.Duration{-2 * time.Minute, 3 * time.Minute} {
		c.now = hour.Add(at)
		h.Record(proxy.Ended{Model: "m", Completion: 100, FirstToken: time.Second})
	}
	for _, x := range []struct {
		after time.Duration
		want  int64
	}{
		{3 * time.Minute, 2}, {57 * time.Minute, 2}, {59 * time.Minute, 1}, {62 * time.Minute, 1}, {64 * time.Minute, 0},
	} {
		c.now = hour.Add(x.after)
		var got history.Totals
		if of := h.Totals(time.Hour)[history.Key{Model: "m"}]; of != nil {
			got = *of
		}
		if got.Requests != x.want || got.Completion != 100*x.want || (got.FirstToken(.5) != nil) != (x.want > 0) {
			t.Errorf("%v after the hour: got %v, want %d requests", x.after, counts(got), x.want)
		}
	}
}

func TestEventsAreTheNewestFirstAndShort(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	h.Add(t.Context(), history.Event{Kind: history.BootBegun})
	c.now = c.now.Add(2 * time.Hour)
	h.Add(t.Context(), history.Event{Kind: history.BootFailed, Detail: strings.Repeat("é", 500)})
	all := events(t, h, c.now.Add(-3*time.Hour))
	if len(all) != 2 || all[0].Kind != history.BootFailed || all[1].Kind != history.BootBegun {
		t.Fatalf("got %+v, want the failed boot before its begin", all)
	}
	if n := len(all[0].Detail); n > 310 || strings.ContainsRune(all[0].Detail, '\uFFFD') {
		t.Errorf("got a detail of %d bytes: %q, want it cut at a character", n, all[0].Detail)
	}
	if got := events(t, h, c.now.Add(-time.Hour)); len(got) != 1 {
		t.Errorf("got %d events of the last hour, want 1", len(got))
	}
}

// An event that several gateways record is shown once, with the earliest time.
func TestEventsOfAllGatewaysAreShownOnce(t *testing.T) {
	db, c := openDB(t), newClock()
	var shown *history.History
	for i, name := range []string{"a", "b", "c"} {
		shown = newHistory(db, c, history.Gauges{})
		shown.ShareAs(name)
		shown.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Time: c.now.Add(time.Duration(i) * time.Second)})
	}
	// The same gateway records that it has opened again.
	shown.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu2", Time: c.now.Add(10 * time.Second)})
	shown.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu2", Time: c.now.Add(20 * time.Second)})
	shown.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Time: c.now.Add(5 * time.Minute)})
	var got []string
	for _, e := range events(t, shown, c.now.Add(-time.Hour)) {
		got = append(got, fmt.Sprint(e.Backend, " ", e.Time.Sub(c.now)))
	}
	if want := "gpu1 5m0s, gpu2 20s, gpu2 10s, gpu1 0s"; strings.Join(got, ", ") != want {
		t.Errorf("got the events %s, want %s", strings.Join(got, ", "), want)
	}
}
