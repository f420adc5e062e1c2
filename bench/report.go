package main

import (
	"strings"
)

// series holds the results by workload and target, in the order of the rounds.
type series[M any] map[string]map[string][]M

func (s series[M]) add(workload, target string, m M) {
	if s[workload] == nil {
		s[workload] = map[string][]M{}
	}
	s[workload][target] = append(s[workload][target], m)
}

// report holds all results of a run.
type report struct {
	options options
	loads   series[*loadResult]
	holds   series[*holdResult]
	flushes []diskFlush    // of each round, see measureFlushing
	queued  *queuedMemory  // nil if not measured
	batch   *batchFigures  // nil if not measured
	prefix  *prefixFigures // nil if not measured
	chat    *chatFigures   // nil if not measured

	receipts *receiptFigures  // nil if not measured
	postgres *postgresFigures // nil if not measured
}

func newReport(o options) *report {
	return &report{options: o, loads: series[*loadResult]{}, holds: series[*holdResult]{}}
}

// nameOf returns the name of a workload or hold in this run, or the id if the run leaves it out.
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

// count sums the request counts of all rounds.
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

// allComplete reports whether the gateway completed every request, however it flushes.
func (r *report) allComplete() bool {
	for _, results := range r.loads {
		for _, name := range []string{gateway, flushing} {
			for _, m := range results[name] {
				if m.truncated > 0 || m.failed > 0 || m.complete == 0 {
					return false
				}
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

// sample is one result with what it is compared with, all of one round.
type sample struct {
	workload  workload
	target    string
	m, direct *loadResult
	flush     diskFlush
}

// flushesEach reports whether the target flushes the disk at each commit.
func (s sample) flushesEach() bool { return s.target == gateway || s.target == oldGateway }

// metric is one row of a workload's table.
type metric struct {
	name, unit string
	value      func(s sample) float64
}

// title returns the name with its unit.
func (m metric) title() string { return strings.TrimSuffix(m.name+", "+m.unit, ", ") }

var (
	cpuPerEvent = metric{"CPU per event", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Nanoseconds()) / 1000 / float64(max(s.m.complete*s.workload.events, 1))
	}}
	cpuPerRequest = metric{"CPU per request", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Microseconds()) / float64(max(s.m.complete, 1))
	}}
	// On one connection no two requests share a flush.
	cpuLessFlush = metric{"CPU per request less a disk flush", "µs", func(s sample) float64 {
		cpu := cpuPerRequest.value(s)
		if s.flushesEach() {
			cpu -= float64(s.flush.cpu.Nanoseconds()) / 1000
		}
		return cpu
	}}
	requestRate = metric{"requests per second", "", func(s sample) float64 {
		return float64(s.m.complete) / s.m.wall.Seconds()
	}}
	addedMedian = metric{"added latency, median", "µs", func(s sample) float64 {
		return float64((s.m.median - s.direct.median).Microseconds())
	}}
	// Only a gateway that flushes at each commit waits for the disk. If a flush takes longer than all that the gateway
	// adds, the disk was busy otherwise, and the round has no ratio.
	addedLessFlush = metric{"added latency less a disk flush, median", "µs", func(s sample) float64 {
		added := s.m.median - s.direct.median
		if s.flushesEach() {
			added -= s.flush.wall
		}
		return float64(added.Microseconds())
	}}
	addedP99 = metric{"added latency, p99", "µs", func(s sample) float64 {
		return float64((s.m.p99 - s.direct.p99).Microseconds())
	}}
)

// metrics returns the metrics of a workload, in the table's order.
func (w workload) metrics() []metric {
	switch {
	case w.events > 0:
		return []metric{cpuPerEvent, cpuPerRequest, requestRate, addedMedian, addedP99}
	case w.id == plainOne:
		return []metric{cpuPerRequest, cpuLessFlush, requestRate, addedMedian, addedLessFlush, addedP99}
	default:
		return []metric{cpuPerRequest, requestRate, addedMedian, addedP99}
	}
}

// values returns one metric of one target, round by round.
func (r *report) values(id, target string, of metric) []float64 {
	var all []float64
	for round, m := range r.loads[id][target] {
		s := sample{workload: r.workOf(id), target: target, m: m, direct: r.loads[id][direct][round]}
		if round < len(r.flushes) {
			s.flush = r.flushes[round]
		}
		all = append(all, of.value(s))
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

// ratio summarises a target's metric divided by the ReverseProxy's.
func (r *report) ratio(id, target string, m metric) summary {
	return summarize(ratios(r.values(id, target, m), r.values(id, reverseProxy, m)))
}

// memory returns a target's memory per held stream in KB of 1000 bytes, round by round.
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
