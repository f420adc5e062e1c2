package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Temporary folders of copies of a database. Each is locked by the process that uses it.
const (
	backupPrefix  = ".backup-"
	restorePrefix = ".restore-"
	partName      = "part.db" // the copy
)

// makeTemporary removes the temporary folders that killed processes have left in a folder, and makes one that only its owner
// may read. remove deletes it.
func makeTemporary(folder, prefix string) (dir string, remove func() error, err error) {
	if err := SweepCopies(folder); err != nil {
		return "", nil, err
	}
	for {
		if dir, err = os.MkdirTemp(folder, prefix); err != nil {
			return "", nil, fmt.Errorf("make folder: %w", err)
		}
		lock, err := lockFolder(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
			continue // another process has swept it before it was locked
		}
		return dir, func() error { // without a lock on a file system that has none, where nothing is swept
			err := os.RemoveAll(dir)
			if lock != nil {
				err = errors.Join(err, lock.Close())
			}
			return err
		}, nil
	}
}

// lockFolder locks a folder until the file that it returns is closed. The error is EWOULDBLOCK if another process has locked
// it, and fs.ErrNotExist if the folder was removed.
func lockFolder(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_, err = os.Lstat(dir)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// SweepCopies removes the temporary copies of databases in a folder whose process was killed.
func SweepCopies(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("look for copies that were left: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		if !e.IsDir() || !isTemporary(e.Name()) || !holdsCopy(dir) {
			continue
		}
		lock, err := lockFolder(dir)
		if err != nil {
			continue // it is in use, is gone, or belongs to another user
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			return fmt.Errorf("remove a copy that was left: %w", err)
		}
	}
	return nil
}

// isTemporary reports whether a name is one that makeTemporary gives.
func isTemporary(name string) bool {
	for _, prefix := range []string{backupPrefix, restorePrefix} {
		if digits, found := strings.CutPrefix(name, prefix); found {
			return digits != "" && strings.Trim(digits, "0123456789") == ""
		}
	}
	return false
}

// holdsCopy reports whether a folder holds nothing but a copy and SQLite's files beside it.
func holdsCopy(dir string) bool {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), partName) {
			return false
		}
	}
	return err == nil
}
