package batch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"basegate/batch/storage"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/wait"
)

// part is an object of the storage, which is written once: the bytes of a file from start to end.
type part struct {
	object     string
	start, end int64
}

// newPart is a part that is to be written.
type newPart struct {
	part
	file     *File
	data     []byte
	reserved bool // it has a row, so that it is deleted if this process ends before the part counts
	written  bool // its bytes are on disk, and must not be written again
}

// partOf returns the next part of a file.
func partOf(f *File, data []byte) *newPart {
	return &newPart{part: part{newObjectName(), f.Bytes, f.Bytes + int64(len(data))}, file: f, data: data}
}

// put writes a part. After an error, it can be called again. The part counts when a transaction keeps its object.
func (s *Service) put(ctx context.Context, p *newPart) error {
	if err := s.checkStorage(ctx); err != nil {
		return err
	}
	return s.putUnchecked(ctx, p)
}

func (s *Service) putUnchecked(ctx context.Context, p *newPart) error {
	if !p.reserved {
		err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
			return insertObject(ctx, tx, p, "writing", s.leases.holder(), s.clock().UnixMicro())
		})
		if err != nil {
			return fmt.Errorf("reserve an object: %w", err)
		}
		p.reserved = true
	}
	if !p.written {
		if err := s.store.Put(ctx, p.object, p.data, true); err != nil {
			return err
		}
		p.written = true
	}
	return nil
}

// discard marks objects for deletion, unless they are kept. One that does not seem to be reserved may be so, by a commit whose reply
// was lost.
func (s *Service) discard(ctx context.Context, parts ...*newPart) {
	for _, p := range parts {
		s.db.Submit(func(tx database.Tx) error { return markDeleted(ctx, tx, objectNamed+notKept, p.object) })
	}
	wait.Wake(s.deleted)
}

// openFile returns the content of a file, up to the bytes that counted when f was read.
func (s *Service) openFile(ctx context.Context, f *File) (*fileReader, error) {
	parts, err := partsOf(ctx, s.db.Read(), objectsOfFile, f.ID)
	if err != nil {
		return nil, unavailable(err)
	}
	r, err := s.openParts(ctx, parts, f.Bytes)
	if errors.Is(err, storage.ErrNotFound) { // deleted since
		return nil, apierr.NoSuchObject("file", f.ID)
	}
	return r, err
}

// openParts returns a reader of parts, up to a size.
func (s *Service) openParts(ctx context.Context, parts []part, size int64) (*fileReader, error) {
	r := &fileReader{ctx: ctx, service: s, parts: parts, size: size}
	if size == 0 {
		return r, nil
	}
	err := s.checkStorage(ctx)
	if err == nil {
		err = r.open()
	}
	if err != nil {
		return nil, apierr.Storage(err)
	}
	return r, nil
}

const (
	readTries = 3 // of a read without progress
	readPause = 200 * time.Millisecond
	readAhead = 8 // parts that are opened at a time: a bucket takes some milliseconds for each
)

// fileReader reads a file, all of it or with an error. It implements io.ReadSeekCloser.
type fileReader struct {
	ctx     context.Context
	service *Service
	parts   []part // in the order of their bytes
	size    int64
	offset  int64
	body    io.ReadCloser // of a part, or nil
	at, end int64         // where body stands in the file, and where it ends
	ahead   []opening     // of the parts behind body
}

// opening is a part that is being opened.
type opening struct {
	part
	body func() (io.ReadCloser, error) // waits
}

// start begins to open a part at the position.
func (r *fileReader) start(p part, position int64) opening {
	body := sync.OnceValues(func() (io.ReadCloser, error) {
		return r.service.store.Open(r.ctx, p.object, position-p.start, min(p.end, r.size)-position)
	})
	go func() { _, _ = body() }()
	return opening{p, body}
}

// open opens the part at the offset, and begins to open those behind it if the reader comes from the part before it.
func (r *fileReader) open() (err error) {
	i := sort.Search(len(r.parts), func(i int) bool { return r.parts[i].end > r.offset })
	if i == len(r.parts) || r.parts[i].start > r.offset {
		return storage.ErrNotFound
	}
	p := r.parts[i]
	if len(r.ahead) == 0 || r.ahead[0].part != p || r.offset != p.start {
		r.closeAhead()
		r.ahead = append(r.ahead, r.start(p, r.offset))
	}
	if r.end > 0 && r.end == p.start {
		for next := i + len(r.ahead); next < len(r.parts) && len(r.ahead) < readAhead && r.parts[next].start < r.size; next++ {
			r.ahead = append(r.ahead, r.start(r.parts[next], r.parts[next].start))
		}
	}
	first := r.ahead[0]
	r.ahead = r.ahead[1:]
	r.body, err = first.body()
	r.at, r.end = r.offset, min(p.end, r.size)
	return err
}

// closeAhead ends what is being opened.
func (r *fileReader) closeAhead() {
	for _, o := range r.ahead {
		if body, err := o.body(); err == nil {
			body.Close()
		}
	}
	r.ahead = nil
}

// Read implements io.Reader. It tries again if the storage fails for a moment.
func (r *fileReader) Read(p []byte) (n int, err error) {
	if r.offset >= r.size {
		return 0, io.EOF
	}
	for try := 1; ; try++ {
		n, err = r.readPart(p)
		switch {
		case n > 0 || err == nil: // an error comes again
			return n, nil
		case try == readTries, errors.Is(err, storage.ErrNotFound), !wait.For(r.ctx, readPause):
			return 0, fmt.Errorf("read a file at %d of %d bytes: %w", r.offset, r.size, err)
		}
	}
}

func (r *fileReader) readPart(p []byte) (int, error) {
	if r.at != r.offset || r.at == r.end { // a Seek to the end and back, as http.ServeContent makes it, costs nothing
		r.closeBody()
	}
	if r.body == nil {
		if err := r.open(); err != nil {
			r.body = nil
			return 0, err
		}
	}
	n, err := r.body.Read(p[:min(int64(len(p)), r.end-r.at)])
	r.offset += int64(n)
	r.at = r.offset
	if err != nil {
		r.closeBody()
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
		if r.at == r.end {
			err = nil
		}
	}
	return n, err
}

// Seek implements io.Seeker.
func (r *fileReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.offset
	case io.SeekEnd:
		offset += r.size
	}
	r.offset = offset
	return offset, nil
}

func (r *fileReader) closeBody() {
	if r.body != nil {
		r.body.Close()
		r.body = nil
	}
}

// Close implements io.Closer. It waits for what is being opened.
func (r *fileReader) Close() error {
	r.closeBody()
	r.closeAhead()
	return nil
}

// digest returns the SHA-256 of a file.
func (s *Service) digest(ctx context.Context, f *File) ([]byte, error) {
	content, err := s.openFile(ctx, f)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, content)
	return sum.Sum(nil), err
}
