package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"basegate/internal/wait"
)

const (
	readRetries = 3 // of a read without progress
	readPause   = 200 * time.Millisecond
)

// segmentReader reads a range of an object, one segment after another. While it reads one, the request for the next one is
// on its way.
type segmentReader struct {
	store         *S3
	ctx           context.Context //nolint:containedctx // of the request that reads
	cancel        context.CancelFunc
	folder        string
	relist        func(context.Context) ([]span, error) // if a segment was merged into another one; nil: the read fails
	spans         []span
	position, end int64

	body     io.ReadCloser // of the segment at the position, or nil
	bodyEnd  int64
	next     *prefetched // or nil
	failures int         // since the last byte
}

// prefetched is the request for a span.
type prefetched struct {
	span
	ready chan struct{} // closed when the fields below are set
	body  io.ReadCloser
	err   error
}

func (s *S3) newReader(ctx context.Context, folder string, spans []span, position, end int64) *segmentReader {
	r := &segmentReader{store: s, folder: folder, spans: spans, position: position, end: end}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// Read implements io.Reader.
func (r *segmentReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.start(); err != nil {
		return 0, err
	}
	if r.body == nil {
		return 0, io.EOF
	}
	n, err := r.body.Read(p[:min(int64(len(p)), r.bodyEnd-r.position)])
	r.position += int64(n)
	if n > 0 {
		r.failures = 0
	}
	if r.position == r.bodyEnd {
		err = nil
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil || r.position == r.bodyEnd {
		r.body.Close()
		r.body = nil
	}
	if err != nil && !r.mayRetry(err) {
		return n, fmt.Errorf("read an object: %w", explain(err))
	}
	return n, nil
}

// start opens the segment at the position, unless it is open or the end is reached.
func (r *segmentReader) start() error {
	for r.body == nil && r.position < r.end {
		r.spans = from(r.spans, r.position)
		if len(r.spans) == 0 {
			return nil
		}
		err := r.open(r.spans[0])
		if err == nil {
			return nil
		}
		if isMissing(err) && r.relist != nil && r.failures < readRetries {
			r.failures++
			var spans []span
			if spans, err = r.relist(r.ctx); err == nil {
				r.spans = spans
				continue
			}
		}
		if errors.Is(err, ErrNotFound) || !r.mayRetry(err) {
			return fmt.Errorf("read an object: %w", explain(err))
		}
	}
	return nil
}

// mayRetry waits before another try, and reports whether there is one.
func (r *segmentReader) mayRetry(err error) bool {
	r.failures++
	return r.failures < readRetries && !isMissing(err) && wait.For(r.ctx, readPause)
}

// open opens a span at the position, and requests the one behind it.
func (r *segmentReader) open(s span) (err error) {
	r.bodyEnd = min(s.end, r.end)
	if r.next != nil && r.next.span == s && r.position == s.offset {
		<-r.next.ready
		r.body, err, r.next = r.next.body, r.next.err, nil
	} else {
		r.body, err = r.get(s, r.position, r.bodyEnd)
	}
	if err != nil {
		r.body = nil
		return err
	}
	if len(r.spans) < 2 || r.spans[1].offset >= r.end || r.next != nil && r.next.span == r.spans[1] {
		return nil
	}
	r.dropNext()
	n := &prefetched{span: r.spans[1], ready: make(chan struct{})}
	r.next = n
	go func() {
		defer close(n.ready)
		n.body, n.err = r.get(n.span, n.offset, min(n.end, r.end))
	}()
	return nil
}

// dropNext waits for the request for the next segment, and closes its response.
func (r *segmentReader) dropNext() {
	if r.next == nil {
		return
	}
	<-r.next.ready
	if r.next.body != nil {
		r.next.body.Close()
	}
	r.next = nil
}

var errRange = errors.New("the S3 server has not returned the requested range")

// get requests the bytes of a segment between two positions of the object.
func (r *segmentReader) get(s span, position, end int64) (io.ReadCloser, error) {
	options := minio.GetObjectOptions{}
	if err := options.SetRange(position-s.offset, end-s.offset-1); err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	body, info, _, err := r.store.client.GetObject(r.ctx, r.store.settings.Bucket, r.folder+s.key(), options)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	if info.Size != end-position {
		body.Close()
		return nil, errRange
	}
	return body, nil
}

// Close implements io.Closer.
func (r *segmentReader) Close() error {
	r.cancel()
	r.dropNext()
	if r.body != nil {
		r.body.Close()
		r.body = nil
	}
	return nil
}
