// Package storage keeps the bytes of files as objects under names that its callers choose at random.
//
// An object grows by appends. An append is on disk when it returns, and is idempotent: it discards what lies behind its
// offset, so a caller that has recorded how much of an object counts repeats an append that a crash has interrupted. The
// package promises that nothing of a deleted object is left. Which objects exist, whose they are and how much of each
// counts is recorded by package batch.
package storage

import (
	"context"
	"errors"
	"io"
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

	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, name string) error
}
