package batch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierr "basegate/errors"
	"basegate/storage"
)

// uploadRetry is when a client should retry an upload that was refused because of others.
const uploadRetry = 5 * time.Second

// sendContent serves GET /v1/files/{id}/content: the bytes that counted when the request arrived. The output of a batch
// that runs is whole lines.
func (s *Service) sendContent(c *Call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	f, err := s.file(c.Request.Context(), c.Account, c.Param("id"))
	if err != nil {
		return err
	}
	content, err := s.openFile(c.Request.Context(), &f)
	if err != nil {
		return err
	}
	defer content.Close()
	h := c.Response.Header()
	h.Set("Content-Type", "application/jsonl")
	if f.sha256 != nil {
		h.Set("ETag", `"`+hex.EncodeToString(f.sha256)+`"`)
	}
	http.ServeContent(c.Response, c.Request, "", time.Time{}, content)
	return nil
}

// openFile returns the content of a file.
func (s *Service) openFile(ctx context.Context, f *File) (*objectReader, error) {
	content := &objectReader{ctx: ctx, store: s.store, name: f.object, size: f.Bytes}
	if f.Bytes == 0 { // it has no object
		content.reader = http.NoBody
		return content, nil
	}
	err := content.open()
	switch {
	case errors.Is(err, storage.ErrNotFound): // deleted since
		return nil, apierr.NoSuchObject("file", f.ID)
	case err != nil:
		return nil, apierr.Storage(err)
	}
	return content, nil
}

// objectReader reads an object of the storage. It implements io.ReadSeekCloser.
type objectReader struct {
	ctx    context.Context //nolint:containedctx // of the request that reads
	store  storage.Store
	name   string
	size   int64
	offset int64
	reader io.ReadCloser // nil before the first read after a Seek
}

func (r *objectReader) open() (err error) {
	r.reader, err = r.store.Open(r.ctx, r.name, r.offset, r.size-r.offset)
	if err != nil {
		return fmt.Errorf("read a file: %w", err)
	}
	return nil
}

// Read implements io.Reader.
func (r *objectReader) Read(p []byte) (int, error) {
	if r.reader == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n, err := r.reader.Read(p)
	r.offset += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (r *objectReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.offset
	case io.SeekEnd:
		offset += r.size
	}
	if offset != r.offset {
		r.Close()
		r.offset = offset
	}
	return offset, nil
}

// Close implements io.Closer.
func (r *objectReader) Close() error {
	if r.reader == nil {
		return nil
	}
	err := r.reader.Close()
	r.reader = nil
	return err
}
