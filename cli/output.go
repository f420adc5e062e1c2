package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// commandLockWait is how long a command waits for another process to release the database.
const commandLockWait = 5 * time.Second

// printTable prints rows under their headings, aligned.
func printTable(cmd *cobra.Command, headings []string, rows [][]string) error {
	t := newTable(cmd.OutOrStdout(), headings)
	for _, row := range rows {
		t.row(row)
	}
	return t.end()
}

// table prints rows under their headings, aligned. It keeps only the first ones in memory, to measure them; a later one
// that is wider widens its column from there on.
type table struct {
	out    *bufio.Writer
	widths []int // in characters
	first  [][]string
	begun  bool // whether the first rows have been printed
}

const (
	tableMeasured = 1000 // rows
	tableGap      = "  "
)

func newTable(out io.Writer, headings []string) *table {
	t := &table{out: bufio.NewWriter(out), widths: make([]int, len(headings))}
	t.row(headings)
	return t
}

// row takes as many cells as there are headings. What goes wrong is told by end.
func (t *table) row(cells []string) {
	for i, cell := range cells {
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
	}
	if t.begun {
		t.print(cells)
		return
	}
	if t.first = append(t.first, cells); len(t.first) > tableMeasured {
		t.begin()
	}
}

func (t *table) begin() {
	for _, cells := range t.first {
		t.print(cells)
	}
	t.first, t.begun = nil, true
}

func (t *table) print(cells []string) {
	var line strings.Builder
	for i, cell := range cells {
		line.WriteString(cell)
		line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)))
		line.WriteString(tableGap)
	}
	t.out.WriteString(strings.TrimRight(line.String(), " ")) //nolint:errcheck // end tells
	t.out.WriteByte('\n')                                    //nolint:errcheck // end tells
}

// end prints what is left.
func (t *table) end() error {
	if !t.begun {
		t.begin()
	}
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// printJSON prints v, indented.
func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// date is a time as lists show it.
func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// dash stands for what is empty.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
