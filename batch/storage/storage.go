// Package storage keeps the bytes of files as objects under names that its callers choose at random, in a folder or in a
// bucket of an S3 server.
//
// An object is written once, as a whole, and never changed. The package promises that it is on disk when Put has flushed it, that
// nothing of a deleted object is left, and that no error holds the name of an object. Which objects exist and of which file
// they are parts is recorded by package batch.
package storage

import (
	"context"
	"errors"
	"io"
	"syscall"

	"basegate/database"
)

// ErrNotFound is returned by Open if there is no such object.
var ErrNotFound = errors.New("no such object")

// Store keeps objects. It is safe for concurrent use.
type Store interface {
	// Put writes an object. Without a flush, it may be missing or hold other bytes after a crash of the machine. After an error,
	// Put may be called again with the same data.
	Put(ctx context.Context, name string, data []byte, flush bool) error

	// Open returns a reader of length bytes from the offset on, or of fewer if the object ends before. The caller must close it.
	Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, name string) error

	// List calls found with the name and the size of each object, in any order. Objects that appear or are deleted meanwhile
	// may be missing or not.
	List(ctx context.Context, found func(name string, size int64) error) error

	// Close releases what the store holds.
	Close() error
}

// Objects keeps objects of other packages, which it names, beside the files. It deletes what a crash leaves of an object
// that no row has.
type Objects interface {
	// WriteObject stores an object, and calls keep with its name in the transaction with which it counts.
	WriteObject(ctx context.Context, data []byte, keep func(context.Context, database.Tx, string) error) error

	// RecordObject makes an object count in a transaction, before PutObject writes it. It is for callers to which an object that is
	// missing or damaged, as a crash may leave it, is as good as none.
	RecordObject(ctx context.Context, tx database.Tx, size int64) (name string, err error)

	// PutObject writes an object of RecordObject, without a flush.
	PutObject(ctx context.Context, name string, data []byte) error

	// ReadObject returns an object. The error is ErrNotFound if it was deleted, and io.EOF or io.ErrUnexpectedEOF if it is
	// shorter.
	ReadObject(ctx context.Context, name string, size int64) ([]byte, error)

	// DeleteObject lets an object be deleted after the transaction.
	DeleteObject(ctx context.Context, tx database.Tx, name string) error
}

// IsFull reports whether a write failed because there is no room: the disk, the quota of its user, or the bucket is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isBucketFull(err)
}

// ErrNone is returned by None.
var ErrNone = errors.New("files.url is not set, so files are not stored")

// None stores nothing: it is the store of a gateway without a place for files.
type None struct{}

// Put implements Store.
func (None) Put(context.Context, string, []byte, bool) error { return ErrNone }

// Open implements Store.
func (None) Open(context.Context, string, int64, int64) (io.ReadCloser, error) { return nil, ErrNone }

// Delete implements Store.
func (None) Delete(context.Context, string) error { return ErrNone }

// List implements Store.
func (None) List(context.Context, func(string, int64) error) error { return nil }

// Close implements Store.
func (None) Close() error { return nil }
