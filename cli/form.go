package cli

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// form is how a report is printed, row by row: however long it is, it is never held as a whole.
type form interface {
	row(values []any) error
	end() error
}

// jsonForm is an array with an object a line.
type jsonForm struct {
	out     *bufio.Writer
	columns []column
	object  bytes.Buffer
	values  *json.Encoder // writes to object
	rows    int
}

func newJSONForm(columns []column, out io.Writer) *jsonForm {
	f := &jsonForm{out: bufio.NewWriter(out), columns: columns}
	f.values = json.NewEncoder(&f.object)
	f.values.SetEscapeHTML(false)
	return f
}

func (f *jsonForm) row(values []any) error {
	f.object.Reset()
	f.object.WriteString(",\n  ")
	if f.rows == 0 {
		f.object.Reset()
		f.object.WriteString("[\n  ")
	}
	f.rows++
	for i, c := range f.columns {
		before := ", "
		if i == 0 {
			before = "{"
		}
		f.object.WriteString(before + `"` + c.name + `": `)
		if err := f.values.Encode(values[i]); err != nil {
			return err
		}
		f.object.Truncate(f.object.Len() - 1) // Encode ends a line
	}
	f.object.WriteByte('}')
	_, err := f.out.Write(f.object.Bytes())
	return err
}

func (f *jsonForm) end() error {
	tail := "\n]\n"
	if f.rows == 0 {
		tail = "[]\n"
	}
	f.out.WriteString(tail) //nolint:errcheck // Flush tells
	return f.out.Flush()
}

// csvForm is RFC 4180 with a heading.
type csvForm struct{ w *csv.Writer }

func newCSVForm(columns []column, out io.Writer) *csvForm {
	f := &csvForm{csv.NewWriter(out)}
	heading := make([]string, len(columns))
	for i, c := range columns {
		heading[i] = c.name
	}
	f.w.Write(heading) //nolint:errcheck // end tells
	return f
}

// row writes the values as JSON has them, but for texts that look like formulas.
func (f *csvForm) row(values []any) error {
	cells := make([]string, len(values))
	for i, v := range values {
		if text, ok := v.(string); ok {
			cells[i] = inert(text)
			continue
		}
		cells[i] = cell(v)
	}
	return f.w.Write(cells)
}

func (f *csvForm) end() error {
	f.w.Flush()
	return f.w.Error()
}

// formulaBegins are the characters by which spreadsheets take a text for a formula, some also in their wide form, or
// drop before they look: https://owasp.org/www-community/attacks/CSV_Injection.
const formulaBegins = "=+-@\t\r\n＝＋－＠"

// inert puts an apostrophe before a text that a spreadsheet would take for a formula: clients choose the user tag.
func inert(text string) string {
	if first, _ := utf8.DecodeRuneInString(text); text != "" && strings.ContainsRune(formulaBegins, first) {
		return "'" + text
	}
	return text
}

func cell(v any) string {
	if at, ok := v.(time.Time); ok {
		return at.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(v)
}

// tableForm is for people. At its end stands the sum of what can be added up.
type tableForm struct {
	table   *table
	columns []column
	sums    []int64 // of the columns that are numbers
}

func newTableForm(columns []column, out io.Writer) *tableForm {
	var headings []string
	for _, c := range columns {
		if !c.aside {
			headings = append(headings, strings.ToUpper(strings.ReplaceAll(c.name, "_", " ")))
		}
	}
	return &tableForm{newTable(out, headings), columns, make([]int64, len(columns))}
}

func (f *tableForm) row(values []any) error {
	var cells []string
	for i, c := range f.columns {
		if n, ok := values[i].(int64); ok {
			f.sums[i] += n
		}
		if c.aside {
			continue
		}
		text := cell(values[i])
		if at, ok := values[i].(time.Time); ok {
			text = at.Format(time.DateTime)
		}
		cells = append(cells, dash(text))
	}
	f.table.row(cells)
	return nil
}

func (f *tableForm) end() error {
	var total []string
	for i, c := range f.columns {
		if c.aside {
			continue
		}
		sum := ""
		if strings.HasSuffix(c.name, "_tokens") || c.name == requestsColumn.name {
			sum = fmt.Sprint(f.sums[i])
		}
		total = append(total, sum)
	}
	total[0] = "total"
	f.table.row(total)
	return f.table.end()
}
