package main

import (
	"strings"
	"time"
)

// series holds every measurement, by work and target, in the order of the rounds.
type series[M any] map[string]map[string][]M

func (s series[M]) add(workload, target string, m M) {
	if s[workload] == nil {
		s[workload] = map[string][]M{}
	}
	s[workload][target] = append(s[workload][target], m)
}

// report is everything that was measured.
type report struct {
	options      options
	loads        series[*loadResult]
	holds        series[*holdResult]
	flushes      []time.Duration // see measureFlushing; of each round
	queuedMemory *queuedMemory   // nil: not measured
}

func newReport(o options) *report {
	return &report{options: o, loads: series[*loadResult]{}, holds: series[*holdResult]{}}
}

// nameOf is how a work or hold is called in this run; its id where it is not part of it.
func (r *report) nameOf(id string) string {
	for _, w := range r.options.workloads {
		if w.id == id {
			return w.name
		}
	}
	for _, h := range r.options.holds {
		if h.id == id {
			return h.name()
		}
	}
	return id
}

// count adds up the requests of all rounds.
func (r *report) count(id, target string) requestCounts {
	var sum requestCounts
	for _, m := range r.loads[id][target] {
		sum.add(m.requestCounts)
	}
	for _, m := range r.holds[id][target] {
		sum.add(m.requestCounts)
	}
	return sum
}

// sound tells whether the gateway brought every request to its end.
func (r *report) allComplete() bool {
	for _, results := range r.loads {
		for _, m := range results[gateway] {
			if m.truncated > 0 || m.failed > 0 || m.complete == 0 {
				return false
			}
		}
	}
	for _, results := range r.holds {
		for _, m := range results[gateway] {
			if m.truncated > 0 || m.failed > 0 {
				return false
			}
		}
	}
	return true
}

// sample is a measurement with what it is compared with, all of one round.
type sample struct {
	workload  workload
	target    string
	m, direct *loadResult
	flush     time.Duration
}

// line is one line of the table for a work.
type metric struct {
	name, unit string
	value      func(s sample) float64
}

// title is the name with its unit.
func (l metric) title() string { return strings.TrimSuffix(l.name+", "+l.unit, ", ") }

var (
	cpuPerEvent = metric{"CPU per event", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Nanoseconds()) / 1000 / float64(max(s.m.complete*s.workload.events, 1))
	}}
	cpuPerRequest = metric{"CPU per request", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Microseconds()) / float64(max(s.m.complete, 1))
	}}
	requestRate = metric{"requests per second", "", func(s sample) float64 {
		return float64(s.m.complete) / s.m.wall.Seconds()
	}}
	addedMedian = metric{"added latency, median", "µs", func(s sample) float64 {
		return float64((s.m.median - s.direct.median).Microseconds())
	}}
	// Only the gateway waits for the disk. Where a flush took longer than all that the gateway adds, the disk was busy with
	// something else, and the round has no ratio.
	addedLessFlush = metric{"added latency less a disk flush, median", "µs", func(s sample) float64 {
		added := s.m.median - s.direct.median
		if s.target == gateway {
			added -= s.flush
		}
		return float64(added.Microseconds())
	}}
	addedP99 = metric{"added latency, p99", "µs", func(s sample) float64 {
		return float64((s.m.p99 - s.direct.p99).Microseconds())
	}}
)

// lines are the measures of a work, in the table's order.
func (w workload) metrics() []metric {
	switch {
	case w.events > 0:
		return []metric{cpuPerEvent, cpuPerRequest, requestRate, addedMedian, addedP99}
	case w.id == plainOne:
		return []metric{cpuPerRequest, requestRate, addedMedian, addedLessFlush, addedP99}
	default:
		return []metric{cpuPerRequest, requestRate, addedMedian, addedP99}
	}
}

// values are one measure of one target, round by round.
func (r *report) values(id, target string, l metric) []float64 {
	var all []float64
	for round, m := range r.loads[id][target] {
		s := sample{workload: r.workOf(id), target: target, m: m, direct: r.loads[id][direct][round]}
		if round < len(r.flushes) {
			s.flush = r.flushes[round]
		}
		all = append(all, l.value(s))
	}
	return all
}

func (r *report) workOf(id string) workload {
	for _, w := range r.options.workloads {
		if w.id == id {
			return w
		}
	}
	return workload{}
}

// ratio is a target's measure over the ReverseProxy's.
func (r *report) ratio(id, target string, l metric) summary {
	return summarize(ratios(r.values(id, target, l), r.values(id, reverseProxy, l)))
}

// memory is what a held stream takes of a target, in KB of 1000 bytes, round by round.
func (r *report) memory(id, target string) []float64 {
	var all []float64
	for _, m := range r.holds[id][target] {
		all = append(all, m.memory/1e3)
	}
	return all
}

func (r *report) memoryRatio(id, target string) summary {
	return summarize(ratios(r.memory(id, target), r.memory(id, reverseProxy)))
}
