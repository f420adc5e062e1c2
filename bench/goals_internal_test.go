package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGoalIsMetUpToItsBound(t *testing.T) {
	for _, c := range []struct {
		median, most float64
		want         string
	}{
		{0.79, 0.8, "met"},
		{0.8, 0.8, "met"},
		{0.81, 0.8, "missed"},
		{0, 0, "met"},
		{1, 0, "missed"},
	} {
		if got := (judgement{most: c.most, summary: summarize([]float64{c.median})}).verdict(); got != c.want {
			t.Errorf("%v of at most %v: got %s, want %s", c.median, c.most, got, c.want)
		}
	}
}

func TestGoalThatWasNotMeasuredIsNotMet(t *testing.T) {
	j := judgement{name: "x", most: 1}
	if j.met() || j.verdict() != "not measured" {
		t.Errorf("got %v, %s", j.met(), j.verdict())
	}
	if diff := cmp.Diff([]string{"x: not measured, the goal is at most 1"}, missed([]judgement{j})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMissedGoalsAreNamedWithFigureAndBound(t *testing.T) {
	got := missed([]judgement{
		{"good", 0.8, summarize([]float64{0.5}), 2},
		{"bad", 0.8, summarize([]float64{1, 2, 3}), 2},
		{"cut", 0, summarize([]float64{7}), 0},
	})
	want := []string{"bad: 2.00 (1.00 to 3.00), the goal is at most 0.80", "cut: 7, the goal is at most 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// measured is a report of one round in which every proxy took the same, and the gateway so many times as much.
func uniformReport(times float64) *report {
	o := options{workloads: workloads(false), holds: holds(false, wantedDescriptors), check: true}
	r := newReport(o)
	r.flushes = []time.Duration{100 * time.Microsecond}
	for _, w := range o.workloads {
		r.loads.add(w.id, direct, &loadResult{median: 300 * time.Microsecond})
		for name, factor := range map[string]float64{reverseProxy: 1, gateway: times} {
			added := time.Duration(factor * float64(200*time.Microsecond))
			if name == gateway {
				added += r.flushes[0]
			}
			r.loads.add(w.id, name, &loadResult{
				requestCounts: requestCounts{complete: 10}, wall: time.Second, cpu: time.Duration(factor * float64(time.Second)),
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

func TestRunThatMeetsAllGoalsPasses(t *testing.T) {
	if err := uniformReport(0.7).verdict(); err != nil {
		t.Error(err)
	}
}

func TestRunThatMissesGoalsFailsWithEachOfThem(t *testing.T) {
	r := uniformReport(0.9)
	err := r.verdict()
	if !errors.Is(err, errOverLimit) {
		t.Fatalf("got %v", err)
	}
	want := `6 of 9 goals missed:
  1 KB plain, 1 connection: CPU per request: 0.90, the goal is at most 0.80
  1 KB plain, 32 connections: CPU per request: 0.90, the goal is at most 0.80
  100 KB plain, 8 connections: CPU per request: 0.90, the goal is at most 0.80
  streams of 100 events at 20ms, 200 connections: CPU per event: 0.90, the goal is at most 0.80
  3000 held streams, an event each 3s: memory per held stream: 0.90, the goal is at most 0.70
  10000 held streams, an event each 3s: memory per held stream: 0.90, the goal is at most 0.70`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.options.check = false
	if err := r.verdict(); err != nil {
		t.Errorf("without -check: %v", err)
	}
}

func TestLatencyGoalTakesOneFlushOffTheGatewayAlone(t *testing.T) {
	r := uniformReport(1)
	if got := r.ratio(plainOne, gateway, addedLessFlush).median; got != 1 {
		t.Errorf("less the flush: got %v, want 1", got)
	}
	if got := r.ratio(plainOne, gateway, addedMedian).median; got != 1.5 {
		t.Errorf("with it: got %v, want 1.5", got)
	}
}

func TestFlushThatTakesLongerThanTheGatewayAddsMeetsNoGoal(t *testing.T) {
	r := uniformReport(1)
	r.flushes[0] = time.Second
	if got := r.ratio(plainOne, gateway, addedLessFlush); got.measured {
		t.Errorf("got %v", got)
	}
	if got := missed(r.goals()); !slices.Contains(got, "1 KB plain, 1 connection: added latency less a disk flush, median: not measured, the goal is at most 1") {
		t.Errorf("got %q", got)
	}
}

func TestStreamThatTheGatewayCutsFailsEveryRun(t *testing.T) {
	for name, truncated := range map[string]func(r *report){
		"held":  func(r *report) { r.holds[heldMany][gateway][0].truncated++ },
		"paced": func(r *report) { r.loads[pacedStreams][gateway][0].truncated++ },
	} {
		r := uniformReport(0.7)
		truncated(r)
		if err := r.verdict(); !errors.Is(err, errIncomplete) || !strings.Contains(err.Error(), "streams cut: 1, the goal is at most 0") {
			t.Errorf("%s: got %v", name, err)
		}
		r.options.check = false
		if err := r.verdict(); !errors.Is(err, errIncomplete) {
			t.Errorf("%s, without -check: got %v", name, err)
		}
	}
}

func TestStreamThatAnotherProxyCutsIsNotTheGatewaysFault(t *testing.T) {
	r := uniformReport(0.7)
	r.holds[heldMany][reverseProxy][0].truncated++
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
}
