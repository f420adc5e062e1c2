package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// columns returns the targets of the table.
func (r *report) columns() []string { return append([]string{reverseProxy}, r.ratioColumns()...) }

// ratioColumns returns those with a column for the ratio to the ReverseProxy.
func (r *report) ratioColumns() []string {
	all := []string{gateway, flushing, byteCopy, nginx, haproxy}
	if r.options.programs.old != "" {
		all = slices.Insert(all, 2, oldGateway)
	}
	return all
}

const (
	memoryName = "memory per held stream"
	countsName = "truncated, failed, complete"
)

func (r *report) header() []string {
	all := append([]string{"load", "measure"}, r.columns()...)
	for _, name := range r.ratioColumns() {
		all = append(all, name+" ratio")
	}
	return all
}

// rows returns the rows of the table.
func (r *report) rows() [][]string {
	var rows [][]string
	for _, w := range r.options.workloads {
		title := w.name
		for _, m := range w.metrics() {
			rows = append(rows, r.row(title, m.title(),
				func(target string) summary { return summarize(r.values(w.id, target, m)) },
				func(target string) summary { return r.ratio(w.id, target, m) }))
			title = ""
		}
		rows = append(rows, r.counts(w.id))
	}
	for _, h := range r.options.holds {
		rows = append(rows, r.row(h.name(), memoryName+", KB",
			func(target string) summary { return summarize(r.memory(h.id, target)) },
			func(target string) summary { return r.memoryRatio(h.id, target) }), r.counts(h.id))
	}
	return rows
}

func (r *report) row(title, name string, value, ratio func(target string) summary) []string {
	cells := []string{title, name}
	for _, target := range r.columns() {
		f := value(target)
		cells = append(cells, f.text(digitsOf(f)))
	}
	for _, target := range r.ratioColumns() {
		cells = append(cells, ratio(target).text(2))
	}
	return cells
}

func (r *report) counts(id string) []string {
	cells := []string{"", countsName}
	for _, target := range r.columns() {
		if sum := r.count(id, target); sum.complete+sum.truncated+sum.failed > 0 {
			cells = append(cells, fmt.Sprintf("%d, %d, %d", sum.truncated, sum.failed, sum.complete))
		} else {
			cells = append(cells, "-")
		}
	}
	return append(cells, slices.Repeat([]string{""}, len(r.ratioColumns()))...)
}

// goalRows returns the table of goals with its header.
func (r *report) goalRows() [][]string {
	rows := [][]string{{"goal", "basegate over ReverseProxy", "limit", "", "ambition", "gap"}}
	for _, g := range r.goals() {
		rows = append(rows, []string{
			g.name, g.measured.text(g.digits), number(g.limit), g.verdict(), number(g.ambition), g.gap(),
		})
	}
	return rows
}

// print writes the tables as text, with one error of each target that had any.
func (r *report) print(to io.Writer) error {
	fmt.Fprintf(to, "%s\n%s\n", machine(), strings.Join(r.options.programs.versions(), ", "))
	for _, rows := range [][][]string{append([][]string{r.header()}, r.rows()...), r.goalRows()} {
		fmt.Fprintln(to)
		table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(table, strings.Join(row, "\t"))
		}
		if err := table.Flush(); err != nil {
			return err //nolint:wrapcheck // the caller adds context
		}
	}
	for _, note := range append(r.notes(), r.examples()...) {
		fmt.Fprintf(to, "\n%s\n", note)
	}
	return nil
}

// examples returns one error of each workload and target that had any.
func (r *report) examples() []string {
	var all []string
	for _, id := range r.ids() {
		for _, target := range append([]string{direct}, r.columns()...) {
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

// notes returns the figures of the gateway alone.
func (r *report) notes() []string {
	var times, cpu []float64
	for _, one := range r.flushes {
		times, cpu = append(times, float64(one.wall.Microseconds())), append(cpu, float64(one.cpu.Microseconds()))
	}
	flush, flushCPU := summarize(times), summarize(cpu)
	var all []string
	if note := r.settledNote(); note != "" {
		all = append(all, note+".")
	}
	if flush.measured {
		all = append(all, fmt.Sprintf("One flush of the disk, which every response waits for: %s µs, the median of %d in each round, and %s µs of CPU.",
			flush.text(digitsOf(flush)), flushes, flushCPU.text(digitsOf(flushCPU))))
	}
	if r.batch != nil {
		all = append(all, r.batch.String()+".")
	}
	if r.receipts != nil {
		all = append(all, r.receipts.String()+".")
	}
	if r.postgres != nil {
		all = append(all, r.postgres.String()+".")
	}
	if r.prefix != nil {
		all = append(all, r.prefix.String()+".")
	}
	if r.chat != nil {
		all = append(all, r.chat.String()+".")
	}
	if r.queued != nil {
		all = append(all, r.queued.String()+".")
	}
	return all
}

// settledNote says how many requests a second the gateway settles on disk at the most connections: as measured beside
// the load and the upstream, and as computed from its CPU time alone, which is not measured.
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
	return fmt.Sprintf("Settled on disk, %s: %s a second, while the load and the upstream share the processors; by its CPU time alone, "+
		"two processors would allow %.0f", r.nameOf(plainMany), rate.text(0), 2/cost.median)
}

const markdownHead = `# Benchmarks

Written by ` + "`go run ./bench -markdown docs/benchmarks.md`" + `, except for the section on usage pages; do not edit the rest by
hand.

Machine: %s.
Proxies: %s.
Rounds: %d of %s for each load and target.

A figure is the median of the rounds, with the lowest and the highest in brackets. The load generator, the upstream and
the proxy share the machine, so requests per second and latencies do not transfer to another machine. Read the ratios:
they are to ReverseProxy, and taken within each round.

- The upstream replays the constant responses of a mock vLLM: a plain response, or a stream whose events are sent at
  once or at a fixed pace. Held streams come from another upstream, which ends them when all have been measured.
- ReverseProxy is a plain ` + "`httputil.ReverseProxy`" + `: no keys, no validation, no log.
- basegate checks the key, its budgets and every field, rewrites the model, parses every event, writes every request to
  its ledger and waits until that is on disk, and logs one line per request.
- With ` + "`database.flush: 1s`" + ` rows are flushed to disk once a second, and responses wait for the write alone.
- A copy in Go copies bytes from socket to socket without parsing them: its cost is a lower bound for any proxy in Go
  that sees the bytes. It has one connection to the upstream per client.
- nginx and HAProxy have as many workers or threads as Go uses processors, keep their connections to the upstream, flush
  each event at once and log nothing.
- CPU is the user and system time of the proxy's process and of its workers, from ` + "`/proc/PID/stat`" + `.
- Added latency is the duration of a request through the proxy less that of the same request sent to the upstream
  directly, in the same round. At many connections it is mostly the wait for a processor. For basegate there is also the
  added latency less one flush of the disk, which is the cost of the ledger's durability, and on one connection the CPU time
  less that of one flush.
- Memory per held stream is the growth of the resident memory of the process and its workers, of a process started for
  this load. Where fewer than 3000 or 10000 streams are held, the limit of open files is the reason.
- Truncated requests began and broke off, or ended without ` + "`[DONE]`" + `; failed ones had a status other than 200 or no
  response.

`

// markdownGoals precedes the table of goals.
const markdownGoals = `
## Goals

The limit guards against regressions: ` + "`make bench-check`" + ` fails above it. It is the highest median measured, plus a
margin for the differences between runs. The ambition is the ratio aimed at; the last column is the gap to it.

`

// pagesHeading begins the section that is measured by make pages and written by hand.
const pagesHeading = "\n## Usage pages\n"

// pagesSection returns the section on usage pages of the file, which may not exist.
func pagesSection(path string) string {
	text, err := os.ReadFile(path) //nolint:gosec // the path is a flag
	if err != nil {
		return ""
	}
	_, section, found := strings.Cut(string(text), pagesHeading)
	if !found {
		return ""
	}
	return pagesHeading + section
}

// writeMarkdown writes the report to a file, and keeps the section on usage pages.
func (r *report) writeMarkdown(path string) error {
	var text strings.Builder
	fmt.Fprintf(&text, markdownHead, machine(), strings.Join(r.options.programs.versions(), ", "), r.options.rounds, r.options.span)
	markdownTable(&text, append([][]string{r.header()}, r.rows()...))
	for _, note := range r.notes() {
		fmt.Fprintf(&text, "\n%s\n", note)
	}
	text.WriteString(markdownGoals)
	markdownTable(&text, r.goalRows())
	text.WriteString(pagesSection(path))
	return os.WriteFile(path, []byte(text.String()), 0o644) //nolint:gosec,wrapcheck // a public page; the caller adds context
}

func markdownTable(to io.Writer, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(to, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(to, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
}
