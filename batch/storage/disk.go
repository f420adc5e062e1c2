package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
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

// Put implements Store.
func (d *Disk) Put(_ context.Context, name string, data []byte, flush bool) error {
	err := d.write(name, data, flush)
	if err == nil && flush {
		err = d.syncFolder()
	}
	if err != nil {
		return fmt.Errorf("write an object: %w", withoutName(err))
	}
	return nil
}

func (d *Disk) write(name string, data []byte, flush bool) (err error) {
	file, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if d.uid >= 0 {
		if err := file.Chown(d.uid, d.gid); err != nil {
			return err
		}
	}
	if _, err := file.Write(data); err != nil || !flush {
		return err
	}
	return file.Sync()
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

// List implements Store.
func (d *Disk) List(ctx context.Context, found func(name string, size int64) error) error {
	err := fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // deleted meanwhile
		}
		return found(name, info.Size())
	})
	if err != nil {
		return fmt.Errorf("list objects: %w", withoutName(err))
	}
	return nil
}

// withoutName returns an error without the object's name, which is as good as the right to read it.
func withoutName(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
