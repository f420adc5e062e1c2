package batch

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"basegate/batch/storage"
	apierr "basegate/errors"
	"basegate/proxy"
)

// uploadRetry is when a client should retry an upload that was refused because of others.
const uploadRetry = 5 * time.Second

// sendContent serves GET /v1/files/{id}/content.
func (s *Service) sendContent(c *proxy.ExtensionCall) error {
	return s.ServeContent(c.Response, c.Request, c.Account, c.Param("id"))
}

// ServeContent sends the content of a file of an account: the bytes that counted when the request arrived. The output of a
// batch that runs is whole lines.
func (s *Service) ServeContent(to http.ResponseWriter, r *http.Request, account, id string) error {
	if _, err := queryOf(r); err != nil {
		return err
	}
	f, err := s.file(r.Context(), account, id)
	if err != nil {
		return err
	}
	content, err := s.openFile(r.Context(), &f)
	if err != nil {
		return err
	}
	defer content.Close()
	h := to.Header()
	h.Set("Content-Type", "application/jsonl")
	if f.sha256 != nil {
		h.Set("ETag", `"`+hex.EncodeToString(f.sha256)+`"`)
	}
	w := &contentResponse{ResponseWriter: to}
	setRange(r.Header, f.Bytes)
	http.ServeContent(w, r, "", time.Time{}, content)
	if w.outside {
		h.Del("X-Content-Type-Options")
		return apierr.RangeOutside(f.Bytes)
	}
	return nil
}

// maxRanges is how many ranges of a file one request may ask for; for more it gets the whole file.
const maxRanges = 16

// setRange makes the Range header of a request what RFC 9110 says where http.ServeContent differs: the unit is of any case, and
// an unknown one is ignored; the last 0 bytes of a file are outside of it.
func setRange(h http.Header, size int64) {
	unit, ranges, _ := strings.Cut(h.Get("Range"), "=")
	list := strings.Split(ranges, ",")
	if !strings.EqualFold(unit, "bytes") || len(list) > maxRanges {
		h.Del("Range")
		return
	}
	for i, r := range list {
		last, suffix := strings.CutPrefix(strings.TrimSpace(r), "-")
		if last = strings.TrimSpace(last); suffix && last != "" && strings.Trim(last, "0") == "" {
			list[i] = strconv.FormatInt(size, 10) + "-"
		}
	}
	h.Set("Range", "bytes="+strings.Join(list, ","))
}

// contentResponse is the response of http.ServeContent, without its plain text about a range that cannot be served: errors
// of the API are JSON.
type contentResponse struct {
	http.ResponseWriter
	outside bool // nothing has been sent, since the range is outside of the file
}

// WriteHeader implements http.ResponseWriter.
func (w *contentResponse) WriteHeader(status int) {
	if w.outside = status == http.StatusRequestedRangeNotSatisfiable; !w.outside {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *contentResponse) Write(p []byte) (int, error) {
	if w.outside {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p) //nolint:wrapcheck // http.ServeContent drops it
}

// Unwrap serves http.ResponseController.
func (w *contentResponse) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// openFile returns the content of a file, up to the bytes that counted when f was read.
func (s *Service) openFile(ctx context.Context, f *File) (*objectReader, error) {
	content := &objectReader{ctx: ctx, service: s, file: *f}
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

// objectReader reads a file, all of it or with an error. It implements io.ReadSeekCloser.
type objectReader struct {
	ctx     context.Context //nolint:containedctx // of the request that reads
	service *Service
	file    File
	parts   []part // in the order of their bytes; none before the first open
	offset  int64
	reader  io.ReadCloser // of one part, or nil
	at      int64         // the offset of the reader
	end     int64         // of what the reader reads
}

// open opens the part at the offset. The file of a batch gets other objects when the batch ends, so an object that is gone
// is looked up again.
func (r *objectReader) open() (err error) {
	for tries := range 2 {
		if r.parts == nil || tries > 0 {
			if err = r.locate(tries > 0); err != nil {
				break
			}
		}
		p := r.parts[0]
		r.end = r.file.Bytes
		for _, next := range r.parts[1:] {
			if next.start > r.offset {
				r.end = next.start
				break
			}
			p = next
		}
		r.reader, err = r.service.store.Open(r.ctx, p.object, r.offset-p.start, r.end-r.offset)
		if !errors.Is(err, storage.ErrNotFound) {
			break
		}
	}
	if err != nil {
		r.reader = nil
		return fmt.Errorf("read a file: %w", err)
	}
	r.at = r.offset
	return nil
}

// locate finds the objects of the file. The error is storage.ErrNotFound if the file was deleted.
func (r *objectReader) locate(again bool) error {
	object := r.file.object
	for range 2 {
		if again || object == "" {
			f, err := fileByID(r.ctx, r.service.db.Read(), r.file.ID)
			if errors.Is(err, sql.ErrNoRows) {
				return storage.ErrNotFound
			}
			if err != nil {
				return fmt.Errorf("find a file: %w", err)
			}
			object = f.object
		}
		if object != "" {
			r.parts = []part{{object: object}}
			return nil
		}
		parts, err := partsOf(r.ctx, r.service.db.Read(), r.file.ID)
		if err != nil {
			return fmt.Errorf("find the parts of a file: %w", err)
		}
		if len(parts) > 0 {
			r.parts = parts
			return nil
		}
		again = true // the batch has just ended
	}
	return storage.ErrNotFound
}

// Read implements io.Reader.
func (r *objectReader) Read(p []byte) (int, error) {
	if r.offset >= r.file.Bytes {
		return 0, io.EOF
	}
	if r.reader != nil && (r.at != r.offset || r.at == r.end) { // a Seek to the end and back, as http.ServeContent makes it, costs nothing
		r.Close()
	}
	if r.reader == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n, err := r.reader.Read(p)
	r.offset += int64(n)
	r.at = r.offset
	switch {
	case !errors.Is(err, io.EOF):
	case r.offset < r.end:
		err = fmt.Errorf("read a file: got %d bytes of %d: %w", r.offset, r.file.Bytes, io.ErrUnexpectedEOF)
	case r.offset < r.file.Bytes: // the next part follows
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (r *objectReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.offset
	case io.SeekEnd:
		offset += r.file.Bytes
	}
	r.offset = offset
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
