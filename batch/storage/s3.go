package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"basegate/internal/wait"
)

const (
	requestTimeout = time.Minute // of one append, list or deletion with its retries
	requestRetries = 3
	conflictPause  = 50 * time.Millisecond
	lateWrites     = 30 * time.Second // S3 servers end requests sooner whose client is gone
	layoutAge      = 10 * time.Second // after which a writer lists an object again
	maxLayouts     = 256
	mergeTimeout   = 20 * time.Second // so that a slow merge leaves an append its time
	finishTimeout  = 10 * time.Minute
	maxFinished    = 256 << 20 // bytes of an object that becomes one segment: a longer write would fail too often
)

// S3Settings say where a bucket is. Credentials come from the environment, see newCredentials.
type S3Settings struct {
	Endpoint  string // host:port
	Bucket    string
	Prefix    string // of all keys, without a slash at its ends; may be empty
	Region    string // empty: the server is asked
	Plaintext bool   // HTTP without TLS
}

// S3 keeps objects in a bucket. An object is a list of segments, PREFIX/NAME/SEGMENT, each written by one append and
// never changed: their order says which of their bytes count. So neither a crash between the write of a segment and the
// record of it, nor a write that arrives late, damages what was recorded before.
type S3 struct {
	settings    S3Settings
	client      *minio.Core
	transport   *http.Transport
	credentials *credentials.Credentials
	clock       func() time.Time

	mu             sync.Mutex // guards the fields below
	lastGeneration uint64
	written        map[string]writtenLayout // of objects that this process appends to
	readable       map[string]readLayout
}

// writtenLayout is the layout of an object as this process has left it.
type writtenLayout struct {
	layout
	at time.Time
}

// readLayout is the layout of the beginning of an object that its reader has recorded, which never changes.
type readLayout struct {
	spans []span
	upTo  int64
}

// newCredentials returns the credentials that the AWS tools find too: the environment, the file of shared credentials,
// and the role of the machine or container.
func newCredentials() *credentials.Credentials {
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
	})
}

// OpenS3 returns the store in a bucket. It sends nothing. The caller must close it.
func OpenS3(s S3Settings) (*S3, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 90 * time.Second,
		MaxIdleConns: 256, MaxIdleConnsPerHost: 256,
		DisableCompression: true, // bytes must arrive as they were sent
	}
	creds := newCredentials()
	client, err := minio.NewCore(s.Endpoint, &minio.Options{
		Creds: creds, Secure: !s.Plaintext, Region: s.Region, Transport: transport, MaxRetries: requestRetries,
	})
	if err != nil {
		return nil, fmt.Errorf("open the bucket of files: %w", err)
	}
	return &S3{
		settings: s, client: client, transport: transport, credentials: creds, clock: time.Now,
		written: map[string]writtenLayout{}, readable: map[string]readLayout{},
	}, nil
}

// Close implements Store.
func (s *S3) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// LateWrites implements Store.
func (*S3) LateWrites() time.Duration { return lateWrites }

var errName = errors.New("not a name of an object")

// folder returns the beginning of the keys of an object's segments.
func (s *S3) folder(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, `/\`) || strings.Trim(name, ".") == "" {
		return "", errName
	}
	return s.key(name) + "/", nil
}

// key returns the key of what stands under the prefix.
func (s *S3) key(name string) string {
	if s.settings.Prefix == "" {
		return name
	}
	return s.settings.Prefix + "/" + name
}

// Append implements Store. Bytes behind the offset are deleted as far as possible; they do not count in any case, and
// Delete removes what is left.
func (s *S3) Append(ctx context.Context, name string, offset int64, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	folder, err := s.folder(name)
	if err != nil {
		return err
	}
	l, err := s.layoutAt(ctx, name, folder, offset)
	if err != nil {
		return fmt.Errorf("append to an object: %w", err)
	}
	if l.end() < offset {
		return fmt.Errorf("append to an object: %w", ErrShort)
	}
	var dropped []segment
	if l.end() == offset {
		dropped = s.mergeTail(ctx, folder, &l)
	}
	added := segment{s.nextGeneration(l.latest), offset, int64(len(data))}
	if err := s.put(ctx, folder, added, bytes.NewReader(data)); err != nil {
		s.forget(name) // whether the segment exists is not known
		return fmt.Errorf("append to an object: %w", err)
	}
	dropped = append(dropped, l.apply(added)...)
	s.mu.Lock()
	limitEntries(s.written)
	s.written[name] = writtenLayout{l, s.clock()}
	if s.readable[name].upTo > offset {
		delete(s.readable, name)
	}
	s.mu.Unlock()
	s.removeSegments(ctx, folder, dropped)
	return nil
}

// layoutAt returns the layout of an object that is appended to at an offset.
func (s *S3) layoutAt(ctx context.Context, name, folder string, offset int64) (layout, error) {
	s.mu.Lock()
	known, ok := s.written[name]
	s.mu.Unlock()
	if ok && known.end() == offset && s.clock().Sub(known.at) < layoutAge {
		return known.layout, nil
	}
	return s.list(ctx, folder)
}

// nextGeneration returns a generation after all that this process has used, and after the latest of the object. The clock
// sets it apart from those of earlier processes whose writes are late.
func (s *S3) nextGeneration(latest uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := uint64(s.clock().UnixMicro())
	s.lastGeneration = max(now, latest+1, s.lastGeneration+1)
	return s.lastGeneration
}

func (s *S3) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, name)
	delete(s.readable, name)
}

// limitEntries makes room for an entry.
func limitEntries[V any](m map[string]V) {
	for key := range m {
		if len(m) < maxLayouts {
			return
		}
		delete(m, key)
	}
}

// put writes a segment.
func (s *S3) put(ctx context.Context, folder string, to segment, data io.Reader) error {
	for attempt := 1; ; attempt++ {
		_, err := s.client.Client.PutObject(ctx, s.settings.Bucket, folder+to.key(), data, to.length,
			minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
		err = explain(err)
		again, seekable := data.(io.Seeker)
		if attempt == requestRetries || !isConflict(err) || !seekable || !wait.For(ctx, conflictPause) {
			return err
		}
		if _, err := again.Seek(0, io.SeekStart); err != nil {
			return err //nolint:wrapcheck // never: the data are in memory
		}
	}
}

// list returns the layout of an object.
func (s *S3) list(ctx context.Context, folder string) (layout, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var all []segment
	for o := range s.client.ListObjectsIter(ctx, s.settings.Bucket, minio.ListObjectsOptions{Prefix: folder, Recursive: true}) {
		if o.Err != nil {
			return layout{}, explain(o.Err)
		}
		if found, ok := parseSegment(strings.TrimPrefix(o.Key, folder)); ok && found.length == o.Size {
			all = append(all, found)
		}
	}
	return newLayout(all), explain(ctx.Err())
}

// mergeTail merges the small segments at the end of an object, and returns those that are not needed any more. If that
// fails, the segments stay as they are.
func (s *S3) mergeTail(ctx context.Context, folder string, l *layout) (dropped []segment) {
	spans := mergeable(l.spans)
	if len(spans) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	dropped, _ = s.merge(ctx, folder, l, spans)
	return dropped
}

// merge writes one segment in the place of those at the end of the object, and returns them.
func (s *S3) merge(ctx context.Context, folder string, l *layout, spans []span) ([]segment, error) {
	start := spans[0].offset
	merged := segment{s.nextGeneration(l.latest), start, l.end() - start}
	source := s.newReader(ctx, folder, spans, start, l.end())
	defer source.Close()
	if err := s.put(ctx, folder, merged, source); err != nil {
		return nil, err
	}
	return l.apply(merged), nil
}

// Finish implements Store: it makes one segment of an object that is not too long.
func (s *S3) Finish(ctx context.Context, name string, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	folder, err := s.folder(name)
	if err != nil {
		return err
	}
	l, err := s.list(ctx, folder)
	if err != nil {
		return fmt.Errorf("finish an object: %w", err)
	}
	if l.end() < size {
		return fmt.Errorf("finish an object: %w", ErrShort)
	}
	if size > maxFinished || len(l.spans) < 2 && l.end() == size {
		return nil
	}
	for len(l.spans) > 0 && l.spans[len(l.spans)-1].offset >= size {
		l.spans = l.spans[:len(l.spans)-1]
	}
	if len(l.spans) == 0 {
		return nil
	}
	l.spans[len(l.spans)-1].end = size
	if _, err := s.merge(ctx, folder, &l, l.spans); err != nil {
		return fmt.Errorf("finish an object: %w", err)
	}
	s.forget(name)
	if err := s.removeAll(ctx, folder, l.spans[0].key()); err != nil {
		return fmt.Errorf("finish an object: %w", err)
	}
	return nil
}

// Open implements Store.
func (s *S3) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	folder, err := s.folder(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	known, ok := s.readable[name]
	s.mu.Unlock()
	end := offset + length
	if !ok || known.upTo < end {
		if known.spans, err = s.listReadable(ctx, name, folder, end); err != nil {
			return nil, fmt.Errorf("open an object: %w", err)
		}
	}
	r := s.newReader(ctx, folder, known.spans, offset, end)
	r.relist = func(ctx context.Context) ([]span, error) { return s.listReadable(ctx, name, folder, end) }
	if err := r.start(); err != nil {
		r.Close()
		return nil, fmt.Errorf("open an object: %w", err)
	}
	return r, nil
}

// listReadable lists an object, and keeps what it finds for further reads up to an end: those bytes do not change.
func (s *S3) listReadable(ctx context.Context, name, folder string, end int64) ([]span, error) {
	l, err := s.list(ctx, folder)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.spans) == 0 {
		delete(s.readable, name)
		return nil, ErrNotFound
	}
	if l.end() >= end {
		limitEntries(s.readable)
		s.readable[name] = readLayout{l.spans, end}
	}
	return l.spans, nil
}

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, name string) error {
	folder, err := s.folder(name)
	if err != nil {
		return err
	}
	s.forget(name)
	if err := s.removeAll(ctx, folder, ""); err != nil {
		return fmt.Errorf("delete an object: %w", err)
	}
	return nil
}

// removeAll deletes what stands in an object's folder, but one segment.
func (s *S3) removeAll(ctx context.Context, folder, except string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var failed error
	listed := func(yield func(minio.ObjectInfo) bool) {
		for o := range s.client.ListObjectsIter(ctx, s.settings.Bucket, minio.ListObjectsOptions{Prefix: folder, Recursive: true}) {
			if o.Err != nil {
				failed = o.Err
				return
			}
			if o.Key != folder+except && !yield(minio.ObjectInfo{Key: o.Key}) {
				return
			}
		}
	}
	removed, err := s.client.RemoveObjectsWithIter(ctx, s.settings.Bucket, listed, minio.RemoveObjectsOptions{})
	if err != nil {
		return explain(err)
	}
	for r := range removed {
		if r.Err != nil {
			failed = r.Err
		}
	}
	return explain(failed)
}

// removeSegments deletes segments of which nothing counts any more. Segments that remain are deleted with the object.
func (s *S3) removeSegments(ctx context.Context, folder string, all []segment) {
	if len(all) == 0 {
		return
	}
	objects := func(yield func(minio.ObjectInfo) bool) {
		for _, segment := range all {
			if !yield(minio.ObjectInfo{Key: folder + segment.key()}) {
				return
			}
		}
	}
	removed, err := s.client.RemoveObjectsWithIter(ctx, s.settings.Bucket, objects, minio.RemoveObjectsOptions{})
	if err != nil {
		return
	}
	for range removed { // the requests are sent as the results are read
	}
}
