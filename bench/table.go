package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// report holds every measurement, by work and target, in the order of the rounds.
type report struct {
	options options
	works   []work
	results []map[string][]*measurement
	flush   time.Duration // see flushTime
	waiting waiting
}

func newReport(o options) *report {
	r := &report{options: o, works: o.works}
	for range r.works {
		r.results = append(r.results, map[string][]*measurement{})
	}
	return r
}

func (r *report) add(work int, target string, m *measurement) {
	r.results[work][target] = append(r.results[work][target], m)
}

// sound tells whether the gateway brought every request to its end.
func (r *report) sound() bool {
	for _, byTarget := range r.results {
		for _, m := range byTarget[gateway] {
			if m.cut > 0 || m.failed > 0 || m.whole == 0 {
				return false
			}
		}
	}
	return true
}

// line is one line of the table for a work: a figure of a target's measurement, given the direct one of the same
// round.
type line struct {
	name  string
	value func(w work, m, direct *measurement) float64
}

var lines = []line{
	{"CPU per request, µs", func(_ work, m, _ *measurement) float64 {
		return float64(m.cpu.Microseconds()) / float64(max(m.whole, 1))
	}},
	{"requests per second", func(_ work, m, _ *measurement) float64 { return float64(m.whole) / m.wall.Seconds() }},
	{"added latency, median, µs", func(_ work, m, direct *measurement) float64 {
		return float64((m.median - direct.median).Microseconds())
	}},
	{"added latency, p99, µs", func(_ work, m, direct *measurement) float64 {
		return float64((m.p99 - direct.p99).Microseconds())
	}},
}

var perEvent = line{"CPU per event, µs", func(w work, m, _ *measurement) float64 {
	return float64(m.cpu.Nanoseconds()) / 1000 / float64(max(m.whole*w.events, 1))
}}

// header and rows are the table.
var header = []string{"work", "measure", bare, gateway, "ratio"}

func (r *report) rows() [][]string {
	var rows [][]string
	for i, w := range r.works {
		each := lines
		if w.events > 0 {
			each = append([]line{perEvent}, lines...)
		}
		title := w.name
		for _, l := range each {
			rows = append(rows, r.row(i, title, l))
			title = ""
		}
		rows = append(rows, []string{"", "cut, failed, whole", r.counts(i, bare), r.counts(i, gateway), ""})
	}
	return rows
}

// row is one measure of one work. The ratios are those of each round, since what else the machine does differs more
// between rounds than within one.
func (r *report) row(i int, title string, l line) []string {
	values := map[string][]float64{}
	var ratios []float64
	for round, base := range r.results[i][direct] {
		b := l.value(r.works[i], r.results[i][bare][round], base)
		g := l.value(r.works[i], r.results[i][gateway][round], base)
		values[bare] = append(values[bare], b)
		values[gateway] = append(values[gateway], g)
		if b > 0 && g > 0 {
			ratios = append(ratios, g/b)
		}
	}
	b, g := figureOf(values[bare]), figureOf(values[gateway])
	return []string{title, l.name, b.text(digitsOf(b)), g.text(digitsOf(g)), figureOf(ratios).text(2)}
}

func (r *report) counts(i int, target string) string {
	var sum tally
	for _, m := range r.results[i][target] {
		sum.whole += m.whole
		sum.failed += m.failed
		sum.cut += m.cut
	}
	return fmt.Sprintf("%d, %d, %d", sum.cut, sum.failed, sum.whole)
}

// print writes the table as text, and an example of what failed.
func (r *report) print(to io.Writer) error {
	fmt.Fprintf(to, "%s\n\n", machine())
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, row := range r.rows() {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	err := table.Flush()
	for _, note := range r.notes() {
		fmt.Fprintf(to, "\n%s\n", note)
	}
	for i, byTarget := range r.results {
		for _, name := range []string{direct, bare, gateway} {
			for _, m := range byTarget[name] {
				if m.example != nil {
					fmt.Fprintf(to, "\n%s, %s: %v\n", r.works[i].name, name, m.example)
				}
			}
		}
	}
	return err //nolint:wrapcheck // the caller says what was under way
}

// notes are figures of the gateway alone.
func (r *report) notes() []string {
	return []string{
		r.settled() + ".",
		fmt.Sprintf("One flush of the disk, which every answer waits for: %d µs at the median.", r.flush.Microseconds()),
		r.waiting.String() + ".",
	}
}

// settled is how many requests the gateway charges for, each on disk before its answer ends, where most come at once: as
// measured beside the load and the upstream, and what its own CPU time would allow, which has not been measured.
func (r *report) settled() string {
	most := 0
	for i, w := range r.works {
		if w.events == 0 && w.connections > r.works[most].connections {
			most = i
		}
	}
	var rates, costs []float64
	for _, m := range r.results[most][gateway] {
		rates = append(rates, float64(m.whole)/m.wall.Seconds())
		costs = append(costs, m.cpu.Seconds()/float64(max(m.whole, 1)))
	}
	rate, cost := figureOf(rates), figureOf(costs)
	return fmt.Sprintf("Settled on disk, %s: %s a second, with the load and the upstream on the same processors; by its CPU time alone, two processors would allow %.0f",
		r.works[most].name, rate.text(0), 2/cost.median)
}

const markdownHead = `# Benchmarks

Written by ` + "`go run ./bench -markdown docs/benchmarks.md`" + `; do not edit it by hand.

Machine: %s. Rounds: %d of %s for each work and target.

A figure is the median of the rounds, with the least and the most in brackets. The load generator, the upstream and the
proxy share the machine, so requests per second and latencies say little about another one: read the ratios, which are
basegate over ReverseProxy, taken within each round.

- The upstream is the mock with ` + "`--instant`" + `: a constant answer, and a stream's events in one burst.
- ReverseProxy is ` + "`httputil.ReverseProxy`" + ` doing nothing of its own: no keys, no checks, no log.
- basegate checks the key and every field, rewrites the model, follows every event, writes every request to its ledger
  and waits until that is on disk, and logs one line a request.
- CPU is the user and system time of the proxy's process, from ` + "`/proc/PID/stat`" + `.
- Added latency is the proxy's whole request less that of the same work sent to the upstream directly, in the same
  round. At many connections it is mostly the wait for a processor.
- Cut requests began and broke off, or ended without ` + "`[DONE]`" + `; failed ones had a status other than 200 or no answer.

`

// writeMarkdown writes the report to a file.
func (r *report) writeMarkdown(path string) error {
	var text strings.Builder
	fmt.Fprintf(&text, markdownHead, machine(), r.options.rounds, r.options.measured)
	fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
	for _, row := range r.rows() {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
	}
	for _, note := range r.notes() {
		fmt.Fprintf(&text, "\n%s\n", note)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644) //nolint:gosec,wrapcheck // a public page; the caller says what was under way
}
