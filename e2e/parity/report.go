package parity

import (
	"fmt"
	"io"
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

func newReport(s Settings) *Report {
	return &Report{
		Model: s.Model, Checkpoint: s.Checkpoint, Gateway: s.Version, Time: s.Now().UTC().Truncate(time.Second), Budget: s.Budget,
	}
}

// Count returns the number of comparisons with a verdict.
func (r *Report) Count(v Verdict) int { return r.count(func(have Verdict) bool { return have == v }) }

// Comparisons returns the number of comparisons.
func (r *Report) Comparisons() int { return r.count(func(Verdict) bool { return true }) }

func (r *Report) count(matches func(Verdict) bool) int {
	n := 0
	for _, row := range r.Rows {
		for _, result := range []*Result{row.Plain, row.Stream} {
			if result != nil && matches(result.Verdict) {
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
	var all []string
	for _, part := range []struct {
		mode   string
		result *Result
	}{{"plain", r.Plain}, {"streamed", r.Stream}} {
		if part.result != nil && part.result.Remark != "" {
			all = append(all, part.mode+": "+part.result.Remark)
		}
	}
	if len(all) == 2 && r.Plain.Remark == r.Stream.Remark {
		return r.Plain.Remark
	}
	return strings.Join(all, "; ")
}

// String returns the verdict; "-" if the mode was not sent.
func (r *Result) String() string {
	if r == nil {
		return "-"
	}
	return string(r.Verdict)
}

// WriteMarkdown writes the report as a section with tables, without a heading.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "Model `%s` (`%s`), gateway %s, %s.\n\n", r.Model, r.Checkpoint, r.Gateway, r.Time.Format("2006-01-02 15:04 UTC"))
	out.WriteString("| backend | vLLM | context | |\n|---|---|---|---|\n")
	for _, b := range r.Backends {
		fmt.Fprintf(&out, "| %s | %s | %d | %s |\n", cell(b.Name), cell(b.Version), b.MaxModelLen, cell(b.Problem))
	}
	fmt.Fprintf(&out, "\n%s. At most %d tokens used, of a budget of %d.\n\n", r.Summary(), r.Spent, r.Budget)
	out.WriteString("| case | prompt | plain | streamed | remark |\n|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n",
			cell(row.Name), cell(row.Prompt), mark(row.Plain), mark(row.Stream), cell(row.Remarks()))
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// mark returns a verdict for a table, with emphasis if it is a defect.
func mark(r *Result) string {
	if r != nil && r.Verdict == Different {
		return "**" + string(r.Verdict) + "**"
	}
	return r.String()
}

// cell returns a text that does not break a Markdown table.
func cell(text string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text) }
