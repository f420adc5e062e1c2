// Package stream parses the responses of vLLM's completion API. It splits a stream of server-sent events into whole
// events, parses the few members that the gateway needs from a completion object or a chunk, and tracks the state of a
// stream: which choices have finished, what vLLM reports as usage, and how much of each choice has been passed on.
//
// It reports what the bytes say. What a failure means for retries, the circuit breaker or the client is decided by
// packages breaker and proxy.
package stream

import (
	"errors"
	"io"
	"math"
	"sync"
)

const (
	// readSize is the buffer for one read from a backend, in bytes; most events are much smaller. If the backend sends
	// faster than events are passed on, reads fill the buffer, and burstSize passes them on in fewer, larger writes.
	readSize  = 4 << 10
	burstSize = 32 << 10
)

// ErrMidEvent is returned if the stream ends inside an event.
var ErrMidEvent = errors.New("the stream ended inside an event")

// Reader reads a stream of server-sent events in batches of whole events: all that have arrived together. An incomplete
// event stays in the buffer until its end has arrived. It must not be used concurrently.
type Reader struct {
	source  io.Reader
	limit   int     // of one event, in bytes
	memory  counter // of a buffer that grew for a long event
	buffer  []byte  // nil while nothing is buffered
	start   int     // of the bytes not yet returned
	end     int     // of the bytes read
	scanned int     // no event ends before this offset
	burst   bool    // the last read nearly filled the buffer
	get     func() []byte
}

// Idle buffers of both sizes. A buffer that grew for a long event is not pooled.
var (
	readBuffers  = sync.Pool{New: func() any { return new([readSize]byte) }}
	burstBuffers = sync.Pool{New: func() any { return new([burstSize]byte) }}
)

// PooledReader is a source that is read without holding a buffer while waiting, as the bodies of http1/client are.
type PooledReader interface {
	// ReadPooled reads like io.Reader into a buffer from get, which it takes only once there is something to read. A
	// buffer that turns out not to be needed is returned to put. The caller owns the returned buffer, nil if nothing was read.
	ReadPooled(get func() []byte, put func([]byte)) (buffer []byte, n int, err error)
}

// NewReader returns a Reader of source. If source is a PooledReader, no buffer is held while waiting.
func NewReader(source io.Reader, l Limits) *Reader {
	r := &Reader{source: source, limit: l.EventBytes, memory: counter{memory: l.Memory}}
	if r.limit == 0 {
		r.limit = math.MaxInt
	}
	r.get = func() []byte {
		if r.burst {
			return getBuffer(burstSize)
		}
		return getBuffer(readSize)
	}
	return r
}

func getBuffer(size int) []byte {
	switch size {
	case readSize:
		return readBuffers.Get().(*[readSize]byte)[:]
	case burstSize:
		return burstBuffers.Get().(*[burstSize]byte)[:]
	default:
		return make([]byte, size)
	}
}

func putBuffer(buffer []byte) {
	switch len(buffer) {
	case readSize:
		readBuffers.Put((*[readSize]byte)(buffer))
	case burstSize:
		burstBuffers.Put((*[burstSize]byte)(buffer))
	}
}

// Release returns the buffer to its pool. Batches must not be used afterwards.
func (r *Reader) Release() {
	putBuffer(r.buffer)
	r.buffer = nil
	r.memory.release()
}

// Next blocks until at least one whole event has arrived and returns it with all others that have arrived, terminators
// included, and the comments between them. The bytes are valid until the next call, and the caller may change them. It returns
// io.EOF at the end of the stream, ErrMidEvent if the stream ends inside an event, ErrTooLarge, the error of Limits.Memory or that of
// the source.
func (r *Reader) Next() ([]byte, error) {
	for {
		r.start += commentLength(r.buffer[r.start:r.end]) // or comments would fill the buffer while no event arrives
		if end := r.lastEventEnd(); end > r.start {
			batch := r.buffer[r.start:end]
			r.start, r.scanned = end, end
			return batch, nil
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

// lastEventEnd returns the offset after the last whole event in the buffer, or r.start if there is none.
func (r *Reader) lastEventEnd() int {
	last := r.start
	for from := max(r.start, r.scanned-3); from < r.end; { // a terminator has at most 4 bytes
		end := eventEnd(r.buffer[from:r.end])
		if end < 0 {
			break
		}
		from += end
		last = from
	}
	r.scanned = r.end
	return last
}

func (r *Reader) fill() error {
	if r.start > 0 {
		r.moveTo(r.buffer)
	}
	n, err := r.read()
	r.end += n
	r.burst = n > 0 && r.end >= len(r.buffer)-len(r.buffer)/8 // an eighth less than full: chunk headers are stripped
	if n > 0 {
		return nil // the source returns its error again at the next read
	}
	if errors.Is(err, io.EOF) && r.end > 0 {
		return ErrMidEvent
	}
	return err
}

// read reads after the buffered bytes. If there are none, it waits without a buffer.
func (r *Reader) read() (int, error) {
	if r.end == 0 {
		r.Release()
		if pooled, ok := r.source.(PooledReader); ok {
			buffer, n, err := pooled.ReadPooled(r.get, putBuffer)
			r.buffer = buffer
			return n, err
		}
		r.buffer = r.get()
	}
	if err := r.grow(); err != nil {
		return 0, err
	}
	return r.source.Read(r.buffer[r.end:])
}

// moveTo copies the bytes not yet returned to the beginning of a buffer.
func (r *Reader) moveTo(buffer []byte) {
	n := copy(buffer, r.buffer[r.start:r.end])
	r.scanned -= r.start
	r.start, r.end = 0, n
}

// grow replaces a buffer that one event fills, or that is too small for the backend's pace.
func (r *Reader) grow() error {
	size := len(r.buffer)
	switch {
	case r.burst && size < burstSize:
		size = burstSize
	case r.end < size:
		return nil
	case size >= r.limit:
		return ErrTooLarge
	default:
		size = min(2*size, max(r.limit, burstSize))
	}
	if size > burstSize {
		if err := r.memory.grow(int64(size)); err != nil {
			return err
		}
	}
	next := getBuffer(size)
	previous := r.buffer
	r.moveTo(next)
	putBuffer(previous)
	r.buffer = next
	if len(previous) > burstSize {
		r.memory.shrink(int64(len(previous)))
	}
	return nil
}

var (
	errTooManyChoices = errors.New("the response has more choices than were asked for")
	// ErrTooLarge is returned for an event that is longer than Limits.EventBytes.
	ErrTooLarge = errors.New("the backend sent more than the gateway takes")
)

// Limits are the limits of one response. They bound what a backend can make the gateway hold in memory.
type Limits struct {
	Choices    int    // of the complete response; 0: unlimited
	EventBytes int    // of one event; 0: unlimited
	Memory     Memory // counts what is held; nil: it is not counted. Its errors are returned as they are
}

// Memory counts the bytes that a request holds.
type Memory interface {
	Grow(bytes int64) error
	Shrink(bytes int64)
}

// counter counts in a Memory what one holder has and returns it at the end.
type counter struct {
	memory  Memory
	counted int64
}

func (c *counter) grow(bytes int64) error {
	if c.memory == nil || bytes <= 0 {
		return nil
	}
	if err := c.memory.Grow(bytes); err != nil {
		return err
	}
	c.counted += bytes
	return nil
}

func (c *counter) shrink(bytes int64) {
	if bytes = min(bytes, c.counted); bytes > 0 {
		c.memory.Shrink(bytes)
		c.counted -= bytes
	}
}

func (c *counter) release() { c.shrink(c.counted) }
