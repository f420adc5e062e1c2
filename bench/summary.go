package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// quantile is the value that a share q of the sorted durations does not exceed; 0 of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(of []time.Duration) time.Duration { return quantile(slices.Sorted(slices.Values(of)), 0.5) }

// figure is one measure over the rounds.
type summary struct {
	min, median, max float64
	measured         bool // there was something to measure
}

func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return summary{sorted[0], middle, sorted[len(sorted)-1], true}
}

// text is the median, with least and most behind it where there were several rounds.
func (f summary) text(digits int) string {
	switch {
	case !f.measured:
		return "-"
	case f.min == f.max:
		return fmt.Sprintf("%.*f", digits, f.median)
	default:
		return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, f.median, digits, f.min, digits, f.max)
	}
}

// digitsOf is how many digits behind the point a figure of this size is worth.
func digitsOf(f summary) int {
	switch size := math.Abs(f.median); {
	case size >= 100:
		return 0
	case size >= 10:
		return 1
	default:
		return 2
	}
}

// ratios are those of each round, since what else the machine does differs more between rounds than within one. A round
// in which either came to nothing, or to less, as noise makes it of a small latency, has none.
func ratios(values, bases []float64) []float64 {
	var all []float64
	for round, value := range values {
		if round < len(bases) && bases[round] > 0 && value > 0 {
			all = append(all, value/bases[round])
		}
	}
	return all
}
