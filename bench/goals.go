package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// goal bounds one figure of the gateway, in most cases a ratio to the ReverseProxy of the same run.
type goal struct {
	name     string
	limit    float64 // guards against regressions: -check fails above it
	ambition float64 // what the figure should become; -check only reports the gap
	measured summary
	digits   int // decimals of measured
}

// goals returns the goals with what this run measured. Each limit is the highest median that docs/benchmarks.md and
// docs/performance.md have had on a quiet machine, plus 5 to 25 % by the spread between runs: the ratio of 100 KB had
// medians from 1.14 to 1.41, and that of held memory differs by 2 %.
func (r *report) goals() []goal {
	return []goal{
		r.ratioGoal(plainOne, cpuLessFlush, 2.5, 0.85),
		r.ratioGoal(plainSome, cpuPerRequest, 1.4, 0.9),
		r.ratioGoalOf(flushing, plainSome, cpuPerRequest, 1.3, 0.85),
		r.ratioGoal(plainOne, addedLessFlush, 3, 1.1),
		r.ratioGoal(plainLong, cpuPerRequest, 1.6, 1.2),
		r.ratioGoal(burstStreams, cpuPerEvent, 1.6, 1.3),
		r.ratioGoal(pacedStreams, cpuPerEvent, 1.3, 1),
		r.memoryGoal(heldSome, 0.6, 0.7),
		r.memoryGoal(heldMany, 0.55, 0.7),
		r.prefixGoal("cached tokens of one replica with all the cache over those of replicas with balance: prefix", 1.11, 1.11,
			func(f *prefixFigures) float64 { return f.oneReplica.hits / f.byPrefix.hits }),
		r.prefixGoal("the busiest backend over the mean with balance: prefix", 1.3, 1.3,
			func(f *prefixFigures) float64 { return f.byPrefix.load }),
		r.chatGoal("a chat completion over a completion, 1 KB plain: CPU per request", func(f *chatFigures) pair { return f.plain }),
		r.chatGoal("a chat completion over a completion, streams: CPU per request", func(f *chatFigures) pair { return f.stream }),
		r.receiptGoal(plainOne, 150),
		r.receiptGoal(plainSome, 110),
		r.receiptGoal(burstStreams, 160),
		{name: "truncated streams", measured: r.truncatedStreams()},
	}
}

// prefixGoal bounds a figure of routing by prefix.
func (r *report) prefixGoal(name string, limit, ambition float64, of func(*prefixFigures) float64) goal {
	g := goal{name: name, limit: limit * r.options.limitFactor, ambition: ambition, digits: 2}
	if r.prefix != nil {
		g.measured = summarize([]float64{of(r.prefix)})
	}
	return g
}

// chatGoal bounds what a chat completion costs over a completion of the same size.
func (r *report) chatGoal(name string, of func(*chatFigures) pair) goal {
	g := goal{name: name, limit: 1.15 * r.options.limitFactor, ambition: 1, digits: 2}
	if r.chat != nil {
		g.measured = of(r.chat).ratio()
	}
	return g
}

// receiptGoal bounds what a receipt costs on top of the same request without one.
func (r *report) receiptGoal(id string, limit float64) goal {
	g := goal{name: "a receipt, " + r.nameOf(id) + ": CPU on top, µs", limit: limit * r.options.limitFactor, ambition: 60}
	if r.receipts != nil {
		if onTop, ok := r.receipts.onTop(id); ok {
			g.measured = summarize([]float64{float64(onTop) / float64(time.Microsecond)})
		}
	}
	return g
}

func (r *report) ratioGoal(id string, m metric, limit, ambition float64) goal {
	g := r.ratioGoalOf(gateway, id, m, limit, ambition)
	g.name = r.nameOf(id) + ": " + m.name
	return g
}

// ratioGoalOf is ratioGoal for another target than the gateway as it is by default.
func (r *report) ratioGoalOf(target, id string, m metric, limit, ambition float64) goal {
	return goal{r.nameOf(id) + ", " + target + ": " + m.name, limit * r.options.limitFactor, ambition, r.ratio(id, target, m), 2}
}

func (r *report) memoryGoal(id string, limit, ambition float64) goal {
	return goal{r.nameOf(id) + ": " + memoryName, limit * r.options.limitFactor, ambition, r.memoryRatio(id, gateway), 2}
}

// truncatedStreams counts the gateway's truncated streams over all rounds, if any streams were measured.
func (r *report) truncatedStreams() summary {
	truncated, complete := 0, 0
	for _, w := range r.options.workloads {
		if w.events > 0 {
			sum := r.count(w.id, gateway)
			truncated, complete = truncated+sum.truncated, complete+sum.complete
		}
	}
	for _, h := range r.options.holds {
		sum := r.count(h.id, gateway)
		truncated, complete = truncated+sum.truncated, complete+sum.complete
	}
	if truncated+complete == 0 {
		return summary{}
	}
	return summarize([]float64{float64(truncated)})
}

// withinLimit is false for a goal that was not measured: a goal that was not measured counts as failed.
func (g goal) withinLimit() bool { return g.measured.measured && g.measured.median <= g.limit }

func (g goal) verdict() string {
	switch {
	case g.withinLimit():
		return "within"
	case g.measured.measured:
		return "over"
	default:
		return "not measured"
	}
}

// gap is what the measured median exceeds the ambition by.
func (g goal) gap() string {
	switch {
	case !g.measured.measured:
		return "-"
	case g.measured.median <= g.ambition:
		return "reached"
	default:
		return fmt.Sprintf("+%.*f", g.digits, g.measured.median-g.ambition)
	}
}

// overLimit describes the goals that are over their limit or not measured.
func overLimit(goals []goal) []string {
	var all []string
	for _, g := range goals {
		if g.withinLimit() {
			continue
		}
		measured := "not measured"
		if g.measured.measured {
			measured = g.measured.text(g.digits)
		}
		all = append(all, fmt.Sprintf("%s: %s, the limit is %s (ambition %s, gap %s)",
			g.name, measured, number(g.limit), number(g.ambition), g.gap()))
	}
	return all
}

func number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.2f", f), ".00") }

// check returns an error if the gateway did not complete every request or, with -check, if a goal is over its limit.
func (r *report) check() error {
	var all error
	if !r.allComplete() {
		all = errIncomplete
	}
	if list := overLimit(r.goals()); r.options.check && len(list) > 0 {
		all = errors.Join(all, fmt.Errorf("%d of %d goals %w:\n  %s",
			len(list), len(r.goals()), errOverLimit, strings.Join(list, "\n  ")))
	}
	return all
}
