package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"basegate/database"
)

// partSuffix follows the name of a SQLite target until the copy is complete, so that no gateway starts on a part of it.
const partSuffix = ".copy"

// file is a side that is a SQLite database.
type file struct {
	path string // of the database; of a target, that of the complete copy
	db   *database.DB
	lock *database.Lock
}

// openFile opens a SQLite database that is copied, and keeps gateways from starting on it.
func openFile(ctx context.Context, path string) (side, error) {
	if _, err := os.Stat(path); err != nil { // it would be created
		return nil, fmt.Errorf("find database: %w", err)
	}
	return lockAndOpen(ctx, path, path, "copies the database")
}

// createFile opens the unfinished copy beside path, or begins one. There may be an empty database at path.
func createFile(ctx context.Context, path string) (side, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0:
	case err != nil:
		return nil, fmt.Errorf("find database: %w", err)
	default:
		if err := refuseRowsAt(ctx, path); err != nil {
			return nil, err
		}
	}
	return lockAndOpen(ctx, path, path+partSuffix, "copies another database to this place")
}

// refuseRowsAt returns ErrNotEmpty if there is a database at path that has rows.
func refuseRowsAt(ctx context.Context, path string) (err error) {
	existing, err := lockAndOpen(ctx, path, path, "copies another database to this place")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, existing.close()) }()
	return refuseRows(ctx, existing)
}

func lockAndOpen(ctx context.Context, path, open, purpose string) (side, error) {
	lock, err := database.Acquire(ctx, path, purpose)
	if locked, ok := errors.AsType[*database.LockedError](err); ok {
		return nil, fmt.Errorf("%w: %w", ErrServing, locked)
	}
	if err != nil {
		return nil, fmt.Errorf("lock database: %w", err)
	}
	db, err := database.Open(ctx, database.Settings{Path: open}, zap.NewNop())
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return &file{path: path, db: db, lock: lock}, nil
}

func (f *file) describe() string {
	if absolute, err := filepath.Abs(f.path); err == nil {
		return absolute
	}
	return f.path
}

func (f *file) close() error {
	err := f.lock.Release()
	if f.db != nil {
		err = errors.Join(f.db.Close(), err)
	}
	return err
}

func (f *file) refuseUnfinished(ctx context.Context) error { return refuseGrowingFiles(ctx, f) }

func (*file) source(t *table) *source { return &t.sqlite }

func (f *file) query(ctx context.Context, text string, args []any, row func([]any) error) error {
	rows, err := f.db.Read().QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values := make([]any, len(columns))
	to := make([]any, len(columns))
	for i := range values {
		to[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return err
		}
		if err := row(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

// refuseGateway returns nil: the lock is held.
func (*file) refuseGateway(context.Context) error { return nil }

func (f *file) generation(ctx context.Context) (string, error) {
	return countRows(ctx, f, "SELECT revision FROM keys_revision")
}

// countRows returns the value of a query and the number of rows of each table.
func countRows(ctx context.Context, s side, text string) (string, error) {
	var parts []string
	for _, name := range names() {
		text += " UNION ALL SELECT count(*) FROM " + name
	}
	err := s.query(ctx, text, nil, func(values []any) error {
		parts = append(parts, fmt.Sprint(values[0]))
		return nil
	})
	return strings.Join(parts, " "), err
}

func (f *file) loadState(ctx context.Context) (*state, error) {
	exists := false
	err := f.query(ctx, "SELECT 1 FROM sqlite_schema WHERE name = 'database_copy'", nil, func([]any) error {
		exists = true
		return nil
	})
	if err != nil || !exists {
		return nil, err
	}
	return selectState(ctx, f)
}

func selectState(ctx context.Context, s side) (*state, error) {
	rows := map[string]string{}
	err := s.query(ctx, "SELECT name, progress FROM database_copy", nil, func(values []any) error {
		rows[fmt.Sprint(values[0])] = fmt.Sprint(values[1])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return decodeState(rows)
}

// createState is the statement that creates the table of the state.
const createState = `CREATE TABLE database_copy (name TEXT PRIMARY KEY, progress TEXT NOT NULL)`

// writeState inserts or updates a row of the state.
const writeState = `INSERT INTO database_copy (name, progress) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET progress = excluded.progress`

func (f *file) begin(ctx context.Context, s *state) error {
	encoded, err := encode(s)
	if err != nil {
		return err
	}
	return f.db.WriteExclusive(ctx, func(tx database.Tx) error {
		if _, err := tx.ExecContext(ctx, createState); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, writeState, stateName, encoded)
		return err
	})
}

func (*file) prepare(context.Context, side) error { return nil }

func (f *file) write(ctx context.Context, t *table, rows [][]any, p progress) error {
	encoded, err := encode(p)
	if err != nil {
		return err
	}
	columns := t.columns
	details := t.into == summed
	if details {
		columns = columns[: len(columns)-3 : len(columns)-3]
		columns = append(columns, t.columns[len(t.columns)-1])
	}
	insert := insertText(t.into, columns)
	return f.db.WriteExclusive(ctx, func(tx database.Tx) error {
		for _, row := range rows {
			values := row
			if details {
				values = append(row[:len(row)-3:len(row)-3], row[len(row)-1])
			}
			if _, err := tx.ExecContext(ctx, insert, values...); err != nil {
				return err
			}
			if details {
				if err := insertDetails(ctx, tx, row); err != nil {
					return err
				}
			}
		}
		if t.name == summed && p.Done {
			if _, err := tx.ExecContext(ctx, `UPDATE usage_watermark SET seq = (SELECT coalesce(max(seq), 0) FROM requests)`); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, writeState, t.name, encoded)
		return err
	})
}

// insertDetails inserts what only few requests have: the columns boot_us and attempts, which precede the last one.
func insertDetails(ctx context.Context, tx database.Tx, row []any) error {
	boot, attempts := row[len(row)-3], row[len(row)-2]
	if boot == int64(0) && attempts == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO request_details (request_id, boot_us, attempts) VALUES ($1, $2, $3)`,
		row[0], boot, attempts)
	return err
}

func insertText(table string, columns []column) string {
	parameters := make([]string, len(columns))
	for i := range columns {
		parameters[i] = fmt.Sprint("$", i+1)
	}
	return "INSERT INTO " + table + " (" + strings.Join(columnNames(columns), ", ") + ") VALUES (" + strings.Join(parameters, ", ") + ")"
}

// finish gives the copy its name.
func (f *file) finish(ctx context.Context, _ map[string]progress) error {
	err := f.db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, `DROP TABLE database_copy`)
		return err
	})
	if err == nil {
		err = f.db.Close() // which writes the log back to the file
		f.db = nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(f.path + partSuffix + "-wal"); err == nil {
		return errors.New("another process has opened the copy")
	}
	if err := os.Rename(f.path+partSuffix, f.path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(f.path))
}

// syncFolder flushes the names of a folder's files to disk.
func syncFolder(path string) (err error) {
	folder, err := os.Open(path) //nolint:gosec // the operator chooses the path
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	return folder.Sync()
}
