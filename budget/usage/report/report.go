// Package report formats usage: it defines the columns that the command line and the console show, and writes rows of
// the ledger as CSV, JSON or a table. All formats are written row by row in bounded memory, and no CSV cell is one that
// a spreadsheet takes for a formula. Selecting, grouping and sorting the rows is left to package usage, and the choice
// of the names that may be shown to the caller.
package report

import (
	"cmp"
	"io"
	"iter"

	"basegate/budget/usage"
	"basegate/identity"
)

// Names resolves the ids of the ledger. An id that it does not have is shown as it is.
type Names struct {
	Keys   func(id string) (identity.Principal, bool) // nil: none is known
	Emails map[string]string                          // by account id
}

func (n Names) key(id string) (key identity.Principal) {
	if n.Keys != nil {
		key, _ = n.Keys(id)
	}
	return key
}

func (n Names) keyPrefix(id string) string { return cmp.Or(n.key(id).KeyPrefix, id) }
func (n Names) keyName(id string) string   { return n.key(id).KeyName }
func (n Names) account(id string) string   { return cmp.Or(n.Emails[id], id) }

// Usage is a report of usage. Each of its methods reads the rows once, and returns the first error of reading or
// writing.
type Usage struct {
	Columns Columns
	Names   Names
	Rows    iter.Seq2[usage.Row, error] // from usage.Store.Rows
}

// WriteCSV writes the report as CSV (RFC 4180) with a header line.
func (u Usage) WriteCSV(out io.Writer) error {
	u.Columns = u.Columns.fixed()
	return u.write(newCSVWriter(out, u.Columns))
}

// WriteJSON writes the report as a JSON array with one object per line.
func (u Usage) WriteJSON(out io.Writer) error { return u.write(newJSONWriter(out, u.Columns)) }

// WriteTable writes the report as a table for people: without the columns that only programs need, and with a last line
// that sums the requests and tokens.
func (u Usage) WriteTable(out io.Writer) error {
	u.Columns = u.Columns.fixed()
	return u.write(newTableWriter(out, u.Columns))
}

func (u Usage) write(w rowWriter) error {
	values := make([]any, len(u.Columns))
	for row, err := range u.Rows {
		if err != nil {
			return err
		}
		for i, c := range u.Columns {
			values[i] = c.value(u.Names, &row)
		}
		if err := w.writeRow(values); err != nil {
			return err
		}
	}
	return w.close()
}
