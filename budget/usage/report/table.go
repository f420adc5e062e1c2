package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table writes rows under their headings in aligned columns. It buffers the first thousand rows to measure them; a
// wider cell in a later row widens its column from there on.
type Table struct {
	out      *bufio.Writer
	widths   []int // of the columns, in characters
	measured [][]string
	printing bool // whether the measured rows have been printed
}

const (
	measuredRows = 1000
	columnGap    = "  "
)

// NewTable returns a table with the headings as its first row.
func NewTable(out io.Writer, headings []string) *Table {
	t := &Table{out: bufio.NewWriter(out), widths: make([]int, len(headings))}
	t.Row(headings)
	return t
}

// Row adds a row, with as many cells as there are headings, whose control characters are shown as escapes. Flush returns
// the error of printing it.
func (t *Table) Row(cells []string) {
	cells = slices.Clone(cells)
	for i, cell := range cells {
		if strings.ContainsFunc(cell, isHidden) {
			cell = strings.Trim(strconv.QuoteToGraphic(cell), `"`)
			cells[i] = cell
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
	}
	if t.printing {
		t.print(cells)
		return
	}
	if t.measured = append(t.measured, cells); len(t.measured) > measuredRows {
		t.printMeasured()
	}
}

// isHidden reports whether a terminal would act upon the character instead of showing it. User tags may contain any.
func isHidden(r rune) bool { return !unicode.IsGraphic(r) }

func (t *Table) printMeasured() {
	for _, cells := range t.measured {
		t.print(cells)
	}
	t.measured, t.printing = nil, true
}

func (t *Table) print(cells []string) {
	var line strings.Builder
	for i, cell := range cells {
		line.WriteString(cell)
		line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)))
		line.WriteString(columnGap)
	}
	t.out.WriteString(strings.TrimRight(line.String(), " ")) //nolint:errcheck // Flush returns the error
	t.out.WriteByte('\n')                                    //nolint:errcheck // Flush returns the error
}

// Flush prints the rows that are buffered. It must be called after the last row.
func (t *Table) Flush() error {
	if !t.printing {
		t.printMeasured()
	}
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}
