package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
)

// ErrExists says that a backup would overwrite a file.
var ErrExists = errors.New("there is a file already")

// Backup writes the database, as it is at one moment, to a file that does not exist yet. Other processes may go on
// writing meanwhile. The file is there only when it is whole and on disk; it is a database like this one, so to restore
// it is to put it in place while nobody has the database open.
func (db *DB) Backup(ctx context.Context, to string) (err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("write %s: %w", to, ErrExists), err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), ".backup-") // nobody else may read what is in it
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	part := filepath.Join(dir, "part.db")
	if err := db.copyTo(ctx, part); err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	if err := settle(part); err != nil {
		return fmt.Errorf("write copy to disk: %w", err)
	}
	if err := os.Link(part, to); err != nil { // a link, unlike a rename, overwrites nothing
		return fmt.Errorf("put copy in place: %w", err)
	}
	if err := settle(filepath.Dir(to)); err != nil {
		return fmt.Errorf("write folder to disk: %w", err)
	}
	return nil
}

// copyTo reads the whole database within one transaction. The readers of the pool may not do this: query_only forbids it.
func (db *DB) copyTo(ctx context.Context, to string) (err error) {
	source := sql.OpenDB(&connector{dsn: dsn(db.path, url.Values{"mode": {"ro"}, "_busy_timeout": {milliseconds(db.settings.LockWait)}}), texts: &sync.Map{}})
	defer func() { err = errors.Join(err, source.Close()) }()
	_, err = source.ExecContext(ctx, "VACUUM INTO $1", to)
	return err
}

// settle has a file or a folder on disk.
func settle(path string) (err error) {
	file, err := os.Open(path) //nolint:gosec // of the caller
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if info, err := file.Stat(); err == nil && !info.IsDir() {
		if err := file.Chmod(0o600); err != nil {
			return err
		}
	}
	return file.Sync()
}
