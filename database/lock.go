package database

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"basegate/internal/wait"
)

// Holder describes the process that holds the lock of a database.
type Holder struct {
	Purpose string    `json:"purpose"` // what it does with the database
	PID     int       `json:"pid"`
	Host    string    `json:"host"` // in a container, its id
	Since   time.Time `json:"since"`
	Address string    `json:"address,omitempty"` // on which it listens
	Admin   string    `json:"admin,omitempty"`   // address of its admin listener
	TLS     bool      `json:"tls,omitempty"`     // it serves TLS at Address
}

// String describes the holder in a sentence without its end.
func (h Holder) String() string {
	if h.PID == 0 {
		return "another process uses the database" // it has not written its description yet
	}
	text := fmt.Sprintf("process %d on %s uses the database since %s: %s",
		h.PID, h.Host, h.Since.UTC().Format("2006-01-02 15:04:05 MST"), h.Purpose)
	if h.Address != "" {
		text += ", listening on " + h.Address
	}
	return text
}

// LockedError is returned by Acquire if another process holds the lock.
type LockedError struct {
	Holder Holder
}

// Error describes the holder.
func (e *LockedError) Error() string { return e.Holder.String() }

// Lock is held by the one process that may decide for a database: the gateway that serves from it, or a command that
// changes what only a gateway changes. It is an advisory lock of the kernel (flock) on a file beside the database, so it
// ends with the process however that ends, and holds between containers that share a volume. Opening, reading and
// writing the database does not require it.
type Lock struct {
	file   *os.File
	holder Holder
}

// lockSuffix follows the name of the database in that of the lock's file.
const lockSuffix = ".lock"

// Other processes hold the lock for an instant when they look at it.
const (
	lockWait  = time.Second
	lockPause = 20 * time.Millisecond
)

// Acquire takes the lock of the database at path, which need not exist. The error is a *LockedError if another process
// holds it.
func Acquire(ctx context.Context, path, purpose string) (*Lock, error) {
	lockPath, err := lockPathOf(path)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(lockPath, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock database: %w", err)
	}
	if err := chownLike(lockPath, strings.TrimSuffix(lockPath, lockSuffix)); err != nil {
		return nil, errors.Join(fmt.Errorf("lock database: %w", err), file.Close())
	}
	if err := tryLock(ctx, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	l := &Lock{file: file, holder: Holder{Purpose: purpose, PID: os.Getpid(), Host: host, Since: time.Now().UTC()}}
	if err := l.describe(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

// tryLock locks the file. If another process still holds the lock after lockWait, the error is a *LockedError.
func tryLock(ctx context.Context, file *os.File) error {
	for end := time.Now().Add(lockWait); ; {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		if time.Now().After(end) || !wait.For(ctx, lockPause) {
			return &LockedError{Holder: readHolder(file)}
		}
	}
}

// SetAddress adds the address on which the process listens, with or without TLS, and that of its admin listener to its
// description.
func (l *Lock) SetAddress(address, admin string, secure bool) error {
	l.holder.Address, l.holder.Admin, l.holder.TLS = address, admin, secure
	return l.describe()
}

// describe writes the description of the holder to the lock's file.
func (l *Lock) describe() error {
	text, err := json.Marshal(l.holder)
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(append(text, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("describe the lock's holder: %w", err)
	}
	return nil
}

// Release releases the lock. The file stays: another process may be about to lock it.
func (l *Lock) Release() error {
	if err := errors.Join(l.file.Truncate(0), l.file.Close()); err != nil {
		return fmt.Errorf("unlock database: %w", err)
	}
	return nil
}

// FindHolder returns the process that holds the lock of the database at path, or false if there is none.
func FindHolder(path string) (h Holder, held bool, err error) {
	lockPath, err := lockPathOf(path)
	if err != nil {
		return h, false, err
	}
	file, err := os.Open(lockPath)
	if errors.Is(err, fs.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, fmt.Errorf("look for the lock of the database: %w", err)
	}
	defer file.Close() // which unlocks it
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return h, false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return readHolder(file), true, nil
	default:
		return h, false, fmt.Errorf("look for the lock of the database: %w", err)
	}
}

// maxHolder limits the description that is read, in bytes.
const maxHolder = 4 << 10

// readHolder reads the description of the lock's holder. It is empty if the holder is just writing it.
func readHolder(file *os.File) (h Holder) {
	text := make([]byte, maxHolder)
	n, err := file.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) || json.Unmarshal(text[:n], &h) != nil {
		return Holder{}
	}
	return h
}

// lockPathOf returns the path of the lock's file: beside the database itself if path is a symbolic link to it.
func lockPathOf(path string) (string, error) {
	resolved, err := resolve(path)
	if err != nil {
		return "", err
	}
	return resolved + lockSuffix, nil
}
