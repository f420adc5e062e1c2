package client

import (
	"errors"
	"io"
)

var errChunk = errors.New("malformed chunked encoding in the response")

const (
	// maxDigits limits the hexadecimal digits of a chunk's length; more would overflow an int64.
	maxDigits = 15
	// maxLine limits what follows a chunk's length on its line, and all trailers together, in bytes.
	maxLine = 16 << 10
)

// chunkedReader decodes a chunked response body in place: it reads into the caller's buffer and moves the data over the
// framing, so that a burst of small chunks is returned by one Read, as large as the buffer. net/http's chunked reader
// has a buffer of its own, which each connection would hold for as long as it lasts.
type chunkedReader struct {
	conn  *conn
	state chunkState
	left  int64 // data bytes left of the chunk
	count int   // digits read of the chunk's length, or bytes read of the line
	err   error
}

// chunkState is what the next byte is part of.
type chunkState uint8

const (
	inLength    chunkState = iota
	inPadding              // after the length: some servers pad it with spaces
	inExtension            // after a semicolon
	lengthEnd              // \n
	inData
	dataReturn // \r
	dataEnd    // \n
	trailerStart
	inTrailerName
	inTrailer
	lastEnd // \n
	chunksDone
)

func (c *chunkedReader) Read(p []byte) (int, error) {
	for c.err == nil && len(p) > 0 {
		n, err := c.conn.Read(p)
		if size := c.decode(p[:n], err); size > 0 {
			return size, nil
		}
	}
	return 0, c.err
}

// readPooled reads as body.ReadPooled does.
func (c *chunkedReader) readPooled(get func() []byte, put func([]byte)) (buffer []byte, n int, err error) {
	for c.err == nil {
		buffer, n, err := c.conn.readPooled(get, put)
		if size := c.decode(buffer[:n], err); size > 0 {
			return buffer, size, nil
		}
		if buffer != nil {
			put(buffer)
		}
	}
	return nil, 0, c.err
}

// decode decodes p, which a read returned together with err, in place and returns the number of data bytes in it. It
// records the error that ends the body: io.EOF after the last chunk.
func (c *chunkedReader) decode(p []byte, err error) (size int) {
	size = c.compact(p)
	switch {
	case c.err != nil:
	case c.state == chunksDone:
		c.err = io.EOF
	case errors.Is(err, io.EOF):
		c.err = io.ErrUnexpectedEOF
	default:
		c.err = err
	}
	return size
}

// compact moves the data in p to its front and returns how many bytes of data there are.
func (c *chunkedReader) compact(p []byte) (size int) {
	for i := 0; i < len(p); {
		if c.state == chunksDone {
			c.conn.unexpectedBytes = true
			return size
		}
		if c.state != inData {
			if !c.framing(p[i]) {
				c.err = errChunk
				return size
			}
			i++
			continue
		}
		n := int(min(c.left, int64(len(p)-i)))
		copy(p[size:], p[i:i+n])
		i, size, c.left = i+n, size+n, c.left-int64(n)
		if c.left == 0 {
			c.state = dataReturn
		}
	}
	return size
}

// framing parses one byte outside the data. It returns false if the byte is not allowed there.
func (c *chunkedReader) framing(b byte) bool {
	switch c.state {
	case inLength:
		return c.length(b)
	case inPadding, inExtension:
		return c.afterLength(b)
	case lengthEnd:
		c.state, c.count = inData, 0
		if c.left == 0 {
			c.state = trailerStart
		}
		return b == '\n'
	case dataReturn:
		c.state = dataEnd
		return b == '\r'
	case dataEnd:
		c.state, c.count = inLength, 0
		return b == '\n'
	case trailerStart, inTrailerName, inTrailer:
		return c.trailer(b)
	case lastEnd:
		c.state = chunksDone
		return b == '\n'
	case inData, chunksDone:
	}
	return false
}

func (c *chunkedReader) length(b byte) bool {
	digit, ok := hexDigit(b)
	if ok && c.count < maxDigits {
		c.left, c.count = c.left<<4|int64(digit), c.count+1
		return true
	}
	if ok || c.count == 0 {
		return false
	}
	c.count = 0
	return c.afterLength(b)
}

func (c *chunkedReader) afterLength(b byte) bool {
	c.count++
	switch {
	case b == '\r':
		c.state = lengthEnd
	case c.state == inExtension:
		return b != '\n' && c.count < maxLine
	case b == ';':
		c.state = inExtension
	case b == ' ' || b == '\t':
		c.state = inPadding
		return c.count < maxLine
	default:
		return false
	}
	return true
}

// trailer parses and discards the trailer fields after the last chunk.
func (c *chunkedReader) trailer(b byte) bool {
	c.count++
	switch {
	case c.state == inTrailer && b == '\n':
		c.state = trailerStart
	case c.state == inTrailer:
	case c.state == trailerStart && b == '\r':
		c.state = lastEnd
	case c.state == inTrailerName && b == ':':
		c.state = inTrailer
	case b <= ' ' || b == ':':
		return false
	default:
		c.state = inTrailerName
	}
	return c.count < maxLine
}

func hexDigit(b byte) (digit byte, ok bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true
	default:
		return 0, false
	}
}
