package main

import (
	"testing"
	"time"
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
	if got := summarize(nil); got.measured || got.String() != "-" {
		t.Errorf("got %v, measured %v, want -", got, got.measured)
	}
}

func TestSummaryShowsTheExtremesIfTheRoundsDiffer(t *testing.T) {
	if got, want := summarize([]float64{1, 20, 400}).String(), "20.0 (1.00 to 400)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := summarize([]float64{2}).String(), "2.00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDecimalsDecreaseWithMagnitude(t *testing.T) {
	for value, want := range map[float64]string{0: "0.00", 9.9: "9.90", 10: "10.0", -10: "-10.0", 100: "100", -805: "-805"} {
		if got := number(value); got != want {
			t.Errorf("%v: got %q, want %q", value, got, want)
		}
	}
}

func TestValuesAreComparedRoundByRound(t *testing.T) {
	for name, c := range map[string]struct {
		values, bases []float64
		want          summary
	}{
		"ratios":                         {[]float64{2, 9, 1}, []float64{1, 3, 2}, summary{0.5, 2, 3, true}},
		"ratios of positive values only": {[]float64{2, 2, -4, 0, 3}, []float64{0, -1, 2, 1, 2}, summary{1.5, 1.5, 1.5, true}},
		"ratios to a missing target":     {[]float64{1, 2}, nil, summary{}},
		"ratios of a missing target":     {nil, []float64{1, 2}, summary{}},
		"ratios of common rounds":        {[]float64{5, 1, 9}, []float64{2, 2}, summary{0.5, 1.5, 2.5, true}},
	} {
		if got := resultOf(c.bases, c.values).ratios(cpuPerRequest, gateway); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestQuantileReturnsAMeasuredLatency(t *testing.T) {
	var s sample
	if got := s.quantile(0.5); got != 0 {
		t.Errorf("of no requests: got %d, want 0", got)
	}
	for i := range 100 {
		s.latencies = append(s.latencies, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 99} {
		if got := s.quantile(q); got != want {
			t.Errorf("%v: got %d, want %d", q, got, want)
		}
	}
}
