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
	"sync"
)

// ErrExists is returned by Backup if its target exists.
var ErrExists = errors.New("there is a file already")

// Backup writes a consistent snapshot of the database at path to a file that must not exist. Writes by other processes
// continue meanwhile, and the database is not migrated, whatever its version. The file appears when it is checked,
// complete and on disk. Restore puts it in the database's place.
func Backup(ctx context.Context, path, to string) (_ Contents, err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return Contents{}, errors.Join(fmt.Errorf("write %s: %w", to, ErrExists), err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), ".backup-") // only its owner may read it
	if err != nil {
		return Contents{}, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	part, contents, err := snapshot(ctx, path, dir)
	if err != nil {
		return Contents{}, err
	}
	if err := fsync(part); err != nil {
		return Contents{}, fmt.Errorf("write copy to disk: %w", err)
	}
	if err := os.Link(part, to); err != nil { // unlike a rename, a link does not overwrite
		return Contents{}, fmt.Errorf("put copy in place: %w", err)
	}
	if err := fsync(filepath.Dir(to)); err != nil {
		return Contents{}, fmt.Errorf("write folder to disk: %w", err)
	}
	return contents, nil
}

// BackupTo is Backup to a writer. Meanwhile, the snapshot is a temporary file in the given folder.
func BackupTo(ctx context.Context, path, temporary string, to io.Writer) (_ Contents, err error) {
	dir, err := os.MkdirTemp(temporary, ".backup-")
	if err != nil {
		return Contents{}, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	part, contents, err := snapshot(ctx, path, dir)
	if err != nil {
		return Contents{}, err
	}
	file, err := os.Open(part) //nolint:gosec // a file of this function
	if err != nil {
		return Contents{}, fmt.Errorf("read copy: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := io.Copy(to, file); err != nil {
		return Contents{}, fmt.Errorf("write copy: %w", err)
	}
	return contents, nil
}

// snapshot copies the database to a new file in dir, in one read transaction, and checks the copy. It uses a connection
// of its own, because VACUUM INTO fails on the pool's query_only connections.
func snapshot(ctx context.Context, path, dir string) (part string, c Contents, err error) {
	if _, err := os.Stat(path); err != nil { // SQLite's message does not say that the file is missing
		return "", c, fmt.Errorf("find database: %w", err)
	}
	part = filepath.Join(dir, "part.db")
	readOnly := url.Values{"mode": {"ro"}, "_busy_timeout": {milliseconds(DefaultLockWait)}}
	source := sql.OpenDB(&connector{dsn: dsn(path, readOnly), rewritten: &sync.Map{}})
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

// fsync flushes a file or a directory to disk.
func fsync(path string) (err error) {
	file, err := os.Open(path) //nolint:gosec // the caller chooses the path
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return file.Sync()
}
