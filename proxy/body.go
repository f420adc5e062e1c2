package proxy

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"basegate/admission"
	apierr "basegate/errors"
	"basegate/http1/strict"
)

const (
	// bodyTimeout is how long a client may take to send its body.
	bodyTimeout = 2 * time.Minute
	// initialBuffer is allocated for a body before any of it has arrived, in bytes: a Content-Length alone must not cost
	// much memory. What exceeds it counts as buffered memory.
	initialBuffer = 16 << 10
	// maxTrustedLength is the largest Content-Length for which the whole buffer is allocated once initialBuffer is full, in
	// bytes.
	maxTrustedLength = 1 << 20
	// gunzipMemory is what a gzip reader allocates, in bytes.
	gunzipMemory = 48 << 10
)

// readBody reads the whole body into memory, decompressed, within the size limit.
func (s *Server) readBody(x *exchange) ([]byte, error) {
	limit := x.settings.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	control := http.NewResponseController(x.w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err == nil {
		defer control.SetReadDeadline(time.Time{}) //nolint:errcheck // it has worked before
	}
	tracked := &trackedBody{body: x.r.Body}
	buffer := bodyBuffer{source: tracked, size: x.r.ContentLength, queue: s.queue}
	defer buffer.release()
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		if err := buffer.reserve(gunzipMemory); err != nil {
			return nil, bufferFull(err)
		}
		unzipped, err := gzip.NewReader(tracked)
		if err != nil {
			return nil, tracked.readErr()
		}
		buffer.source, buffer.size = unzipped, unknownSize
	default:
		return nil, apierr.UnknownEncoding(encoding)
	}
	body, err := buffer.readAll(limit)
	switch {
	case errors.Is(err, admission.ErrFull):
		return nil, bufferFull(err)
	case err != nil:
		return nil, tracked.readErr()
	case int64(len(body)) > limit:
		return nil, apierr.BodyTooLarge(limit)
	}
	x.delivery.bodyRead = true
	x.r.Body.Close() // or net/http would look for more of it before the response, deep in its stack
	return body, nil
}

// unknownSize is the size of a body without a Content-Length.
const unknownSize = -1

// bodyBuffer reads a body into a buffer whose memory is reserved as it grows.
type bodyBuffer struct {
	source   io.Reader
	size     int64 // of the whole body, or unknownSize
	queue    *admission.Queue
	releases []func()
}

// reserve counts bytes as buffered memory.
func (b *bodyBuffer) reserve(bytes int64) error {
	release, err := b.queue.ReserveMemory(bytes)
	if err == nil {
		b.releases = append(b.releases, release)
	}
	return err
}

// release releases the reserved memory. Whatever the request waits for next counts the body itself.
func (b *bodyBuffer) release() {
	for _, release := range b.releases {
		release()
	}
}

// readAll reads to the end, or to one byte over the limit. A body of known size ends in a buffer of exactly that size,
// because many may wait for their slot.
func (b *bodyBuffer) readAll(limit int64) ([]byte, error) {
	most := limit + 1
	if b.size >= 0 {
		most = b.size
	}
	body := make([]byte, 0, min(most, initialBuffer))
	for int64(len(body)) < most {
		if len(body) == cap(body) {
			size := min(most, 2*int64(cap(body)))
			if most == b.size && most <= maxTrustedLength {
				size = most
			}
			if err := b.reserve(size - int64(cap(body))); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := b.source.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF) && (b.size < 0 || int64(len(body)) == b.size):
			return body, nil
		case err != nil && int64(len(body)) < most:
			return nil, err
		}
	}
	return body, nil
}

// trackedBody remembers the error of a body's first failed read. After a body has broken off, net/http reports a regular
// end for further reads.
type trackedBody struct {
	body   io.Reader
	failed error // nil while reads succeed
}

// Read implements io.Reader.
func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && err != io.EOF {
		b.failed = err
	}
	return n, err
}

// readErr returns the error for the client: its gzip or its chunks are invalid, it was too slow, or it disconnected
// while sending.
func (b *trackedBody) readErr() error {
	switch {
	case b.failed == nil:
		return apierr.MalformedJSON(0, "the body is not valid gzip, which its Content-Encoding says it is")
	case errors.Is(b.failed, os.ErrDeadlineExceeded):
		return apierr.MalformedJSON(0, "the body did not arrive within two minutes")
	case errors.Is(b.failed, strict.ErrChunks):
		return apierr.MalformedJSON(0, "the body's chunked encoding is malformed")
	default:
		return errClientGone
	}
}

const (
	// maxDiscard limits how much of an unwanted body is read if the client has a valid key, in bytes. For other clients the
	// limit is that of a body.
	maxDiscard     = 64 << 20
	discardTimeout = 5 * time.Second
)

// discardBody reads an unwanted body before the response that refuses it: otherwise a client that is still sending would
// see a connection reset in place of the response. The read deadline stays set, because net/http reads on before it sends
// a response, for as long as that takes.
func (x *exchange) discardBody() {
	if x.delivery.bodyRead || x.r.Body == http.NoBody || x.r.Header.Get("Expect") != "" {
		return // nothing is coming, or the client waits for "100 Continue"
	}
	most := x.settings.MaxBodyBytes
	if x.caller.payer.Key != "" {
		most = max(most, maxDiscard)
	}
	control := http.NewResponseController(x.w)
	if control.SetReadDeadline(time.Now().Add(discardTimeout)) != nil {
		return
	}
	io.CopyN(io.Discard, x.r.Body, most) //nolint:errcheck // best effort
}
