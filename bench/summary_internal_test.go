package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedianOfAnEvenCountIsTheMeanOfTheMiddleTwo(t *testing.T) {
	got := summarize([]float64{4, 1, 3, 2})
	if want := (summary{1, 2.5, 4, true}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMedianOfAnOddCountIsTheMiddleValue(t *testing.T) {
	got := summarize([]float64{9, 1, 3})
	if want := (summary{1, 3, 9, true}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSummaryOfNoValuesIsADash(t *testing.T) {
	if got := summarize(nil); got.measured || got.text(2) != "-" {
		t.Errorf("got %v, %q, want an unmeasured summary and -", got, got.text(2))
	}
}

func TestTextShowsTheExtremesIfTheRoundsDiffer(t *testing.T) {
	if got, want := summarize([]float64{1, 2, 4}).text(1), "2.0 (1.0 to 4.0)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := summarize([]float64{2}).text(1), "2.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDecimalsDecreaseWithMagnitude(t *testing.T) {
	for value, want := range map[float64]int{0: 2, 9.9: 2, 10: 1, -10: 1, 100: 0, -805: 0} {
		if got := digitsOf(summarize([]float64{value})); got != want {
			t.Errorf("%v: got %d, want %d", value, got, want)
		}
	}
}

func TestRatiosDivideRoundByRound(t *testing.T) {
	got := ratios([]float64{2, 9, 1}, []float64{1, 3, 2})
	if diff := cmp.Diff([]float64{2, 3, 0.5}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRatiosOmitRoundsWithoutPositiveValues(t *testing.T) {
	got := ratios([]float64{2, 2, -4, 0, 3}, []float64{0, -1, 2, 1, 2})
	if diff := cmp.Diff([]float64{1.5}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRatiosOfAMissingTargetAreEmpty(t *testing.T) {
	if got := ratios(nil, []float64{1, 2}); got != nil {
		t.Errorf("got %v, want none", got)
	}
}

func TestQuantileReturnsAMeasuredValue(t *testing.T) {
	var sorted []time.Duration
	for i := range 100 {
		sorted = append(sorted, time.Duration(i))
	}
	if got := quantile(sorted, 0.99); got != 99 {
		t.Errorf("p99: got %d, want 99", got)
	}
	if got := quantile(sorted, 1); got != 99 {
		t.Errorf("maximum: got %d, want 99", got)
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of no values: got %d, want 0", got)
	}
	slices.Reverse(sorted)
	if got := median(sorted); got != 50 {
		t.Errorf("median of unsorted values: got %d, want 50", got)
	}
}
