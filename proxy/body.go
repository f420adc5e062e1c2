package proxy

import (
	"compress/gzip"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"sync"

	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/internal/bodyrate"
	"basegate/proxy/http1/strict"
)

const (
	// initialBuffer is allocated before any of a body has arrived, in bytes: a Content-Length alone must not cost much memory.
	initialBuffer = 16 << 10
	// maxTrustedLength is the largest Content-Length for which the whole buffer is allocated once initialBuffer is full, in bytes.
	maxTrustedLength = 1 << 20
	// gunzipMemory is what a gzip reader allocates, in bytes.
	gunzipMemory = 48 << 10
)

// readBody reads the whole body into memory of the key, decompressed, within the size limit.
func (s *Server) readBody(x *exchange) ([]byte, error) {
	x.memory = s.deps.Memory.Allocate(x.caller.identity.KeyID)
	limit := x.settings.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	u := bodyrate.New(x.w, x.r.Body)
	defer u.End()
	b := buffer{source: u, size: x.r.ContentLength, trusted: maxTrustedLength, awaited: admission.WaitingCost, memory: &x.memory}
	source, err := x.decompressed(u)
	if err != nil {
		return nil, err
	}
	if source != io.Reader(u) {
		defer x.memory.Shrink(gunzipMemory)
		b.source, b.size = source, unknownSize
	}
	err = b.readAll(limit)
	x.body = b.bytes
	switch {
	case errors.Is(err, admission.ErrFull):
		return nil, bufferFull(err)
	case err != nil:
		return nil, uploadErr(u)
	case int64(len(x.body)) > limit:
		return nil, apierr.BodyTooLarge(limit)
	}
	x.delivery.bodyRead = true
	x.r.Body.Close() // or net/http would look for more of it before the response, deep in its stack
	return x.body, nil
}

// decompressed returns a reader of the body by its Content-Encoding. If that is not u itself, it holds gunzipMemory.
func (x *exchange) decompressed(u *bodyrate.Reader) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return u, nil
	case "gzip", "x-gzip":
		if err := x.memory.Grow(gunzipMemory); err != nil {
			return nil, bufferFull(err)
		}
		unzipped, err := gzip.NewReader(u)
		if err != nil {
			x.memory.Shrink(gunzipMemory)
			return nil, uploadErr(u)
		}
		return unzipped, nil
	default:
		return nil, apierr.UnknownEncoding(encoding)
	}
}

// uploadErr returns the error for the client of a body that could not be read.
func uploadErr(u *bodyrate.Reader) error {
	switch {
	case u.Failed == nil:
		return apierr.MalformedJSON(0, "the body is not valid gzip, which its Content-Encoding says it is")
	case strict.Disconnected(u.Failed):
		return errClientGone
	case errors.Is(u.Failed, strict.ErrChunks):
		return apierr.MalformedJSON(0, "the body's chunked encoding is malformed")
	case errors.Is(u.Failed, strict.ErrLength):
		return apierr.MalformedJSON(0, "the body is shorter than its Content-Length says")
	case u.Unlimited:
		return apierr.MalformedJSON(0, "the body came too slowly: fewer than 64 KiB of it in ten seconds")
	default:
		return apierr.MalformedJSON(0, "the body came too slowly: it did not arrive within two minutes, or fewer than 64 KiB of it in ten seconds")
	}
}

// expectsNothingElse reports whether the Expect header of the request, if it has one, asks for 100-continue alone.
func (x *exchange) expectsNothingElse() bool {
	return !slices.ContainsFunc(x.r.Header["Expect"], func(value string) bool { return !strings.EqualFold(value, "100-continue") })
}

// maxDiscard limits how much of an unwanted body of a client with a valid key is read, in bytes; for others, the limit is that of a body.
const maxDiscard = 64 << 20

// discardBody reads an unwanted body before the response that refuses it.
func (x *exchange) discardBody() {
	if x.delivery.bodyRead || x.r.Body == http.NoBody {
		return
	}
	most := x.settings.MaxBodyBytes
	switch {
	case len(x.r.Header["Expect"]) > 0: // the client may wait for "100 Continue"; package strict has blanked any other expectation
		most = 0
	case x.caller.payer.Key != "":
		most = max(most, maxDiscard)
	}
	bodyrate.Discard(x.w, x.r.Body, most)
}

// unknownSize is the size of a body without a Content-Length.
const unknownSize = -1

// buffer reads the body of a request or of a response into memory, which it counts as it grows.
type buffer struct {
	source  io.Reader
	size    int64 // of the whole body, or unknownSize
	trusted int64 // the largest size for which all memory is allocated once the first buffer is full
	free    int64 // the largest capacity that is not counted
	awaited int64 // counted while the rest of the body is awaited
	memory  *admission.Allocation
	counted int64
	bytes   []byte // for putBodyBuffer
}

// readAll reads the body, up to one byte over the limit. A body of known size ends in a buffer of that size or of its class,
// because many may wait for their slot. The error is admission.ErrFull or that of the source.
func (b *buffer) readAll(limit int64) error {
	most := limit + 1
	if b.size >= 0 {
		most = min(most, b.size)
	}
	awaiting := false
	for int64(len(b.bytes)) < most {
		if len(b.bytes) == cap(b.bytes) {
			if err := b.enlarge(most); err != nil {
				return err
			}
		}
		n, err := b.source.Read(b.bytes[len(b.bytes):min(int64(cap(b.bytes)), most)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch read := int64(len(b.bytes)); {
		case errors.Is(err, io.EOF) && (b.size < 0 || read == b.size):
			return nil
		case err != nil && read < most:
			return err
		case !awaiting && read < most:
			if err := b.memory.Grow(b.awaited); err != nil {
				return err
			}
			awaiting = true
			defer b.memory.Shrink(b.awaited)
		}
	}
	return nil
}

// enlarge copies the bytes into a larger buffer. Both are counted while they are copied.
func (b *buffer) enlarge(most int64) error {
	full := b.bytes
	size := min(most, max(2*int64(cap(full)), initialBuffer))
	if cap(full) > 0 && most == b.size && most <= b.trusted {
		size = most
	}
	_, size = classOf(size)
	counted := size
	if size <= b.free {
		counted = 0
	}
	if err := b.memory.Grow(counted); err != nil {
		return err
	}
	defer b.memory.Shrink(b.counted)
	b.counted = counted
	b.bytes = append(getBodyBuffer(size), full...)
	putBodyBuffer(full)
	return nil
}

// hold counts what editing the body takes besides.
func (b *buffer) hold(bytes int64) error {
	err := b.memory.Grow(bytes)
	if err == nil {
		b.counted += bytes
	}
	return err
}

// release returns the bytes to their pool, and what is counted.
func (b *buffer) release() {
	if b.bytes != nil {
		putBodyBuffer(b.bytes)
		b.memory.Shrink(b.counted)
		b.bytes, b.counted = nil, 0
	}
}

// Buffers for bodies are pooled by size classes: that of initialBuffer, and four for each doubling up to maxTrustedLength.
// Smaller ones are cheap to allocate, and larger ones are rare. A class is 4 times the shift of its size, and the quarters.
const (
	firstClass = 51 // of initialBuffer
	lastClass  = 75 // of maxTrustedLength
)

var bodyPools [lastClass - firstClass + 1]sync.Pool // of *[]byte

// classOf returns the smallest class that holds a size, and its capacity; 0 and the size if no class does.
func classOf(size int64) (class int, capacity int64) {
	if size < initialBuffer || size > maxTrustedLength {
		return 0, size
	}
	shift := bits.Len64(uint64(size-1)) - 3
	quarters := (size - 1) >> shift // 4 to 7
	return 4*shift + int(quarters), (quarters + 1) << shift
}

// getBodyBuffer returns an empty buffer of the capacity of a size's class.
func getBodyBuffer(size int64) []byte {
	class, capacity := classOf(size)
	if class > 0 {
		if pooled, ok := bodyPools[class-firstClass].Get().(*[]byte); ok {
			return (*pooled)[:0]
		}
	}
	return make([]byte, 0, capacity)
}

// putBodyBuffer returns a buffer to its pool, if it has one. Nothing may access the buffer afterwards: it is cleared, so that
// no later request could send a part of it.
func putBodyBuffer(b []byte) {
	if class, capacity := classOf(int64(cap(b))); class > 0 && capacity == int64(cap(b)) {
		clear(b)
		bodyPools[class-firstClass].Put(&b)
	}
}
