package proxy

import (
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Buffers for request bodies are pooled by size classes: those of initialBuffer and of maxTrustedLength, and four for each
// doubling between them. Smaller ones are cheap to allocate, and larger ones are rare.
const (
	stepsPerDoubling = 4
	poolClasses      = 6*stepsPerDoubling + 1
)

var bodyPools [poolClasses]sync.Pool // of *[]byte

// classOf returns the smallest class that holds a size, and its capacity; -1 and the size if no class does.
func classOf(size int64) (class int, capacity int64) {
	if size < initialBuffer || size > maxTrustedLength {
		return -1, size
	}
	doubling := bits.Len64(uint64(size-1) / initialBuffer) // of initialBuffer, which the size is at most
	if doubling == 0 {
		return 0, initialBuffer
	}
	from := int64(initialBuffer) << (doubling - 1)
	step := from / stepsPerDoubling
	steps := (size - from + step - 1) / step
	return (doubling-1)*stepsPerDoubling + int(steps), from + steps*step
}

// getBodyBuffer returns an empty buffer of the capacity of a size's class. It is not cleared.
func getBodyBuffer(size int64) []byte {
	class, capacity := classOf(size)
	if class >= 0 {
		if pooled, ok := bodyPools[class].Get().(*[]byte); ok {
			return (*pooled)[:0]
		}
	}
	return make([]byte, 0, capacity)
}

// putBodyBuffer returns a buffer to its pool, if it has one. Nothing may access the buffer afterwards.
func putBodyBuffer(b []byte) {
	if class, capacity := classOf(int64(cap(b))); class >= 0 && capacity == int64(cap(b)) {
		poison(b[:cap(b)])
		bodyPools[class].Put(&b)
	}
}

// sharedBody is a request's body in a pooled buffer. The exchange holds it, and each attempt whose transport may still read
// it; the last one to let it go returns the buffer.
type sharedBody struct {
	bytes   []byte
	holders atomic.Int32
}

func newSharedBody(b []byte) *sharedBody {
	s := &sharedBody{bytes: b}
	s.holders.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.holders.Add(-1) == 0 {
		putBodyBuffer(s.bytes)
	}
}

// releaseBody ends the exchange's use of the request's body.
func (x *exchange) releaseBody() {
	if x.body == nil {
		return
	}
	if x.request != nil {
		x.request.ForgetBody()
	}
	x.body.release()
	x.body = nil
}

// upstreamBody is a body that an attempt sends. Its transport closes it when it no longer reads it, which may be after the
// response has come.
type upstreamBody struct {
	io.Reader
	body   *sharedBody // nil if it is in no pooled buffer
	closed atomic.Bool
}

func (x *exchange) upstreamBody(r io.Reader) *upstreamBody {
	if x.body != nil {
		x.body.holders.Add(1)
	}
	return &upstreamBody{Reader: r, body: x.body}
}

// WriteTo implements io.WriterTo.
func (b *upstreamBody) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, b.Reader) }

// Close implements io.Closer.
func (b *upstreamBody) Close() error {
	if b.body != nil && b.closed.CompareAndSwap(false, true) {
		b.body.release()
	}
	return nil
}
