package parity

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verdict is the result of a comparison.
type Verdict string

// The verdicts.
const (
	Identical        Verdict = "identical"        // byte for byte, but for id and created
	Documented       Verdict = "as documented"    // it differs as the HTTP contract says
	Different        Verdict = "different"        // it differs otherwise
	Nondeterministic Verdict = "nondeterministic" // the backend's own responses differ
	Skipped          Verdict = "skipped"          // the budget did not allow it
)

// Report is the outcome of a run.
type Report struct {
	Model      string    `json:"model"`
	Checkpoint string    `json:"checkpoint"`
	Gateway    string    `json:"gateway_version"`
	Time       time.Time `json:"time"`
	Duration   float64   `json:"duration_seconds"`
	Backends   []Backend `json:"backends"`
	Rows       []Row     `json:"cases"`
	Budget     int64     `json:"budget_tokens"`
	Spent      int64     `json:"spent_tokens"` // direct and through the gateway; at most, as not every response has a usage
}

// Backend is what a backend reported about itself.
type Backend struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	MaxModelLen int64  `json:"max_model_len"`
	Problem     string `json:"problem,omitempty"` // why it was left out; empty: it was not
}

// Row is the outcome of a case.
type Row struct {
	Name   string  `json:"name"`
	Prompt string  `json:"prompt"`
	Plain  *Result `json:"plain"` // nil: not sent in this mode
	Stream *Result `json:"stream"`
}

// Result is a verdict with its reason.
type Result struct {
	Verdict Verdict `json:"verdict"`
	Remark  string  `json:"remark,omitempty"`
}

// Count returns the number of comparisons with one of the verdicts.
func (r *Report) Count(verdicts ...Verdict) (n int) {
	for _, row := range r.Rows {
		for _, result := range []*Result{row.Plain, row.Stream} {
			if result != nil && slices.Contains(verdicts, result.Verdict) {
				n++
			}
		}
	}
	return n
}

// Summary returns the counts of all verdicts as a sentence.
func (r *Report) Summary() string {
	var parts []string
	for _, v := range []Verdict{Identical, Documented, Nondeterministic, Different, Skipped} {
		if n := r.Count(v); n > 0 || v == Different {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	return strings.Join(parts, ", ")
}

// Remarks returns the remarks of a row, once if both modes have the same.
func (r Row) Remarks() string {
	if r.Plain != nil && r.Stream != nil && r.Plain.Remark == r.Stream.Remark {
		return r.Plain.Remark
	}
	var remarks []string
	if r.Plain != nil && r.Plain.Remark != "" {
		remarks = append(remarks, "plain: "+r.Plain.Remark)
	}
	if r.Stream != nil && r.Stream.Remark != "" {
		remarks = append(remarks, "streamed: "+r.Stream.Remark)
	}
	return strings.Join(remarks, "; ")
}

// String returns the verdict; "-" if the mode was not sent.
func (r *Result) String() string {
	if r == nil {
		return "-"
	}
	return string(r.Verdict)
}

// Columns are the heads of the table of cases.
var Columns = []string{"case", "prompt", "plain", "streamed", "remark"}

// Table returns the rows of the table of cases.
func (r *Report) Table() (rows [][]string) {
	for _, row := range r.Rows {
		rows = append(rows, []string{row.Name, row.Prompt, row.Plain.String(), row.Stream.String(), row.Remarks()})
	}
	return rows
}

// WriteMarkdown writes the report as a section with tables, without a heading.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var backends [][]string
	for _, b := range r.Backends {
		backends = append(backends, []string{b.Name, b.Version, strconv.FormatInt(b.MaxModelLen, 10), b.Problem})
	}
	cases := r.Table()
	for _, row := range cases {
		for i, text := range row {
			if text == string(Different) {
				row[i] = "**" + text + "**"
			}
		}
	}
	_, err := fmt.Fprintf(w, "Model `%s` (`%s`), gateway %s, %s.\n\n%s\n%s. At most %d tokens used, of a budget of %d.\n\n%s",
		r.Model, r.Checkpoint, r.Gateway, r.Time.Format("2006-01-02 15:04 UTC"),
		markdownTable([]string{"backend", "vLLM", "context", ""}, backends), r.Summary(), r.Spent, r.Budget, markdownTable(Columns, cases))
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func markdownTable(columns []string, rows [][]string) string {
	var out strings.Builder
	head := strings.ReplaceAll("| "+strings.Join(columns, " | ")+" |", "  ", " ")
	out.WriteString(head + "\n|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		for _, text := range row {
			out.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(text) + " ")
		}
		out.WriteString("|\n")
	}
	return out.String()
}
