package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGoalIsWithinItsLimitUpToTheLimitItself(t *testing.T) {
	for _, c := range []struct {
		median, limit float64
		want          string
	}{
		{0.79, 0.8, "within"},
		{0.8, 0.8, "within"},
		{0.81, 0.8, "over"},
		{0, 0, "within"},
		{1, 0, "over"},
	} {
		if got := (goal{limit: c.limit, measured: summarize([]float64{c.median})}).verdict(); got != c.want {
			t.Errorf("%v with limit %v: got %s, want %s", c.median, c.limit, got, c.want)
		}
	}
}

func TestGapIsTheDistanceToTheAmbition(t *testing.T) {
	for _, c := range []struct {
		median, ambition float64
		want             string
	}{
		{0.79, 0.8, "reached"},
		{0.8, 0.8, "reached"},
		{0.81, 0.8, "+0.01"},
		{1.47, 0.8, "+0.67"},
	} {
		g := goal{limit: 2, ambition: c.ambition, measured: summarize([]float64{c.median}), digits: 2}
		if got := g.gap(); got != c.want {
			t.Errorf("%v with ambition %v: got %s, want %s", c.median, c.ambition, got, c.want)
		}
	}
}

func TestUnmeasuredGoalIsNotWithinItsLimit(t *testing.T) {
	g := goal{name: "x", limit: 2, ambition: 1}
	if g.withinLimit() || g.verdict() != "not measured" {
		t.Errorf("got %v, %s, want false, not measured", g.withinLimit(), g.verdict())
	}
	want := []string{"x: not measured, the limit is 2 (ambition 1, gap -)"}
	if diff := cmp.Diff(want, overLimit([]goal{g})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGoalsOverTheLimitAreListedWithFigureLimitAndGap(t *testing.T) {
	got := overLimit([]goal{
		{"good", 0.8, 0.6, summarize([]float64{0.5}), 2},
		{"over the ambition only", 0.8, 0.6, summarize([]float64{0.7}), 2},
		{"bad", 0.8, 0.6, summarize([]float64{1, 2, 3}), 2},
		{"truncated", 0, 0, summarize([]float64{7}), 0},
	})
	want := []string{
		"bad: 2.00 (1.00 to 3.00), the limit is 0.80 (ambition 0.60, gap +1.40)",
		"truncated: 7, the limit is 0 (ambition 0, gap +7)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// uniformReport returns a report of one round in which every proxy cost the same, but the gateway times as much, and so did
// its chat completions.
func uniformReport(times float64) *report {
	o := options{workloads: workloads(false), holds: holds(false, wantedDescriptors), check: true, limitFactor: 1}
	r := newReport(o)
	r.flushes = []diskFlush{{wall: 100 * time.Microsecond, cpu: 60 * time.Microsecond}}
	r.prefix = &prefixFigures{byPrefix: prefixResult{hits: 0.8 / times, load: times}, oneReplica: prefixResult{hits: 0.8}}
	r.chat = &chatFigures{plain: pair{[]float64{200}, []float64{200 * times}}, stream: pair{[]float64{400}, []float64{400 * times}}}
	r.receipts = &receiptFigures{ids: []string{plainOne, plainSome, burstStreams}, workloads: []string{"", "", ""}}
	for range r.receipts.ids {
		r.receipts.off = append(r.receipts.off, 200*time.Microsecond)
		r.receipts.on = append(r.receipts.on, 200*time.Microsecond+time.Duration(times*float64(80*time.Microsecond)))
	}
	for _, w := range o.workloads {
		r.loads.add(w.id, direct, &loadResult{median: 300 * time.Microsecond})
		for name, factor := range map[string]float64{reverseProxy: 1, gateway: times, flushing: times} {
			added, cpu := time.Duration(factor*float64(200*time.Microsecond)), time.Duration(factor*float64(2*time.Millisecond))
			if name == gateway {
				added += r.flushes[0].wall
			}
			if name == gateway && w.id == plainOne {
				cpu += 10 * r.flushes[0].cpu
			}
			r.loads.add(w.id, name, &loadResult{
				requestCounts: requestCounts{complete: 10}, wall: time.Second, cpu: cpu,
				median: 300*time.Microsecond + added,
			})
		}
	}
	for _, h := range o.holds {
		r.holds.add(h.id, reverseProxy, &holdResult{requestCounts{complete: h.streams}, 50_000})
		r.holds.add(h.id, gateway, &holdResult{requestCounts{complete: h.streams}, 50_000 * times})
	}
	return r
}

func TestRunWithinAllLimitsPasses(t *testing.T) {
	if err := uniformReport(0.5).check(); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

func TestRunOverTheAmbitionsButWithinTheLimitsPasses(t *testing.T) {
	r := uniformReport(1.2)
	r.prefix.byPrefix.hits, r.prefix.byPrefix.load = 0.8, 1
	r.chat.plain.chat, r.chat.stream.chat = []float64{220}, []float64{440} // their limit is under 1.2
	for _, id := range []string{heldSome, heldMany} {                      // their limits are under 1.2
		r.holds[id][gateway][0].memory = 25_000
	}
	if err := r.check(); err != nil {
		t.Errorf("got %v, want none", err)
	}
	gaps := map[string]int{}
	for _, g := range r.goals() {
		gaps[g.gap()]++
	}
	if diff := cmp.Diff(map[string]int{"+0.35": 2, "+0.30": 1, "+0.20": 1, "+0.10": 3, "+36": 3, "reached": 7}, gaps); diff != "" {
		t.Errorf("gaps (-want +got):\n%s", diff)
	}
}

func TestRunOverTheLimitsFailsWithEachOfThem(t *testing.T) {
	r := uniformReport(3.5)
	err := r.check()
	if !errors.Is(err, errOverLimit) {
		t.Fatalf("got %v, want errOverLimit", err)
	}
	want := `16 of 17 goals over the limit or not measured:
  1 KB plain, 1 connection: CPU per request less a disk flush: 3.50, the limit is 2.50 (ambition 0.85, gap +2.65)
  1 KB plain, 32 connections: CPU per request: 3.50, the limit is 1.40 (ambition 0.90, gap +2.60)
  1 KB plain, 32 connections, basegate, flush: 1s: CPU per request: 3.50, the limit is 1.30 (ambition 0.85, gap +2.65)
  1 KB plain, 1 connection: added latency less a disk flush, median: 3.50, the limit is 3 (ambition 1.10, gap +2.40)
  100 KB plain, 8 connections: CPU per request: 3.50, the limit is 1.60 (ambition 1.20, gap +2.30)
  streams of 200 events, 16 connections: CPU per event: 3.50, the limit is 1.60 (ambition 1.30, gap +2.20)
  streams of 100 events at 20ms, 200 connections: CPU per event: 3.50, the limit is 1.30 (ambition 1, gap +2.50)
  3000 held streams, an event each 3s: memory per held stream: 3.50, the limit is 0.60 (ambition 0.70, gap +2.80)
  10000 held streams, an event each 3s: memory per held stream: 3.50, the limit is 0.55 (ambition 0.70, gap +2.80)
  cached tokens of one replica with all the cache over those of replicas with balance: prefix: 3.50, the limit is 1.11 (ambition 1.11, gap +2.39)
  the busiest backend over the mean with balance: prefix: 3.50, the limit is 1.30 (ambition 1.30, gap +2.20)
  a chat completion over a completion, 1 KB plain: CPU per request: 3.50, the limit is 1.15 (ambition 1, gap +2.50)
  a chat completion over a completion, streams: CPU per request: 3.50, the limit is 1.15 (ambition 1, gap +2.50)
  a receipt, 1 KB plain, 1 connection: CPU on top, µs: 280, the limit is 150 (ambition 60, gap +220)
  a receipt, 1 KB plain, 32 connections: CPU on top, µs: 280, the limit is 110 (ambition 60, gap +220)
  a receipt, streams of 200 events, 16 connections: CPU on top, µs: 280, the limit is 160 (ambition 60, gap +220)`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.options.check = false
	if err := r.check(); err != nil {
		t.Errorf("without -check: got %v, want none", err)
	}
}

func TestGoalsOfOneConnectionSubtractOneFlushFromTheGatewayOnly(t *testing.T) {
	r := uniformReport(1)
	for _, c := range []struct {
		metric metric
		want   float64
	}{
		{addedLessFlush, 1},
		{addedMedian, 1.5},
		{cpuLessFlush, 1},
		{cpuPerRequest, 1.3},
	} {
		if got := r.ratio(plainOne, gateway, c.metric).median; got != c.want {
			t.Errorf("%s: got %v, want %v", c.metric.name, got, c.want)
		}
	}
}

func TestFlushLongerThanTheAddedLatencyLeavesTheGoalUnmeasured(t *testing.T) {
	r := uniformReport(1)
	r.flushes[0].wall = time.Second
	if got := r.ratio(plainOne, gateway, addedLessFlush); got.measured {
		t.Errorf("got %v, want no ratio", got)
	}
	want := "1 KB plain, 1 connection: added latency less a disk flush, median: not measured, the limit is 3 (ambition 1.10, gap -)"
	if got := overLimit(r.goals()); !slices.Contains(got, want) {
		t.Errorf("got %q, want it to contain %q", got, want)
	}
}

func TestTruncatedStreamOfTheGatewayFailsEveryRun(t *testing.T) {
	for name, truncate := range map[string]func(r *report){
		"held":  func(r *report) { r.holds[heldMany][gateway][0].truncated++ },
		"paced": func(r *report) { r.loads[pacedStreams][gateway][0].truncated++ },
	} {
		r := uniformReport(0.5)
		truncate(r)
		if err := r.check(); !errors.Is(err, errIncomplete) || !strings.Contains(err.Error(), "truncated streams: 1, the limit is 0") {
			t.Errorf("%s: got %v, want errIncomplete and one truncated stream", name, err)
		}
		r.options.check = false
		if err := r.check(); !errors.Is(err, errIncomplete) {
			t.Errorf("%s, without -check: got %v, want errIncomplete", name, err)
		}
	}
}

func TestTruncatedStreamOfAnotherProxyPasses(t *testing.T) {
	r := uniformReport(0.5)
	r.holds[heldMany][reverseProxy][0].truncated++
	if err := r.check(); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

func TestShortRunHasHigherLimits(t *testing.T) {
	r := uniformReport(2.5)
	r.options.limitFactor = shortLimitFactor
	got := map[string]string{}
	for _, g := range r.goals() {
		got[number(g.limit)] += g.verdict() + " "
	}
	want := map[string]string{
		"5": "within ", "2.80": "within ", "220": "within ", "300": "within ", "320": "within ", "6": "within ", "3.20": "within within ", "2.60": "within within within ", "2.22": "over ", "2.30": "over over ", "1.20": "over ", "1.10": "over ",
		"0": "within ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts by limit (-want +got):\n%s", diff)
	}
}

func TestGoalRowsShowLimitAmbitionAndGap(t *testing.T) {
	rows := uniformReport(1.2).goalRows()
	want := []string{"1 KB plain, 1 connection: CPU per request less a disk flush", "1.20", "2.50", "within", "0.85", "+0.35"}
	if diff := cmp.Diff(want, rows[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, row := range rows {
		if len(row) != len(rows[0]) {
			t.Errorf("%d cells for %d columns: %q", len(row), len(rows[0]), row)
		}
	}
}
