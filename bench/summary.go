package main

import (
	"fmt"
	"math"
	"slices"
)

// summary holds the median and the extremes of one measure over the rounds.
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

// String returns the median, followed by the extremes if the rounds differ.
func (s summary) String() string {
	switch {
	case !s.measured:
		return "-"
	case s.min == s.max:
		return number(s.median)
	default:
		return fmt.Sprintf("%s (%s to %s)", number(s.median), number(s.min), number(s.max))
	}
}

// number formats a value with as many decimals as its size deserves.
func number(f float64) string {
	switch size := math.Abs(f); {
	case size >= 100:
		return fmt.Sprintf("%.0f", f)
	case size >= 10:
		return fmt.Sprintf("%.1f", f)
	default:
		return fmt.Sprintf("%.2f", f)
	}
}
