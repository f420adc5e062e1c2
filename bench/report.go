package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/prometheus/procfs"
)

// goal bounds one figure of a load, as the ratio to the first column, or in the first column itself. Times differ twofold between
// machines and days, ratios do not.
type goal struct {
	measure  string
	column   string
	limit    float64 // guards against regressions: -check fails above it
	ambition float64 // what the figure should become
}

// shortLimitFactor allows for the noise of a short run: its one round of streams takes a few ticks of CPU time.
const shortLimitFactor = 2

var (
	errIncomplete = errors.New("the gateway truncated a stream or failed a request")
	errOverLimit  = errors.New("over the limit or not measured")
)

// in returns the figure that the goal bounds, and the limit in a run.
func (g *goal) in(r *result, o options) (measured summary, limit float64) {
	limit = g.limit
	if o.short {
		limit *= shortLimitFactor
	}
	if g.column == r.columns[0] {
		return summarize(r.values[g.measure][g.column]), limit
	}
	return r.ratios(g.measure, g.column), limit
}

// checkResults returns an error for each column in which the gateway did not complete every request, and with -check for
// each goal that is over its limit or was not measured.
func checkResults(results []*result, o options) []error {
	var all []error
	for _, r := range results {
		for column, c := range r.counts {
			if c.truncated+c.failed > 0 && column != reverseProxy && column != haproxy {
				all = append(all, fmt.Errorf("%s, %s: %w: %d truncated, %d failed, one by: %w",
					r.title, column, errIncomplete, c.truncated, c.failed, c.example))
			}
		}
		for _, g := range r.load.goals {
			if m, limit := g.in(r, o); o.check && (!m.measured || m.median > limit) {
				all = append(all, fmt.Errorf("%s, %s: %s: %w: %s, the limit is %s", r.title, g.column, g.measure, errOverLimit, m, number(limit)))
			}
		}
	}
	return all
}

func printResults(to io.Writer, o options, results []*result) error {
	fmt.Fprintf(to, "Machine: %s. HAProxy: %s. Rounds: %d of %s for each load and column.\n", machine(), cmp.Or(o.version, "not installed, so it has no column"), o.rounds, o.span)
	var rows [][]string
	goals := [][]string{{"goal", "column", "measured", "limit", "ambition"}}
	for _, r := range results {
		if header := append([]string{"load", "measure"}, r.columns...); len(rows) == 0 || !slices.Equal(rows[0], header) {
			if err := printTable(to, rows); err != nil {
				return err
			}
			rows = [][]string{header}
		}
		rows = append(rows, r.rows()...)
		for _, g := range r.load.goals {
			m, limit := g.in(r, o)
			goals = append(goals, []string{r.title + ": " + g.measure, g.column, m.String(), number(limit), number(g.ambition)})
		}
	}
	return errors.Join(printTable(to, rows), printTable(to, goals))
}

// rows returns the rows of a load: the median of the first column with its extremes, and of each other column also its
// ratio to the first one.
func (r *result) rows() [][]string {
	var rows [][]string
	title := r.title
	for _, measure := range r.measures {
		row := []string{title, measure}
		for _, column := range r.columns {
			values := summarize(r.values[measure][column])
			cell := values.String()
			if ratio := r.ratios(measure, column); column != r.columns[0] && ratio.measured {
				cell = number(values.median) + " · " + ratio.String()
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
		title = ""
	}
	row := []string{title, "truncated, failed, complete"}
	for _, column := range r.columns {
		cell := "-"
		if c := r.counts[column]; c.truncated+c.failed+c.complete > 0 {
			cell = fmt.Sprintf("%d, %d, %d", c.truncated, c.failed, c.complete)
		}
		row = append(row, cell)
	}
	if slices.ContainsFunc(row[2:], func(cell string) bool { return cell != "-" }) {
		rows = append(rows, row)
	}
	return rows
}

// printTable prints a Markdown table whose columns are aligned. The first row is the header.
func printTable(to io.Writer, rows [][]string) error {
	if len(rows) < 2 {
		return nil
	}
	fmt.Fprintln(to)
	table := tabwriter.NewWriter(to, 0, 0, 1, ' ', 0)
	rows = slices.Insert(slices.Clone(rows), 1, slices.Repeat([]string{"---"}, len(rows[0])))
	for _, row := range rows {
		fmt.Fprintf(table, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	return table.Flush()
}

func machine() string {
	model, memory := "unknown CPU", uint64(0)
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
			model = cpus[0].ModelName
		}
		if m, err := fs.Meminfo(); err == nil && m.MemTotalBytes != nil {
			memory = *m.MemTotalBytes
		}
	}
	return fmt.Sprintf("%s, %d cores, %.0f GB of memory, %s %s/%s",
		model, runtime.NumCPU(), float64(memory)/1e9, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
