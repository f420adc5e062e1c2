// Package report formats usage: it defines the columns that the command line and the console show, and writes rows of
// the ledger as CSV, JSON or a table. All formats are written row by row in bounded memory, and no CSV cell is one that
// a spreadsheet takes for a formula. Selecting, grouping and sorting the rows is left to package usage, and the choice
// of the names that may be shown to the caller.
package report

import (
	"cmp"
	"iter"

	"basegate/budget/usage"
	"basegate/identity"
)

// Names resolves the ids of the ledger. An id that it does not have is shown as it is.
type Names struct {
	Keys  func(id string) (identity.Principal, bool) // nil: none is known
	Email func(account string) string                // empty if it is not known; nil: none is
}

func (n Names) key(id string) (key identity.Principal) {
	if n.Keys != nil {
		key, _ = n.Keys(id)
	}
	return key
}

func (n Names) keyPrefix(id string) string { return cmp.Or(n.key(id).KeyPrefix, id) }
func (n Names) keyName(id string) string   { return n.key(id).KeyName }

// Account returns the address of an account.
func (n Names) Account(id string) string {
	if n.Email == nil {
		return id
	}
	return cmp.Or(n.Email(id), id)
}

// Usage is a report of usage. Each of its methods reads the rows once, and returns the first error of reading or
// writing.
type Usage struct {
	Columns Columns
	Names   Names
	Rows    iter.Seq2[usage.Row, error] // from usage.Store.Rows
}

// each calls do with the values of the columns of every row, in one slice.
func (u Usage) each(do func(values []any) error) error {
	values := make([]any, len(u.Columns))
	for row, err := range u.Rows {
		if err != nil {
			return err
		}
		for i, c := range u.Columns {
			values[i] = c.value(u.Names, &row)
		}
		if err := do(values); err != nil {
			return err
		}
	}
	return nil
}
