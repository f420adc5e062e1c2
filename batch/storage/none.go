package storage

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrNone is returned by None.
var ErrNone = errors.New("files.url is not set, so files are not stored")

// None stores nothing: it is the store of a gateway without a place for files.
type None struct{}

// Append implements Store.
func (None) Append(context.Context, string, int64, []byte) error { return ErrNone }

// Open implements Store.
func (None) Open(context.Context, string, int64, int64) (io.ReadCloser, error) { return nil, ErrNone }

// Finish implements Store.
func (None) Finish(context.Context, string, int64) error { return ErrNone }

// Delete implements Store.
func (None) Delete(context.Context, string) error { return ErrNone }

// LateWrites implements Store.
func (None) LateWrites() time.Duration { return 0 }

// Close implements Store.
func (None) Close() error { return nil }
