package main

import (
	"strings"
	"time"
)

// series holds every measurement, by work and target, in the order of the rounds.
type series[M any] map[string]map[string][]M

func (s series[M]) add(work, target string, m M) {
	if s[work] == nil {
		s[work] = map[string][]M{}
	}
	s[work][target] = append(s[work][target], m)
}

// report is everything that was measured.
type report struct {
	options options
	loads   series[*measurement]
	holds   series[*held]
	flushes []time.Duration // see measureFlushing; of each round
	waiting *waiting        // nil: not measured
}

func newReport(o options) *report {
	return &report{options: o, loads: series[*measurement]{}, holds: series[*held]{}}
}

// nameOf is how a work or hold is called in this run; its id where it is not part of it.
func (r *report) nameOf(id string) string {
	for _, w := range r.options.works {
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
func (r *report) count(id, target string) tally {
	var sum tally
	for _, m := range r.loads[id][target] {
		sum.add(m.tally)
	}
	for _, m := range r.holds[id][target] {
		sum.add(m.tally)
	}
	return sum
}

// sound tells whether the gateway brought every request to its end.
func (r *report) sound() bool {
	for _, results := range r.loads {
		for _, m := range results[gateway] {
			if m.cut > 0 || m.failed > 0 || m.whole == 0 {
				return false
			}
		}
	}
	for _, results := range r.holds {
		for _, m := range results[gateway] {
			if m.cut > 0 || m.failed > 0 {
				return false
			}
		}
	}
	return true
}

// sample is a measurement with what it is compared with, all of one round.
type sample struct {
	work      work
	target    string
	m, direct *measurement
	flush     time.Duration
}

// line is one line of the table for a work.
type line struct {
	name, unit string
	value      func(s sample) float64
}

// title is the name with its unit.
func (l line) title() string { return strings.TrimSuffix(l.name+", "+l.unit, ", ") }

var (
	cpuPerEvent = line{"CPU per event", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Nanoseconds()) / 1000 / float64(max(s.m.whole*s.work.events, 1))
	}}
	cpuPerRequest = line{"CPU per request", "µs", func(s sample) float64 {
		return float64(s.m.cpu.Microseconds()) / float64(max(s.m.whole, 1))
	}}
	requestRate = line{"requests per second", "", func(s sample) float64 {
		return float64(s.m.whole) / s.m.wall.Seconds()
	}}
	addedMedian = line{"added latency, median", "µs", func(s sample) float64 {
		return float64((s.m.median - s.direct.median).Microseconds())
	}}
	// Only the gateway waits for the disk. Where a flush took longer than all that the gateway adds, the disk was busy with
	// something else, and the round has no ratio.
	addedLessFlush = line{"added latency less a disk flush, median", "µs", func(s sample) float64 {
		added := s.m.median - s.direct.median
		if s.target == gateway {
			added -= s.flush
		}
		return float64(added.Microseconds())
	}}
	addedP99 = line{"added latency, p99", "µs", func(s sample) float64 {
		return float64((s.m.p99 - s.direct.p99).Microseconds())
	}}
)

// lines are the measures of a work, in the table's order.
func (w work) lines() []line {
	switch {
	case w.events > 0:
		return []line{cpuPerEvent, cpuPerRequest, requestRate, addedMedian, addedP99}
	case w.id == plainOne:
		return []line{cpuPerRequest, requestRate, addedMedian, addedLessFlush, addedP99}
	default:
		return []line{cpuPerRequest, requestRate, addedMedian, addedP99}
	}
}

// values are one measure of one target, round by round.
func (r *report) values(id, target string, l line) []float64 {
	var all []float64
	for round, m := range r.loads[id][target] {
		s := sample{work: r.workOf(id), target: target, m: m, direct: r.loads[id][direct][round]}
		if round < len(r.flushes) {
			s.flush = r.flushes[round]
		}
		all = append(all, l.value(s))
	}
	return all
}

func (r *report) workOf(id string) work {
	for _, w := range r.options.works {
		if w.id == id {
			return w
		}
	}
	return work{}
}

// ratio is a target's measure over the ReverseProxy's.
func (r *report) ratio(id, target string, l line) figure {
	return figureOf(ratios(r.values(id, target, l), r.values(id, bare, l)))
}

// memory is what a held stream takes of a target, in KB of 1000 bytes, round by round.
func (r *report) memory(id, target string) []float64 {
	var all []float64
	for _, m := range r.holds[id][target] {
		all = append(all, m.memory/1e3)
	}
	return all
}

func (r *report) memoryRatio(id, target string) figure {
	return figureOf(ratios(r.memory(id, target), r.memory(id, bare)))
}
