package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// columns are the targets of the table, and rated those whose ratio to the ReverseProxy is told.
var (
	columns      = []string{reverseProxy, gateway, byteCopy, nginx, haproxy}
	ratioColumns = []string{gateway, byteCopy, nginx, haproxy}
)

const (
	memoryName = "memory per held stream"
	countsName = "cut, failed, whole"
)

func header() []string {
	all := append([]string{"work", "measure"}, columns...)
	for _, name := range ratioColumns {
		all = append(all, name+" ratio")
	}
	return all
}

// rows are the table's.
func (r *report) rows() [][]string {
	var rows [][]string
	for _, w := range r.options.workloads {
		title := w.name
		for _, l := range w.metrics() {
			rows = append(rows, row(title, l.title(),
				func(target string) summary { return summarize(r.values(w.id, target, l)) },
				func(target string) summary { return r.ratio(w.id, target, l) }))
			title = ""
		}
		rows = append(rows, r.counts(w.id))
	}
	for _, h := range r.options.holds {
		rows = append(rows, row(h.name(), memoryName+", KB",
			func(target string) summary { return summarize(r.memory(h.id, target)) },
			func(target string) summary { return r.memoryRatio(h.id, target) }), r.counts(h.id))
	}
	return rows
}

func row(title, name string, value, ratio func(target string) summary) []string {
	cells := []string{title, name}
	for _, target := range columns {
		f := value(target)
		cells = append(cells, f.text(digitsOf(f)))
	}
	for _, target := range ratioColumns {
		cells = append(cells, ratio(target).text(2))
	}
	return cells
}

func (r *report) counts(id string) []string {
	cells := []string{"", countsName}
	for _, target := range columns {
		if sum := r.count(id, target); sum.complete+sum.truncated+sum.failed > 0 {
			cells = append(cells, fmt.Sprintf("%d, %d, %d", sum.truncated, sum.failed, sum.complete))
		} else {
			cells = append(cells, "-")
		}
	}
	return append(cells, slices.Repeat([]string{""}, len(ratioColumns))...)
}

// goalRows are the table of goals, with its header.
func (r *report) goalRows() [][]string {
	rows := [][]string{{"goal", "basegate over ReverseProxy", "at most", ""}}
	for _, j := range r.goals() {
		rows = append(rows, []string{j.name, j.summary.text(j.digits), number(j.most), j.verdict()})
	}
	return rows
}

// print writes the tables as text, and an example of what failed.
func (r *report) print(to io.Writer) error {
	fmt.Fprintf(to, "%s\n%s\n", machine(), strings.Join(r.options.programs.versions(), ", "))
	for _, rows := range [][][]string{append([][]string{header()}, r.rows()...), r.goalRows()} {
		fmt.Fprintln(to)
		table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(table, strings.Join(row, "\t"))
		}
		if err := table.Flush(); err != nil {
			return err //nolint:wrapcheck // the caller says what was under way
		}
	}
	for _, note := range append(r.notes(), r.examples()...) {
		fmt.Fprintf(to, "\n%s\n", note)
	}
	return nil
}

// examples are one failure of each work and target that had some.
func (r *report) examples() []string {
	var all []string
	for _, id := range r.ids() {
		for _, target := range append([]string{direct}, columns...) {
			if sum := r.count(id, target); sum.exampleErr != nil {
				all = append(all, fmt.Sprintf("%s, %s: %v", r.nameOf(id), target, sum.exampleErr))
			}
		}
	}
	return all
}

func (r *report) ids() []string {
	var all []string
	for _, w := range r.options.workloads {
		all = append(all, w.id)
	}
	for _, h := range r.options.holds {
		all = append(all, h.id)
	}
	return all
}

// notes are figures of the gateway alone.
func (r *report) notes() []string {
	var took []float64
	for _, one := range r.flushes {
		took = append(took, float64(one.Microseconds()))
	}
	flush := summarize(took)
	var all []string
	if settledNote := r.settledNote(); settledNote != "" {
		all = append(all, settledNote+".")
	}
	if flush.measured {
		all = append(all, fmt.Sprintf("One flush of the disk, which every answer waits for: %s µs, the median of %d in each round.",
			flush.text(digitsOf(flush)), flushes))
	}
	if r.queuedMemory != nil {
		all = append(all, r.queuedMemory.String()+".")
	}
	return all
}

// settled is how many requests the gateway charges for, each on disk before its answer ends, where most come at once: as
// measured beside the load and the upstream, and what its own CPU time would allow, which has not been measured.
func (r *report) settledNote() string {
	var rates, costs []float64
	for _, m := range r.loads[plainMany][gateway] {
		rates = append(rates, float64(m.complete)/m.wall.Seconds())
		costs = append(costs, m.cpu.Seconds()/float64(max(m.complete, 1)))
	}
	if len(rates) == 0 {
		return ""
	}
	rate, cost := summarize(rates), summarize(costs)
	return fmt.Sprintf("Settled on disk, %s: %s a second, with the load and the upstream on the same processors; by its CPU time alone, two processors would allow %.0f",
		r.nameOf(plainMany), rate.text(0), 2/cost.median)
}

const markdownHead = `# Benchmarks

Written by ` + "`go run ./bench -markdown docs/benchmarks.md`" + `; do not edit it by hand.

Machine: %s.
Proxies: %s.
Rounds: %d of %s for each work and target.

A figure is the median of the rounds, with the least and the most in brackets. The load generator, the upstream and the
proxy share the machine, so requests per second and latencies say little about another one: read the ratios, which are
to ReverseProxy, taken within each round.

- The upstream is the mock with ` + "`--instant`" + `: a constant answer, and a stream's events in one burst, or each after its
  pause. Held streams come from an upstream of the benchmark's own, which ends them when all have been measured.
- ReverseProxy is ` + "`httputil.ReverseProxy`" + ` doing nothing of its own: no keys, no checks, no log.
- basegate checks the key, its budgets and every field, rewrites the model, follows every event, writes every request to
  its ledger and waits until that is on disk, and logs one line a request.
- A copy in Go passes bytes from socket to socket and understands none: what it costs, no proxy in Go that sees the bytes
  can save. It has a connection to the upstream for each of its clients.
- nginx and HAProxy have as many workers or threads as Go takes processors, keep their connections to the upstream, pass
  every event on at once and log nothing.
- CPU is the user and system time of the proxy's process and of its workers, from ` + "`/proc/PID/stat`" + `.
- Added latency is the proxy's whole request less that of the same work sent to the upstream directly, in the same
  round. At many connections it is mostly the wait for a processor. basegate's is also told less one flush of the disk,
  the price of the ledger's promise.
- Memory per held stream is what the process and its workers have grown by, resident, while they hold the streams, of a
  process started for it. Where fewer than 3000 or 10000 streams are held, a process may not open more files here.
- Cut requests began and broke off, or ended without ` + "`[DONE]`" + `; failed ones had a status other than 200 or no answer.

`

// writeMarkdown writes the report to a file.
func (r *report) writeMarkdown(path string) error {
	var text strings.Builder
	fmt.Fprintf(&text, markdownHead, machine(), strings.Join(r.options.programs.versions(), ", "), r.options.rounds, r.options.span)
	markdownTable(&text, append([][]string{header()}, r.rows()...))
	for _, note := range r.notes() {
		fmt.Fprintf(&text, "\n%s\n", note)
	}
	text.WriteString("\n## Goals\n\n`make bench-check` fails when one is missed.\n\n")
	markdownTable(&text, r.goalRows())
	return os.WriteFile(path, []byte(text.String()), 0o644) //nolint:gosec,wrapcheck // a public page; the caller says what was under way
}

func markdownTable(to io.Writer, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(to, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(to, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
}
