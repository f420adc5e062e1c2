package database_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"basegate/database"
)

// noteRow is a row of notes. The value -1 stands for one that no driver takes.
type noteRow int

func (r noteRow) AppendValues(to []any) []any {
	if r < 0 {
		return append(to, struct{}{}, "note")
	}
	return append(to, int(r), "note")
}

func TestInsertsShareAStatementAndFailAlone(t *testing.T) {
	insert := database.NewInsert("INSERT INTO notes (id, text)", "$1, nullif($2, 'x')", 2)
	other := database.NewInsert("INSERT INTO notes (id, text)", "$1, $2", 2)
	const several = 8
	for _, c := range []struct {
		name  string
		bad   map[int]noteRow // by position, in place of a new id
		kinds func(i int) *database.Insert
		count int
		alone int // rows that their own statements insert, or fail to
	}{
		{"one group", nil, nil, several, 0},
		{"groups and a rest", nil, nil, 2*several + 3, 3},
		{"too few", nil, nil, several - 1, several - 1},
		{"a duplicate of a row", map[int]noteRow{several + 2: 1000}, nil, 3 * several, several},
		{"a duplicate within the statement", map[int]noteRow{3: 2}, nil, 2 * several, several},
		{"a value that no driver takes", map[int]noteRow{several - 1: -1}, nil, 2 * several, several},
		{"two kinds in turn", nil, func(i int) *database.Insert { return []*database.Insert{insert, other}[i%2] }, 2 * several, 2 * several},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openNotes(t, database.Settings{Path: filepath.Join(t.TempDir(), "base.db")})
			must(t, db.WriteGrouped(t.Context(), note(1000)))
			release := block(t, db)
			alone := 0
			var all []*database.Pending
			for i := range c.count {
				r, bad := c.bad[i]
				if !bad {
					r = noteRow(i)
				}
				kind := insert
				if c.kinds != nil {
					kind = c.kinds(i)
				}
				all = append(all, db.EnqueueInsert(kind, r, func(tx database.Execer) error {
					alone++
					return executeStatement("INSERT INTO notes (id, text) VALUES ($1, $2)", r.AppendValues(nil)...)(tx)
				}))
			}
			release()
			for i, p := range all {
				err := p.Wait(t.Context())
				if _, bad := c.bad[i]; bad != (err != nil) || errors.Is(err, database.ErrUnavailable) {
					t.Errorf("row %d: got error %v", i, err)
				}
			}
			if alone != c.alone {
				t.Errorf("%d rows were inserted by their own statements, want %d", alone, c.alone)
			}
			if got, want := count(t, db, "id < 1000"), c.count-len(c.bad); got != want {
				t.Errorf("%d rows are in the table, want %d", got, want)
			}
		})
	}
}

func TestInsertsAfterAStorageFailureAreNotWritten(t *testing.T) {
	db := openNotes(t, database.Settings{Path: filepath.Join(t.TempDir(), "base.db")})
	must(t, db.WriteExclusive(t.Context(), execute("PRAGMA max_page_count = 1"))) // SQLite raises it to the size of the file
	text := fmt.Sprintf("%08000d", 0)
	insert := database.NewInsert("INSERT INTO notes (id, text)", "$1, '"+text+"' || $2", 2)
	release := block(t, db)
	var all []*database.Pending
	for i := range 16 {
		all = append(all, db.EnqueueInsert(insert, noteRow(i), func(database.Execer) error {
			t.Error("a row is inserted behind the failure")
			return nil
		}))
	}
	release()
	for i, p := range all {
		if err := p.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("row %d: got error %v, want ErrUnavailable", i, err)
		}
	}
	if got := count(t, db, "true"); got != 0 {
		t.Errorf("%d rows are in the table, want 0", got)
	}
}
