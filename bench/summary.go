package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// quantile returns the value that a share q of the sorted durations does not exceed, or 0 if there are none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(of []time.Duration) time.Duration { return quantile(slices.Sorted(slices.Values(of)), 0.5) }

// summary holds the median and the extremes of one metric over the rounds.
type summary struct {
	min, median, max float64
	measured         bool // false if no round has a value
}

func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return summary{sorted[0], middle, sorted[len(sorted)-1], true}
}

// text formats the median, followed by the extremes if the rounds differ.
func (s summary) text(digits int) string {
	switch {
	case !s.measured:
		return "-"
	case s.min == s.max:
		return fmt.Sprintf("%.*f", digits, s.median)
	default:
		return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, s.median, digits, s.min, digits, s.max)
	}
}

// digitsOf returns how many decimals a value of this size deserves.
func digitsOf(s summary) int {
	switch size := math.Abs(s.median); {
	case size >= 100:
		return 0
	case size >= 10:
		return 1
	default:
		return 2
	}
}

// ratios divides round by round, since the load of the machine varies more between rounds than within one. A round in
// which either value is zero or negative, as noise can make a small latency, has no ratio.
func ratios(values, bases []float64) []float64 {
	var all []float64
	for round, value := range values {
		if round < len(bases) && bases[round] > 0 && value > 0 {
			all = append(all, value/bases[round])
		}
	}
	return all
}
