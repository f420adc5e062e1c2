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
	"time"
)

// ErrExists is returned by Backup if its target exists.
var ErrExists = errors.New("there is a file already")

// Backup writes a consistent snapshot of the database to a file that must not exist. Writes by this and other processes
// continue meanwhile. The file appears when it is complete and on disk. It is a database like this one: to restore it,
// put it in the database's place while no process has that open.
func (db *DB) Backup(ctx context.Context, to string) (err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("write %s: %w", to, ErrExists), err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), ".backup-") // only its owner may read it
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	part := filepath.Join(dir, "part.db")
	if err := db.copyTo(ctx, part); err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	if err := os.Chmod(part, 0o600); err != nil {
		return fmt.Errorf("restrict copy to its owner: %w", err)
	}
	if err := fsync(part); err != nil {
		return fmt.Errorf("write copy to disk: %w", err)
	}
	if err := os.Link(part, to); err != nil { // unlike a rename, a link does not overwrite
		return fmt.Errorf("put copy in place: %w", err)
	}
	if err := fsync(filepath.Dir(to)); err != nil {
		return fmt.Errorf("write folder to disk: %w", err)
	}
	if err := db.recordBackup(); err != nil {
		return fmt.Errorf("the backup is complete, but its time cannot be recorded: %w", err)
	}
	return nil
}

// copyTo copies the database in one read transaction. It uses a connection of its own, because VACUUM INTO fails on the
// pool's query_only connections.
func (db *DB) copyTo(ctx context.Context, to string) (err error) {
	readOnly := url.Values{"mode": {"ro"}, "_busy_timeout": {milliseconds(db.settings.LockWait)}}
	source := sql.OpenDB(&connector{dsn: dsn(db.path, readOnly), rewritten: &sync.Map{}})
	defer func() { err = errors.Join(err, source.Close()) }()
	_, err = source.ExecContext(ctx, "VACUUM INTO $1", to)
	return err
}

// fsync flushes a file or a directory to disk.
func fsync(path string) (err error) {
	file, err := os.Open(path) //nolint:gosec // the caller chooses the path
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return file.Sync()
}

// backupMarker returns the file whose modification time is that of the last complete backup. It is a file and not a row, so
// that a backup writes nothing to the database that it copies.
func (db *DB) backupMarker() string { return db.path + ".last-backup" }

// recordBackup records that a backup is complete.
func (db *DB) recordBackup() error {
	if err := os.WriteFile(db.backupMarker(), nil, 0o600); err != nil {
		return err
	}
	return os.Chtimes(db.backupMarker(), time.Time{}, time.Now())
}

// LastBackup returns when Backup last succeeded, in this or another process; the zero time if never.
func (db *DB) LastBackup() (time.Time, error) {
	info, err := os.Stat(db.backupMarker())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read time of last backup: %w", err)
	}
	return info.ModTime(), nil
}
