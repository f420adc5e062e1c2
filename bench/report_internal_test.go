package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// resultOf returns a result in which both columns had these values of one measure.
func resultOf(base, values []float64, goals ...goal) *result {
	return &result{
		title: "a load", load: &load{goals: goals}, columns: []string{reverseProxy, gateway}, measures: []string{cpuPerRequest},
		values: map[string]map[string][]float64{cpuPerRequest: {reverseProxy: base, gateway: values}},
		counts: map[string]counts{},
	}
}

func TestCheckFailsOverTheLimitOnly(t *testing.T) {
	over := func(text string) []string {
		return []string{"a load, basegate: CPU per request, µs: over the limit or not measured: " + text}
	}
	for name, c := range map[string]struct {
		base, values []float64
		goal         goal
		short        bool
		want         []string
	}{
		"under the limit": {[]float64{2}, []float64{1}, goal{limit: 0.6}, false, nil},
		"at the limit":    {[]float64{2}, []float64{1}, goal{limit: 0.5}, false, nil},
		"over the ambition, but not over the limit": {[]float64{2}, []float64{1}, goal{limit: 0.6, ambition: 0.4}, false, nil},
		"over the limit": {
			[]float64{1, 1, 1},
			[]float64{1, 2, 3},
			goal{limit: 0.8},
			false, over("2.00 (1.00 to 3.00), the limit is 0.80"),
		},
		"at twice the limit in a short run":     {[]float64{1}, []float64{2}, goal{limit: 1}, true, nil},
		"over twice the limit in a short run":   {[]float64{1}, []float64{2.1}, goal{limit: 1}, true, over("2.10, the limit is 2.00")},
		"without a base":                        {nil, []float64{1}, goal{limit: 2}, false, over("-, the limit is 2.00")},
		"a latency that is negative from noise": {[]float64{1}, []float64{-1}, goal{limit: 2}, false, over("-, the limit is 2.00")},
	} {
		t.Run(name, func(t *testing.T) {
			c.goal.measure, c.goal.column = cpuPerRequest, gateway
			results := []*result{resultOf(c.base, c.values, c.goal)}
			var got []string
			for _, err := range checkResults(results, options{check: true, short: c.short}) {
				if !errors.Is(err, errOverLimit) {
					t.Errorf("got %v, want errOverLimit", err)
				}
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := checkResults(results, options{short: c.short}); got != nil {
				t.Errorf("without -check: got %v, want none", got)
			}
		})
	}
}

func TestGoalOfTheFirstColumnBoundsTheFigureItself(t *testing.T) {
	for limit, fails := range map[float64]bool{2: true, 3: false} {
		r := resultOf([]float64{3}, nil, goal{cpuPerRequest, reverseProxy, limit, 1})
		if err := errors.Join(checkResults([]*result{r}, options{check: true})...); errors.Is(err, errOverLimit) != fails {
			t.Errorf("3.00, the limit is %v: got %v, want an error: %v", limit, err, fails)
		}
	}
}

func TestIncompleteRequestOfTheGatewayFailsEveryRun(t *testing.T) {
	for column, fails := range map[string]bool{gateway: true, flushing: true, oldGateway: true, withReceipt: true, reverseProxy: false, haproxy: false} {
		for _, c := range []counts{{complete: 9, truncated: 1, example: errTruncated}, {complete: 9, failed: 1, example: errStatus}} {
			r := resultOf(nil, nil)
			r.counts[column] = c
			err := errors.Join(checkResults([]*result{r}, options{})...)
			if errors.Is(err, errIncomplete) != fails || errors.Is(err, c.example) != fails {
				t.Errorf("%s, %v: got %v, want an error: %v", column, c, err, fails)
			}
		}
	}
}

func TestRowsShowTheMedianAndTheRatioToTheFirstColumn(t *testing.T) {
	r := resultOf([]float64{100, 200, 300}, []float64{150, 200, 150})
	r.columns = append(r.columns, haproxy)
	r.counts[reverseProxy] = counts{complete: 7, failed: 2, truncated: 1}
	want := [][]string{
		{"a load", cpuPerRequest, "200 (100 to 300)", "150 · 1.00 (0.50 to 1.50)", "-"},
		{"", "truncated, failed, complete", "1, 2, 7", "-", "-"},
	}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTablesAreMarkdownWithOneForEachSetOfColumns(t *testing.T) {
	receipts := resultOf([]float64{1}, []float64{2})
	receipts.title, receipts.columns = "receipts", []string{gateway}
	goal := goal{measure: cpuPerRequest, column: gateway, limit: 3, ambition: 1.5}
	var text strings.Builder
	if err := printResults(&text, options{}, []*result{resultOf([]float64{1}, []float64{2}, goal), resultOf(nil, []float64{2}), receipts}); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(text.String(), "\n")
	want := `
| load   | measure             | ReverseProxy | basegate    |
| ---    | ---                 | ---          | ---         |
| a load | CPU per request, µs | 1.00         | 2.00 · 2.00 |
| a load | CPU per request, µs | -            | 2.00        |

| load     | measure             | basegate |
| ---      | ---                 | ---      |
| receipts | CPU per request, µs | 2.00     |

| goal                        | column   | measured | limit | ambition |
| ---                         | ---      | ---      | ---   | ---      |
| a load: CPU per request, µs | basegate | 2.00     | 3.00  | 1.50     |
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := printResults(failingWriter{}, options{}, []*result{receipts}); err == nil {
		t.Error("a failed write is no error")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestGoalsNameColumnsOfTheirExperiment(t *testing.T) {
	goals := 0
	for _, e := range experiments(options{haproxy: "haproxy", streams: 20_000}) {
		for _, l := range e.loads {
			for _, g := range l.goals {
				goals++
				if !slices.Contains(e.columns, g.column) {
					t.Errorf("%s: no column %q in %q", e.title(&l), g.column, e.columns)
				}
			}
		}
	}
	if goals != 22 {
		t.Errorf("got %d goals, want 22", goals)
	}
}

func TestEachStreamNeedsTwoDescriptors(t *testing.T) {
	for descriptors, want := range map[int]int{100: 0, 1024: 18, 20_000: 9_250, wantedFiles: 15_634} {
		if got := maxStreams(descriptors); got != want {
			t.Errorf("%d: got %d, want %d", descriptors, got, want)
		}
	}
}
