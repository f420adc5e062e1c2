// Package storage keeps the bytes of files as objects under names that its callers choose at random, in a folder or in a
// bucket of an S3 server.
//
// An object grows by appends. An append is on disk when it returns, and is idempotent: it discards what lies behind its
// offset, so a caller that has recorded how much of an object counts repeats an append that a crash has interrupted.
// The package promises that nothing of a deleted object is left, and that no error holds the name of an object. Which
// objects exist, whose they are and how much of each counts is recorded by package batch.
package storage

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"
)

// ErrNotFound is returned by Open if there is no such object.
var ErrNotFound = errors.New("no such object")

// ErrShort is returned by Append if the object is shorter than the offset: storage has lost bytes.
var ErrShort = errors.New("the object is shorter than what was written to it")

// Store keeps objects. It is safe for concurrent use, but an object has one writer at a time.
type Store interface {
	// Append writes data at the offset, which is the object's end, and flushes it. Bytes behind the offset, which an
	// interrupted append has left, are discarded. Offset 0 creates the object.
	Append(ctx context.Context, name string, offset int64, data []byte) error

	// Open returns a reader of length bytes from the offset on. The object may grow meanwhile. The caller must close it.
	Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// Finish tells the store that the object has its final size, and may return an error that passes. An object that is
	// never finished can be read all the same.
	Finish(ctx context.Context, name string, size int64) error

	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, name string) error

	// LateWrites returns how long after a crash or a failed append its bytes may still arrive. A caller that deletes an
	// object repeats the deletion after this time.
	LateWrites() time.Duration

	// Close releases what the store holds.
	Close() error
}

// IsFull reports whether an append failed because there is no room: the disk, the quota of its user, or the bucket is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isBucketFull(err)
}
