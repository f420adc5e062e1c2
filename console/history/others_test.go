package history_test

import (
	"testing"
	"time"

	"basegate/console/history"
	"basegate/internal/databasetest"
)

// Each gateway shows the sums of all. After a restart it has its own hours once, whichever gateway reads them.
func TestReportAddsUpTheGateways(t *testing.T) {
	if !databasetest.Postgres() {
		t.Skip("several gateways share PostgreSQL only")
	}
	db, c := openDB(t), newClock()
	gpu1 := history.Key{Model: "m", Backend: "gpu1"}
	gateway := func(name string, waiting int) *history.History {
		h := newHistory(db, c, history.Gauges{Waiting: waiting, Running: 1, InFlight: map[history.Key]int{gpu1: waiting}})
		h.ShareAs(name)
		return h
	}
	a, b, third := gateway("a", 2), gateway("b", 3), gateway("c", 0)
	for i, h := range []*history.History{a, b, third} {
		h.Sample()
		for range i + 1 {
			h.Record(history.Request{Model: "m", Backend: "gpu1", Code: "overloaded", Prompt: 10, FirstToken: 100 * time.Millisecond})
		}
		h.Add(history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Time: c.now.Add(time.Duration(i) * time.Second)})
	}
	a.Add(history.Event{Kind: history.BreakerOpened, Model: "m", Backend: "gpu1", Time: c.now.Add(5 * time.Minute)})
	for _, h := range []*history.History{a, b, third} {
		h.Save(t.Context())
	}
	restarted := gateway("b", 3)
	restarted.Start(t.Context())
	defer restarted.Close()
	a.ReadOthers(t.Context())
	a.ReadOthers(t.Context())
	for name, h := range map[string]*history.History{"a": a, "b": restarted} {
		r := h.Read(time.Hour, history.Step)
		last := r.Points - 1
		series := find(t, r, gpu1)
		if series.Total.Requests != 6 || series.Total.Prompt != 60 || valueOf(series.InFlight[last]) != 5 {
			t.Errorf("%s: got totals %+v and %v in flight, want 6 requests, 60 tokens and 5", name, series.Total, valueOf(series.InFlight[last]))
		}
		if series.Total.FirstTokenP50 == nil || valueOf(r.Waiting[last]) != 5 || valueOf(r.Running[last]) != 3 {
			t.Errorf("%s: got %v waiting and %v running, want 5 and 3", name, valueOf(r.Waiting[last]), valueOf(r.Running[last]))
		}
		if len(r.Codes) != 1 || r.Codes[0].Total != 6 {
			t.Errorf("%s: got the codes %+v, want 6 overloaded", name, r.Codes)
		}
		events := h.Events(c.now.Add(-time.Hour), 10)
		if len(events) != 2 || !events[0].Time.Equal(c.now.Add(5*time.Minute)) || !events[1].Time.Equal(c.now) {
			t.Errorf("%s: got the events %+v, want that of all gateways once, and a later one", name, events)
		}
	}
}
