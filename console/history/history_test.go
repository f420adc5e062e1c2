package history_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/console/history"
	"basegate/database"
	"basegate/internal/databasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

func openDB(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(t.TempDir(), "history.db")), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// clock is a clock that only the test moves.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 22, 10, 30, 5, 0, time.UTC)} }

func (c *clock) read() time.Time { return c.now }

// newHistory returns a History that is not started, with the given clock.
func newHistory(db *database.DB, c *clock, g history.Gauges) *history.History {
	h := history.New(db, zap.NewNop(), func() history.Gauges { return g })
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

func TestReportHasRatesByModelAndBackend(t *testing.T) {
	c := newClock()
	gpu1 := history.Key{Model: "m", Backend: "gpu1"}
	h := newHistory(openDB(t), c, history.Gauges{Waiting: 7, Running: 2, InFlight: map[history.Key]int{gpu1: 3}})
	h.Sample()
	for range 20 {
		h.Record(history.Request{Model: "m", Backend: "gpu1", Prompt: 100, Completion: 50, FirstToken: 200 * time.Millisecond})
	}
	h.Record(history.Request{Model: "m", Backend: "gpu2", Code: "out_of_memory"})
	h.Record(history.Request{Code: "invalid_api_key"})
	h.Record(history.Request{Model: "m", Backend: "gpu1", Code: "client_gone"})
	h.Record(history.Request{Model: "m", Code: "overloaded"})

	r := h.Read(time.Hour, history.Step)
	last := r.Points - 1
	for key, want := range map[history.Key]float64{
		{}: 2.4, {Model: "m"}: 2.3, gpu1: 2.1, {Model: "m", Backend: "gpu2"}: .1,
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
	if got := find(t, r, history.Key{}).Total; got.Requests != 24 || got.Failed != 2 || got.Refused != 1 ||
		got.Prompt != 2000 || got.Completion != 1000 {
		t.Errorf("got totals %+v, want 24 requests, 2 of them failed and 1 refused, 2000 and 1000 tokens", got)
	}
	if got := valueOf(r.Waiting[last]); got != 7 {
		t.Errorf("queue depth: got %v, want 7", got)
	}
	var codes []string
	for _, c := range r.Codes {
		codes = append(codes, fmt.Sprintf("%d %s of %q", c.Total, c.Code, c.Model))
	}
	if got, want := strings.Join(codes, ", "), `1 client_gone of "m", 1 invalid_api_key of "", 1 out_of_memory of "m", 1 overloaded of "m"`; got != want {
		t.Errorf("error codes: got %s, want %s", got, want)
	}
}

func TestQuantilesAreWithinAFifth(t *testing.T) {
	h := newHistory(openDB(t), newClock(), history.Gauges{})
	for i := range 1000 {
		h.Record(history.Request{Model: "m", FirstToken: time.Duration(i+1) * time.Millisecond})
	}
	got := find(t, h.Read(time.Hour, time.Minute), history.Key{Model: "m"}).Total
	for _, q := range []struct {
		name      string
		got, want float64
	}{{"p50", valueOf(got.FirstTokenP50), .5}, {"p95", valueOf(got.FirstTokenP95), .95}} {
		if !(math.Abs(q.got-q.want) <= .2*q.want) {
			t.Errorf("%s: got %v s, want %v s within a fifth", q.name, q.got, q.want)
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

func TestHistoryIsKeptOverARestart(t *testing.T) {
	db, c := openDB(t), newClock()
	before := newHistory(db, c, history.Gauges{Waiting: 1})
	before.Start(t.Context())
	before.Record(history.Request{Model: "m", Backend: "gpu1", Prompt: 10, Completion: 5, Code: "timeout", FirstToken: time.Second})
	before.Add(history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Detail: "5 failures"})
	before.Close()
	want := before.Read(time.Hour, history.Step)

	after := newHistory(db, c, history.Gauges{})
	after.Start(t.Context())
	defer after.Close()
	got := after.Read(time.Hour, history.Step)
	gotTotal, wantTotal := find(t, got, history.Key{Model: "m", Backend: "gpu1"}).Total, find(t, want, history.Key{Model: "m", Backend: "gpu1"}).Total
	if gotTotal.Requests != 1 || gotTotal.Failed != 1 || gotTotal.Prompt != 10 || gotTotal.Completion != 5 ||
		valueOf(gotTotal.FirstTokenP50) != valueOf(wantTotal.FirstTokenP50) {
		t.Errorf("after the restart: got %+v, want %+v", gotTotal, wantTotal)
	}
	if len(got.Codes) != 1 || got.Codes[0].Code != "timeout" || got.Codes[0].Total != 1 {
		t.Errorf("after the restart: got error codes %+v, want one timeout", got.Codes)
	}
	events := after.Events(c.now.Add(-time.Hour), 10)
	if len(events) != 1 || events[0].Kind != history.BreakerOpened || events[0].Detail != "5 failures" || !events[0].Time.Equal(c.now) {
		t.Errorf("after the restart: got events %+v, want the breaker's", events)
	}
}

func TestMemoryIsBoundedWhateverTheNumberOfModels(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{InFlight: map[history.Key]int{{Model: "late", Backend: "b"}: 1}})
	const models = 300
	for i := range models {
		h.Record(history.Request{Model: fmt.Sprintf("m%d", i), Backend: "b", Code: fmt.Sprintf("code%d", i)})
	}
	h.Sample()
	for i := range 3 * history.MaxEvents {
		h.Add(history.Event{Kind: history.BootBegun, Detail: fmt.Sprint(i)})
	}
	r := h.Read(time.Hour, history.Step)
	if len(r.Series) > history.MaxSeries+1 || len(r.Codes) > history.MaxCodes+1 {
		t.Errorf("got %d series and %d codes, want at most %d and %d", len(r.Series), len(r.Codes), history.MaxSeries+1, history.MaxCodes+1)
	}
	if got := find(t, r, history.Key{}).Total.Requests; got != models {
		t.Errorf("got %d requests in all, want %d", got, models)
	}
	var byModel, byCode int64
	for _, s := range r.Series {
		if s.Model != "" && s.Backend == "" {
			byModel += s.Total.Requests
		}
	}
	for _, s := range r.Codes {
		byCode += s.Total
	}
	if byModel != models || byCode != models {
		t.Errorf("got %d requests by model and %d by code, want %d", byModel, byCode, models)
	}
	if find(t, r, history.Key{Model: history.OtherModels}).Total.Requests == 0 {
		t.Errorf("no requests are counted as %q", history.OtherModels)
	}
	events := h.Events(time.Time{}, 10*history.MaxEvents)
	if len(events) != history.MaxEvents || events[0].Detail != fmt.Sprint(3*history.MaxEvents-1) {
		t.Errorf("got %d events, want the latest %d", len(events), history.MaxEvents)
	}
	for range 100 {
		c.now = c.now.Add(time.Hour)
		h.Sample()
	}
	if got := h.Hours(); got > 26 {
		t.Errorf("got %d hours in memory after 100, want a day's", got)
	}
}

func TestRowsOlderThanADayAreDeleted(t *testing.T) {
	db, c := openDB(t), newClock()
	h := newHistory(db, c, history.Gauges{})
	for range 30 {
		h.Sample()
		h.Save(t.Context())
		c.now = c.now.Add(time.Hour)
	}
	var rows int
	if err := db.Read().QueryRow("SELECT count(*) FROM history_hours").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows < 24 || rows > 26 {
		t.Errorf("got %d rows after 30 hours, want one for each hour of a day", rows)
	}
}

func TestTotalsAreThoseOfTheLastMinutesWhateverTheClockSays(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	hour := c.now.Truncate(time.Hour).Add(time.Hour)
	for _, at := range []time.Duration{-2 * time.Minute, 3 * time.Minute} {
		c.now = hour.Add(at)
		h.Record(history.Request{Model: "m", Completion: 100, FirstToken: time.Second})
	}
	for _, x := range []struct {
		after time.Duration
		want  int64
	}{
		{3 * time.Minute, 2}, {57 * time.Minute, 2}, {59 * time.Minute, 1}, {62 * time.Minute, 1}, {64 * time.Minute, 0},
	} {
		c.now = hour.Add(x.after)
		var got history.Totals
		for _, s := range h.Totals(time.Hour) {
			if s.Key == (history.Key{Model: "m"}) {
				got = s.Total
			}
		}
		if got.Requests != x.want || got.Completion != 100*x.want || (got.FirstTokenP50 != nil) != (x.want > 0) {
			t.Errorf("%v after the hour: got %+v, want %d requests", x.after, got, x.want)
		}
	}
}

func TestAnHourThatCannotBeReadIsLeftOut(t *testing.T) {
	db, c := openDB(t), newClock()
	h := newHistory(db, c, history.Gauges{})
	h.Record(history.Request{Model: "m"})
	h.Save(t.Context())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(context.Background(), "INSERT INTO history_hours (hour, data) VALUES ($1, $2)",
			c.now.Truncate(time.Hour).Add(-time.Hour).Unix(), []byte("garbage"))
		return err
	}))
	core, logs := observer.New(zap.WarnLevel)
	after := history.New(db, zap.New(core), func() history.Gauges { return history.Gauges{} })
	after.SetClock(c.read)
	after.Start(t.Context())
	defer after.Close()
	if got := find(t, after.Read(time.Hour, history.Step), history.Key{Model: "m"}).Total.Requests; got != 1 {
		t.Errorf("got %d requests of the hour that can be read, want 1", got)
	}
	if logs.Len() != 1 {
		t.Errorf("got %d warnings, want one for the hour that cannot be read", logs.Len())
	}
}

func TestEventsAreTheNewestFirstAndShort(t *testing.T) {
	c := newClock()
	h := newHistory(openDB(t), c, history.Gauges{})
	h.Add(history.Event{Kind: history.BootBegun})
	c.now = c.now.Add(2 * time.Hour)
	h.Add(history.Event{Kind: history.BootFailed, Detail: strings.Repeat("é", 500)})
	events := h.Events(c.now.Add(-3*time.Hour), 10)
	if len(events) != 2 || events[0].Kind != history.BootFailed || events[1].Kind != history.BootBegun {
		t.Fatalf("got %+v, want the failed boot before its begin", events)
	}
	if n := len(events[0].Detail); n > 310 || strings.ContainsRune(events[0].Detail, '\uFFFD') {
		t.Errorf("got a detail of %d bytes: %q, want it cut at a character", n, events[0].Detail)
	}
	if got := h.Events(c.now.Add(-time.Hour), 10); len(got) != 1 {
		t.Errorf("got %d events of the last hour, want 1", len(got))
	}
}

func FuzzDecode(f *testing.F) {
	seed := func(text string) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write([]byte(text))
		w.Close()
		return b.Bytes()
	}
	f.Add(seed(`{"s":[{"m":"m","p":[{"i":1,"r":2,"t":[[3,4]]},{"i":-1},{"i":99999,"t":[[99,1]]}]}],"c":[{"c":"x","n":[[1,2],[99999,1]]}],"g":[{"i":360}],"e":[{"k":"x"}]}`))
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := history.Reencode(data)
		if err != nil {
			return
		}
		if _, err := history.Reencode(once); err != nil {
			t.Errorf("what was encoded cannot be decoded: %v", err)
		}
	})
}
