package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"basegate/database/postgres"
)

// Restored describes a restore.
type Restored struct {
	Contents
	Newest   int64  // the schema version to which this program migrates the database
	Previous string // path of the database that was in place before; empty if there was none
}

// errSameFile is returned by Restore if the backup is the database itself.
var errSameFile = errors.New("this is the database itself, not a backup of it")

// Restore puts a backup, which it copies, in the place of the database at path. It checks the backup first: if that is
// damaged, is not a database of basegate, or has a schema that this program does not know, nothing changes. It does not
// migrate the backup. The database that was in place is kept beside it. The error is a *LockedError while a gateway
// serves the database.
func Restore(ctx context.Context, path, backup string) (Restored, error) {
	return restore(ctx, path, func(part string) error {
		info, err := os.Stat(backup)
		if err != nil {
			return err
		}
		if current, err := os.Stat(path); err == nil && os.SameFile(info, current) {
			return errSameFile
		}
		if err := copyFile(part, backup); err != nil {
			return err
		}
		// A database that was copied as it stood after a crash has commits in its write-ahead log.
		if err := copyFile(part+"-wal", backup+"-wal"); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// RestoreFrom is Restore with a backup that a reader returns.
func RestoreFrom(ctx context.Context, path string, backup io.Reader) (Restored, error) {
	return restore(ctx, path, func(part string) error { return writeFile(part, backup) })
}

// restore replaces the database at path by a file that fill writes.
func restore(ctx context.Context, path string, fill func(part string) error) (r Restored, err error) {
	if path, err = resolve(path); err != nil {
		return r, err
	}
	if path, err = filepath.Abs(path); err != nil { // for Previous
		return r, fmt.Errorf("find database: %w", err)
	}
	lock, err := Acquire(ctx, path, "restores a backup")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	dir, remove, err := makeTemporary(filepath.Dir(path))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	part := filepath.Join(dir, partName)
	if err := fill(part); err != nil {
		return r, fmt.Errorf("copy backup: %w", err)
	}
	if r.Contents, err = inspect(ctx, part); err != nil {
		return r, fmt.Errorf("check backup: %w", err)
	}
	r.Newest = postgres.KnownVersion(migrations)
	if s := (Schema{Version: r.SchemaVersion, Known: r.Newest, Oldest: r.SchemaVersion}); s.Newer() {
		return r, s.Check()
	}
	if err := errors.Join(chownLike(part, path), Fsync(part)); err != nil {
		return r, fmt.Errorf("write copy to disk: %w", err)
	}
	if r.Previous, err = setAside(ctx, path); err != nil {
		return r, fmt.Errorf("keep the previous database: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return r, fmt.Errorf("put backup in place: %w", err)
	}
	if err := Fsync(filepath.Dir(path)); err != nil {
		return r, fmt.Errorf("write folder to disk: %w", err)
	}
	return r, nil
}

// setAside gives the database at path a second name, which it returns, and moves its write-ahead log to that name: SQLite
// would apply a log that stays to the file that takes the database's place.
func setAside(ctx context.Context, path string) (kept string, err error) {
	emptyLog(ctx, path)
	at := path + ".before-restore-" + time.Now().UTC().Format("20060102T150405Z")
	kept = at
	for n := 2; ; n++ {
		if err = os.Link(path, kept); !errors.Is(err, fs.ErrExist) {
			break
		}
		kept = fmt.Sprintf("%s-%d", at, n)
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return "", err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Rename(path+suffix, kept+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if missing {
		return "", nil
	}
	return kept, nil
}

// emptyLog writes the write-ahead log back to the database, so that the kept database is one file and a crash during
// the restore loses nothing. If the database is damaged, this fails, and the log is kept beside it.
func emptyLog(ctx context.Context, path string) {
	if _, err := os.Stat(path + "-wal"); err != nil {
		return
	}
	db := sql.OpenDB(&connector{dsn: writerDSN(path, Settings{LockWait: DefaultLockWait})})
	defer db.Close() // removes the empty log
	_, _ = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
}

// resolve returns the path of the database file itself if path is a symbolic link to it. The file need not exist.
func resolve(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		var dir string
		dir, err = filepath.EvalSymlinks(filepath.Dir(path))
		resolved = filepath.Join(dir, filepath.Base(path))
	}
	if err != nil {
		return "", fmt.Errorf("find database: %w", err)
	}
	return resolved, nil
}

func copyFile(to, from string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return writeFile(to, source)
}

// writeFile creates a file that only its owner may read.
func writeFile(to string, from io.Reader) (err error) {
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, from)
	return err
}

// chownLike gives a file that root has created the owner of the database at path, or of its folder if there is no
// database: a gateway that runs as another user could not open it otherwise.
func chownLike(file, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(file, int(owner.Uid), int(owner.Gid))
}

// explainAccess adds the owner of the database to an error if this process may not read and write the file: SQLite says
// only that it cannot open it.
func explainAccess(path string, err error) error {
	if err == nil || unix.Access(path, unix.R_OK|unix.W_OK) == nil {
		return err
	}
	info, statErr := os.Stat(path)
	if statErr != nil {
		return err
	}
	return fmt.Errorf("%w: the file belongs to user %d with mode %04o, and this process is user %d: give it to that user; "+
		"`basegate restore` puts a backup in place with the right owner", err, info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm(), os.Geteuid())
}
