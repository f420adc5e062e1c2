package main

import (
	"errors"
	"fmt"
	"strings"
)

// judgement is a goal and what was measured of it.
type judgement struct {
	name    string
	most    float64
	summary summary
	digits  int // of the figure, behind the point
}

// goals are what the gateway shall cost: ratios to the ReverseProxy of the same run, and no stream cut.
func (r *report) goals() []judgement {
	return []judgement{
		r.ratioGoal(plainOne, cpuPerRequest, 0.8),
		r.ratioGoal(plainSome, cpuPerRequest, 0.8),
		r.ratioGoal(plainOne, addedLessFlush, 1.0),
		r.ratioGoal(plainLong, cpuPerRequest, 0.8),
		r.ratioGoal(burstStreams, cpuPerEvent, 1.0),
		r.ratioGoal(pacedStreams, cpuPerEvent, 0.8),
		r.memoryGoal(heldSome, 0.7),
		r.memoryGoal(heldMany, 0.7),
		{"streams cut", 0, r.cutStreams(), 0},
	}
}

func (r *report) ratioGoal(id string, l metric, most float64) judgement {
	return judgement{r.nameOf(id) + ": " + l.name, most, r.ratio(id, gateway, l), 2}
}

func (r *report) memoryGoal(id string, most float64) judgement {
	return judgement{r.nameOf(id) + ": " + memoryName, most, r.memoryRatio(id, gateway), 2}
}

// cutStreams is the count over all rounds of everything that streams, if anything did.
func (r *report) cutStreams() summary {
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

// met is false for what was not measured: a promise that nobody has looked at is not kept.
func (j judgement) met() bool { return j.summary.measured && j.summary.median <= j.most }

func (j judgement) verdict() string {
	switch {
	case j.met():
		return "met"
	case j.summary.measured:
		return "missed"
	default:
		return "not measured"
	}
}

// missed lists the goals that are not met, each with its figure and its bound.
func missed(goals []judgement) []string {
	var all []string
	for _, j := range goals {
		switch {
		case j.met():
		case j.summary.measured:
			all = append(all, fmt.Sprintf("%s: %s, the goal is at most %s", j.name, j.summary.text(j.digits), number(j.most)))
		default:
			all = append(all, fmt.Sprintf("%s: not measured, the goal is at most %s", j.name, number(j.most)))
		}
	}
	return all
}

func number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.2f", f), ".00") }

// verdict is an error where the gateway was unsound, or was to be judged and missed a goal.
func (r *report) verdict() error {
	var all error
	if !r.allComplete() {
		all = errIncomplete
	}
	if list := missed(r.goals()); r.options.check && len(list) > 0 {
		all = errors.Join(all, fmt.Errorf("%d of %d %w:\n  %s", len(list), len(r.goals()), errOverLimit, strings.Join(list, "\n  ")))
	}
	return all
}
