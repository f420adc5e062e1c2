package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Modes of the folder and its files: they hold prompts and completions.
const (
	folderMode = 0o700
	fileMode   = 0o600
)

// Disk keeps each object as a file of one folder.
type Disk struct {
	root     *os.Root
	uid, gid int // the owner of the folder, if the process is root and the owner is not; -1: files are the process's own
}

// OpenDisk returns the store in a folder, which it creates if it does not exist. The caller must close it.
func OpenDisk(folder string) (*Disk, error) {
	if err := os.MkdirAll(folder, folderMode); err != nil {
		return nil, fmt.Errorf("create the folder of files: %w", err)
	}
	if err := os.Chmod(folder, folderMode); err != nil {
		return nil, fmt.Errorf("protect the folder of files: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open the folder of files: %w", err)
	}
	d := &Disk{root: root, uid: -1, gid: -1}
	if info, err := root.Stat("."); err == nil && os.Geteuid() == 0 {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 { // a command of the operator
			d.uid, d.gid = int(owner.Uid), int(owner.Gid)
		}
	}
	return d, nil
}

// Close implements Store.
func (d *Disk) Close() error {
	if err := d.root.Close(); err != nil {
		return fmt.Errorf("close the folder of files: %w", err)
	}
	return nil
}

// Append implements Store.
func (d *Disk) Append(_ context.Context, name string, offset int64, data []byte) error {
	if err := d.write(name, offset, data); err != nil {
		return fmt.Errorf("append to an object: %w", withoutName(err))
	}
	return nil
}

func (d *Disk) write(name string, offset int64, data []byte) (err error) {
	flags := os.O_WRONLY
	if offset == 0 {
		flags |= os.O_CREATE
	}
	file, err := d.root.OpenFile(name, flags, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if offset == 0 && d.uid >= 0 {
		if err := file.Chown(d.uid, d.gid); err != nil {
			return err
		}
	}
	if info.Size() < offset {
		return ErrShort
	}
	if info.Size() > offset {
		if err := file.Truncate(offset); err != nil {
			return err
		}
	}
	if _, err := file.WriteAt(data, offset); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if offset > 0 {
		return nil
	}
	return d.syncFolder()
}

// syncFolder flushes the names of the folder's files.
func (d *Disk) syncFolder() error {
	folder, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// object is an open file, limited to a range.
type object struct {
	io.Reader
	io.Closer
}

// Open implements Store.
func (d *Disk) Open(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	file, err := d.root.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("open an object: %w", withoutName(err))
	}
	return object{io.NewSectionReader(file, offset, length), file}, nil
}

// Delete implements Store.
func (d *Disk) Delete(_ context.Context, name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete an object: %w", withoutName(err))
	}
	return nil
}

// Finish implements Store.
func (*Disk) Finish(context.Context, string, int64) error { return nil }

// LateWrites implements Store.
func (*Disk) LateWrites() time.Duration { return 0 }

// withoutName returns an error without the object's name, which is as good as the right to read it.
func withoutName(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
