package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// rowWriter writes a report in one format. It buffers, and keeps no more than a bounded number of rows.
type rowWriter interface {
	// writeRow writes the values of the columns, and does not keep the slice.
	writeRow(values []any) error
	// close writes the end of the report and flushes.
	close() error
}

type jsonWriter struct {
	out     *bufio.Writer
	columns Columns
	object  bytes.Buffer
	values  *json.Encoder // writes to object
	rows    int
}

func newJSONWriter(out io.Writer, columns Columns) *jsonWriter {
	w := &jsonWriter{out: bufio.NewWriter(out), columns: columns}
	w.values = json.NewEncoder(&w.object)
	w.values.SetEscapeHTML(false)
	return w
}

func (w *jsonWriter) writeRow(values []any) error {
	w.object.Reset()
	if w.rows == 0 {
		w.object.WriteString("[\n  ")
	} else {
		w.object.WriteString(",\n  ")
	}
	w.rows++
	for i, c := range w.columns {
		if c.jsonOnly && values[i] == "" {
			continue
		}
		separator := ", "
		if i == 0 {
			separator = "{"
		}
		w.object.WriteString(separator + `"` + c.name + `": `)
		if err := w.values.Encode(values[i]); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		w.object.Truncate(w.object.Len() - 1) // the newline that Encode adds
	}
	w.object.WriteByte('}')
	if _, err := w.out.Write(w.object.Bytes()); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func (w *jsonWriter) close() error {
	end := "\n]\n"
	if w.rows == 0 {
		end = "[]\n"
	}
	w.out.WriteString(end) //nolint:errcheck // Flush returns the error
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

type csvWriter struct {
	out   *csv.Writer
	cells []string
}

func newCSVWriter(out io.Writer, columns Columns) *csvWriter {
	w := &csvWriter{csv.NewWriter(out), make([]string, len(columns))}
	for i, c := range columns {
		w.cells[i] = c.name
	}
	w.out.Write(w.cells) //nolint:errcheck // close returns the error
	return w
}

func (w *csvWriter) writeRow(values []any) error {
	for i, v := range values {
		if s, ok := v.(string); ok {
			w.cells[i] = escapeFormula(s)
			continue
		}
		w.cells[i] = format(v)
	}
	if err := w.out.Write(w.cells); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func (w *csvWriter) close() error {
	w.out.Flush()
	if err := w.out.Error(); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// formulaPrefixes are the characters that make a spreadsheet take a cell for a formula, some also in their full-width
// form, and those that it strips before it looks: https://owasp.org/www-community/attacks/CSV_Injection.
const formulaPrefixes = "=+-@\t\r\n＝＋－＠"

// escapeFormula puts an apostrophe before a text that a spreadsheet would take for a formula. Clients choose some of
// the texts, such as the user tag.
func escapeFormula(s string) string {
	if first, _ := utf8.DecodeRuneInString(s); s != "" && strings.ContainsRune(formulaPrefixes, first) {
		return "'" + s
	}
	return s
}

// format returns a value as JSON has it, but a text without quotes and escapes.
func format(value any) string {
	switch v := value.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

type tableWriter struct {
	table   *Table
	columns Columns
	sums    []int64 // of the columns that are summed
}

func newTableWriter(out io.Writer, columns Columns) *tableWriter {
	var headings []string
	for _, c := range columns {
		if !c.omitFromTable {
			headings = append(headings, strings.ToUpper(strings.ReplaceAll(c.name, "_", " ")))
		}
	}
	return &tableWriter{NewTable(out, headings), columns, make([]int64, len(columns))}
}

func (w *tableWriter) writeRow(values []any) error {
	var cells []string
	for i, c := range w.columns {
		if n, ok := values[i].(int64); ok && c.summed {
			w.sums[i] += n
		}
		if c.omitFromTable {
			continue
		}
		cell := format(values[i])
		if at, ok := values[i].(time.Time); ok {
			cell = at.Format(time.DateTime)
		}
		cells = append(cells, cmp.Or(cell, "-"))
	}
	w.table.Row(cells)
	return nil
}

func (w *tableWriter) close() error {
	var total []string
	for i, c := range w.columns {
		if c.omitFromTable {
			continue
		}
		cell := ""
		if c.summed {
			cell = strconv.FormatInt(w.sums[i], 10)
		}
		total = append(total, cell)
	}
	total[0] = "total"
	w.table.Row(total)
	return w.table.Flush()
}
