package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// ErrExists is returned by Backup if its target exists.
var ErrExists = errors.New("there is a file already")

// Backup writes a consistent snapshot of the database at path to a file that must not exist. Writes by other processes
// continue meanwhile, and the database is not migrated, whatever its version. The file appears when it is checked,
// complete and on disk. Restore puts it in the database's place.
func Backup(ctx context.Context, path, to string) (Contents, error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return Contents{}, errors.Join(fmt.Errorf("write %s: %w", to, ErrExists), err)
	}
	return withSnapshot(ctx, path, filepath.Dir(to), func(part string) error {
		if err := Fsync(part); err != nil {
			return fmt.Errorf("write copy to disk: %w", err)
		}
		if err := os.Link(part, to); err != nil { // unlike a rename, a link does not overwrite
			return fmt.Errorf("put copy in place: %w", err)
		}
		if err := Fsync(filepath.Dir(to)); err != nil {
			return fmt.Errorf("write folder to disk: %w", err)
		}
		return nil
	})
}

// BackupTo is Backup to a writer. Meanwhile, the snapshot is a temporary file in the given folder, which has no name any more
// when the first byte is written: a reader that goes away may end the process.
func BackupTo(ctx context.Context, path, temporary string, to io.Writer) (Contents, error) {
	return withSnapshot(ctx, path, temporary, func(part string) (err error) {
		file, err := os.Open(part)
		if err != nil {
			return fmt.Errorf("read copy: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		if err := os.RemoveAll(filepath.Dir(part)); err != nil {
			return fmt.Errorf("remove the copy's name: %w", err)
		}
		if _, err := io.Copy(to, file); err != nil {
			return fmt.Errorf("write copy: %w", err)
		}
		return nil
	})
}

// withSnapshot calls deliver with a snapshot of the database, which is removed afterwards with its own folder in the
// given one, and records the backup.
func withSnapshot(ctx context.Context, path, folder string, deliver func(part string) error) (_ Contents, err error) {
	dir, remove, err := makeTemporary(folder)
	if err != nil {
		return Contents{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	part, contents, err := snapshot(ctx, path, dir)
	if err != nil {
		return Contents{}, err
	}
	if err := deliver(part); err != nil {
		return Contents{}, err
	}
	return contents, recordBackup(path)
}

// snapshot copies the database to a new file in dir, in one read transaction, and checks the copy. It uses a connection
// of its own, because VACUUM INTO fails on the pool's query_only connections.
func snapshot(ctx context.Context, path, dir string) (part string, c Contents, err error) {
	if _, err := os.Stat(path); err != nil { // SQLite's message does not say that the file is missing
		return "", c, fmt.Errorf("find database: %w", err)
	}
	part = filepath.Join(dir, partName)
	readOnly := url.Values{"mode": {"ro"}, "_busy_timeout": {milliseconds(DefaultLockWait)}}
	source := sql.OpenDB(&connector{dsn: dsn(path, readOnly)})
	_, err = source.ExecContext(ctx, "VACUUM INTO $1", part)
	if err := errors.Join(err, source.Close()); err != nil {
		return "", c, fmt.Errorf("copy database %s: %w", path, explainAccess(path, err))
	}
	if err := os.Chmod(part, 0o600); err != nil {
		return "", c, fmt.Errorf("restrict copy to its owner: %w", err)
	}
	if c, err = inspect(ctx, part); err != nil {
		return "", c, fmt.Errorf("check copy: %w", err)
	}
	return part, c, nil
}

// Fsync flushes a file or a directory to disk.
func Fsync(path string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return file.Sync()
}

// backupMarker returns the file whose modification time is that of the last complete backup of the database at path. It is
// a file and not a row, so that a backup writes nothing to the database that it copies.
func backupMarker(path string) string { return path + ".last-backup" }

// recordBackup records that a backup is complete.
func recordBackup(path string) error {
	marker := backupMarker(path)
	err := os.WriteFile(marker, nil, 0o600)
	if err == nil {
		err = os.Chtimes(marker, time.Time{}, time.Now())
	}
	if err != nil {
		return fmt.Errorf("the backup is complete, but its time cannot be recorded: %w", err)
	}
	return nil
}

// LastBackup returns when Backup last succeeded, in this or another process; the zero time if never.
func (db *DB) LastBackup() (time.Time, error) {
	info, err := os.Stat(backupMarker(db.path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read time of last backup: %w", err)
	}
	return info.ModTime(), nil
}
