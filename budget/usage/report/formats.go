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

// WriteJSON writes the report as a JSON array with one object per line.
func (u Usage) WriteJSON(out io.Writer) error {
	w := bufio.NewWriter(out) // which returns its first error at every later write
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	begin, end := "[\n  ", "[]\n"
	err := u.each(func(values []any) error {
		text.Reset()
		text.WriteString(begin)
		begin, end = ",\n  ", "\n]\n"
		separator := "{"
		for i, c := range u.Columns {
			if c.jsonOnly && (values[i] == "" || values[i] == nil) {
				continue
			}
			text.WriteString(separator + `"` + c.name + `": `)
			separator = ", "
			if err := encoder.Encode(values[i]); err != nil {
				return err
			}
			text.Truncate(text.Len() - 1) // the newline that Encode adds
		}
		text.WriteByte('}')
		_, err := w.Write(text.Bytes())
		return err
	})
	if err == nil {
		w.WriteString(end) //nolint:errcheck // Flush returns the error
		err = w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// WriteCSV writes the report as CSV (RFC 4180) with a header line.
func (u Usage) WriteCSV(out io.Writer) error {
	u.Columns = u.Columns.fixed()
	w := csv.NewWriter(out)
	cells := make([]string, len(u.Columns))
	for i, c := range u.Columns {
		cells[i] = c.name
	}
	err := w.Write(cells)
	if err == nil {
		err = u.each(func(values []any) error {
			for i, v := range values {
				cells[i] = format(v)
				if s, ok := v.(string); ok {
					cells[i] = escapeFormula(s)
				}
			}
			return w.Write(cells)
		})
	}
	if err == nil {
		w.Flush()
		err = w.Error()
	}
	if err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// WriteTable writes the report as a table for people: without the columns that only programs need, and with a last line
// that sums the requests and tokens.
func (u Usage) WriteTable(out io.Writer) error {
	u.Columns = u.Columns.fixed().shown()
	headings, total := make([]string, len(u.Columns)), make([]string, len(u.Columns))
	for i, c := range u.Columns {
		headings[i] = strings.ToUpper(strings.ReplaceAll(c.name, "_", " "))
	}
	table, sums := NewTable(out, headings), make([]int64, len(u.Columns))
	err := u.each(func(values []any) error {
		cells := make([]string, len(values))
		for i, v := range values {
			cells[i] = cmp.Or(format(v), "-")
			switch v := v.(type) {
			case time.Time:
				cells[i] = v.Format(time.DateTime)
			case int64:
				sums[i] += v
			}
		}
		table.Row(cells)
		return nil
	})
	if err != nil {
		return err
	}
	for i, c := range u.Columns {
		if c.summed {
			total[i] = strconv.FormatInt(sums[i], 10)
		}
	}
	total[0] = "total"
	table.Row(total)
	return table.Flush()
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
