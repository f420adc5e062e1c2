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

const (
	copyPrefix = ".basegate-copy-" // of temporary folders, each of which is locked by the process that uses it
	partName   = "part.db"         // the copy of a database in it
)

// makeTemporary removes the temporary folders that killed processes have left in a folder, and makes one that only its owner
// may read. remove deletes it.
func makeTemporary(folder string) (dir string, remove func() error, err error) {
	if err := SweepCopies(folder); err != nil {
		return "", nil, err
	}
	for {
		if dir, err = os.MkdirTemp(folder, copyPrefix); err != nil {
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
		if !strings.HasPrefix(e.Name(), copyPrefix) {
			continue
		}
		dir := filepath.Join(folder, e.Name())
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
