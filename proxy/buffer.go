package proxy

import (
	"errors"
	"io"

	"basegate/budget/admission"
)

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
	counted int64 // of the buffer that readAll has returned
	pooled  bool  // buffers are of getBodyBuffer; the caller returns the one that readAll returns
}

// readAll appends the body, up to one byte over the limit, to an empty buffer. A body of known size ends in a buffer of
// that size or of its class, because many may wait for their slot. The error is admission.ErrFull or that of the
// source; the bytes read before it are returned too.
func (b *buffer) readAll(into []byte, limit int64) ([]byte, error) {
	most := limit + 1
	if b.size >= 0 {
		most = min(most, b.size)
	}
	if err := b.count(cap(into)); err != nil {
		return nil, err
	}
	awaiting := false
	for int64(len(into)) < most {
		if len(into) == cap(into) {
			grown, err := b.grow(into, most)
			if err != nil {
				return into, err
			}
			into = grown
		}
		n, err := b.source.Read(into[len(into):min(int64(cap(into)), most)])
		into = into[:len(into)+n]
		switch {
		case errors.Is(err, io.EOF) && (b.size < 0 || int64(len(into)) == b.size):
			return into, nil
		case err != nil && int64(len(into)) < most:
			return into, err
		}
		if !awaiting && int64(len(into)) < most {
			if err := b.memory.Grow(b.awaited); err != nil {
				return into, err
			}
			awaiting = true
			defer b.memory.Shrink(b.awaited)
		}
	}
	return into, nil
}

// grow returns a larger buffer with the same bytes. Both are counted while they are copied.
func (b *buffer) grow(full []byte, most int64) ([]byte, error) {
	size := min(most, max(2*int64(cap(full)), initialBuffer))
	if cap(full) > 0 && most == b.size && most <= b.trusted {
		size = most
	}
	if b.pooled {
		_, size = classOf(size)
	}
	before := b.counted
	if err := b.count(int(size)); err != nil {
		return nil, err
	}
	defer b.memory.Shrink(before)
	if !b.pooled {
		return append(make([]byte, 0, size), full...), nil
	}
	grown := append(getBodyBuffer(size), full...)
	putBodyBuffer(full)
	return grown, nil
}

// count counts a new buffer.
func (b *buffer) count(capacity int) error {
	counted := int64(capacity)
	if counted <= b.free {
		counted = 0
	}
	if err := b.memory.Grow(counted); err != nil {
		return err
	}
	b.counted = counted
	return nil
}

// release returns the memory of a buffer that is not used any more.
func (b *buffer) release() {
	b.memory.Shrink(b.counted)
	b.counted = 0
}
