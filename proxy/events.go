package proxy

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"

	"basegate/http1/client"
)

const (
	// readSize is the room for one read from a backend; most events are well under it. A backend that sends faster than
	// the events are passed on fills it, and gets burstSize, so that they go on in fewer and larger pieces.
	readSize  = 4 << 10
	burstSize = 32 << 10
	// maxEvent bounds one event, in bytes. An echo of a long prompt with logprobs makes one line of many megabytes.
	maxEvent = 256 << 20
)

var (
	errEventTooLong = errors.New("an event is longer than 256 MiB")
	errMidEvent     = errors.New("the stream ended inside an event")
)

// events cuts a stream of server-sent events into batches of whole events: all that have arrived together. A part of
// an event stays back until its end has come.
type events struct {
	source  io.Reader
	buffer  []byte // nil while nothing is held back
	start   int    // of what has not been given out
	end     int    // of what has been read
	scanned int    // up to where the end of an event was looked for in vain
	burst   bool   // the last read has nearly filled the buffer
	take    func() []byte
}

// Buffers of either size that are at rest; one that a long event has made grow is not kept.
var (
	readBuffers  = sync.Pool{New: func() any { return new([readSize]byte) }}
	burstBuffers = sync.Pool{New: func() any { return new([burstSize]byte) }}
)

func newEvents(source io.Reader) *events {
	e := &events{source: source}
	e.take = func() []byte { return takeBuffer(e.size()) }
	return e
}

// size is that of a buffer with nothing in it.
func (e *events) size() int {
	if e.burst {
		return burstSize
	}
	return readSize
}

//nolint:errcheck // each pool holds one type
func takeBuffer(size int) []byte {
	switch size {
	case readSize:
		return readBuffers.Get().(*[readSize]byte)[:]
	case burstSize:
		return burstBuffers.Get().(*[burstSize]byte)[:]
	default:
		return make([]byte, size)
	}
}

func giveBuffer(buffer []byte) {
	switch len(buffer) {
	case readSize:
		readBuffers.Put((*[readSize]byte)(buffer))
	case burstSize:
		burstBuffers.Put((*[burstSize]byte)(buffer))
	}
}

// release gives the buffer back. No batch may be used afterwards.
func (e *events) release() {
	giveBuffer(e.buffer)
	e.buffer = nil
}

// batch waits for at least one whole event and returns it with all others that have arrived, terminators included.
// The bytes are good until the next call. The error is io.EOF at the end of the stream, errMidEvent when the end
// comes inside an event, or the source's.
func (e *events) batch() ([]byte, error) {
	for {
		if end := e.lastWhole(); end > e.start {
			whole := e.buffer[e.start:end]
			e.start, e.scanned = end, end
			return whole, nil
		}
		if err := e.fill(); err != nil {
			return nil, err
		}
	}
}

// lastWhole is the offset behind the last whole event in the buffer, or e.start when there is none.
func (e *events) lastWhole() int {
	last := e.start
	for from := max(e.start, e.scanned-3); from < e.end; {
		i := bytes.IndexByte(e.buffer[from:e.end], '\n')
		if i < 0 {
			break
		}
		from += i + 1
		if n := blankLine(e.buffer[from:e.end]); n > 0 {
			from += n
			last = from
		}
	}
	e.scanned = e.end
	return last
}

// blankLine is the length of the line break that rest begins with, or 0.
func blankLine(rest []byte) int {
	switch {
	case len(rest) > 0 && rest[0] == '\n':
		return 1
	case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
		return 2
	default:
		return 0
	}
}

// fill reads once, making room first.
func (e *events) fill() error {
	if e.start > 0 {
		e.move(e.buffer)
	}
	n, err := e.read()
	e.end += n
	e.burst = n > 0 && e.end >= len(e.buffer)-len(e.buffer)/8 // not quite: the chunks are taken off
	if n > 0 {
		return nil // an error comes again at the next read
	}
	if errors.Is(err, io.EOF) && e.end > 0 {
		return errMidEvent
	}
	return err
}

// read reads behind what is held back. Where nothing is, no buffer is held while nothing comes.
func (e *events) read() (int, error) {
	if e.end == 0 {
		e.release()
		if lender, ok := e.source.(client.PooledReader); ok {
			buffer, n, err := lender.ReadPooled(e.take, giveBuffer)
			e.buffer = buffer
			return n, err //nolint:wrapcheck // the source's own
		}
		e.buffer = e.take()
	}
	if err := e.grow(); err != nil {
		return 0, err
	}
	return e.source.Read(e.buffer[e.end:]) //nolint:wrapcheck // the source's own
}

// move puts what has not been given out at the beginning of a buffer.
func (e *events) move(to []byte) {
	n := copy(to, e.buffer[e.start:e.end])
	e.scanned -= e.start
	e.start, e.end = 0, n
}

// grow makes room where the buffer is full: one event fills it, or the backend sends faster than the events are passed
// on.
func (e *events) grow() error {
	size := len(e.buffer)
	switch {
	case e.burst && size < burstSize:
		size = burstSize
	case e.end < size:
		return nil
	case size >= maxEvent:
		return errEventTooLong
	default:
		size *= 2
	}
	next := takeBuffer(size)
	before := e.buffer
	e.move(next)
	giveBuffer(before)
	e.buffer = next
	return nil
}

// cut takes the first event off a batch, its terminator included.
func cut(batch []byte) (event, rest []byte) {
	for from := 0; ; {
		i := bytes.IndexByte(batch[from:], '\n')
		if i < 0 {
			return batch, nil
		}
		from += i + 1
		if n := blankLine(batch[from:]); n > 0 {
			return batch[:from+n], batch[from+n:]
		}
	}
}

// withoutData tells whether an event that has no payload is one by the rules of server-sent events: comments, or
// fields other than data.
func withoutData(event []byte) bool {
	for line := range bytes.Lines(event) {
		name, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		switch string(name) {
		case "", "data", "event", "id", "retry":
		default:
			return false
		}
	}
	return true
}

// data is the payload of an event: what stands behind its "data:", without line breaks. It is empty for an event
// that has none, such as a comment.
func data(event []byte) []byte {
	line, whole := bytes.CutSuffix(event, []byte("\n\n"))
	if line, ok := bytes.CutPrefix(line, []byte("data: ")); ok && whole && bytes.IndexByte(line, '\n') < 0 {
		return bytes.TrimRight(line, "\r") // as vLLM writes it
	}
	var payload []byte
	for line := range bytes.Lines(event) {
		rest, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		rest = bytes.TrimRight(bytes.TrimPrefix(rest, []byte(" ")), "\r\n")
		if payload == nil {
			payload = rest
			continue
		}
		payload = append(append(slices.Clip(payload), '\n'), rest...)
	}
	return payload
}
