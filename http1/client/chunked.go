package client

import (
	"errors"
	"io"
)

var errChunk = errors.New("the answer's chunks make no sense")

const (
	// maxDigits is what the length of a chunk may have; more would not fit an int64.
	maxDigits = 15
	// maxLine bounds what stands behind a chunk's length, and all trailers together, in bytes.
	maxLine = 16 << 10
)

// chunked takes the chunks off an answer. It reads into the caller's buffer and closes the gaps there, so that a burst
// of small chunks comes out in one piece, as large as the buffer is: net/http's own reader has a buffer between, which
// each connection would hold as long as it lasts.
type chunked struct {
	conn  *conn
	at    place
	left  int64 // bytes of the chunk
	count int   // digits of its length, or bytes of a line
	err   error
}

// place is what the next byte belongs to.
type place uint8

const (
	inLength    place = iota
	inSpace           // behind the length, which some pad
	inExtension       // behind a semicolon
	lengthEnd         // \n
	inData
	dataReturn // \r
	dataEnd    // \n
	trailerStart
	inTrailerName
	inTrailer
	lastEnd // \n
	chunksOver
)

// Read implements io.Reader.
func (c *chunked) Read(p []byte) (int, error) {
	for c.err == nil && len(p) > 0 {
		n, err := c.conn.Read(p)
		if out := c.took(p[:n], err); out > 0 {
			return out, nil
		}
	}
	return 0, c.err
}

// readPooled is Lender's.
func (c *chunked) readPooled(take func() []byte, give func([]byte)) (buffer []byte, n int, err error) {
	for c.err == nil {
		buffer, n, err := c.conn.readPooled(take, give)
		if out := c.took(buffer[:n], err); out > 0 {
			return buffer, out, nil
		}
		if buffer != nil {
			give(buffer)
		}
	}
	return nil, 0, c.err
}

// took makes of what was read the data in it, and keeps what ends the body.
func (c *chunked) took(p []byte, err error) (out int) {
	out = c.unwrap(p)
	switch {
	case c.err != nil:
	case c.at == chunksOver:
		c.err = io.EOF
	case errors.Is(err, io.EOF):
		c.err = io.ErrUnexpectedEOF
	default:
		c.err = err
	}
	return out
}

// unwrap moves the data among the bytes to their front, and returns how many there are.
func (c *chunked) unwrap(p []byte) (out int) {
	for i := 0; i < len(p); {
		if c.at == chunksOver {
			c.conn.loose = true // bytes that nobody has asked for
			return out
		}
		if c.at != inData {
			if !c.frame(p[i]) {
				c.err = errChunk
				return out
			}
			i++
			continue
		}
		n := int(min(c.left, int64(len(p)-i)))
		copy(p[out:], p[i:i+n])
		i, out, c.left = i+n, out+n, c.left-int64(n)
		if c.left == 0 {
			c.at = dataReturn
		}
	}
	return out
}

// frame takes a byte between the data; false means that it has no place there.
func (c *chunked) frame(b byte) bool {
	switch c.at {
	case inLength:
		return c.length(b)
	case inSpace, inExtension:
		return c.behindLength(b)
	case lengthEnd:
		c.at, c.count = inData, 0
		if c.left == 0 {
			c.at = trailerStart
		}
		return b == '\n'
	case dataReturn:
		c.at = dataEnd
		return b == '\r'
	case dataEnd:
		c.at, c.count = inLength, 0
		return b == '\n'
	case trailerStart, inTrailerName, inTrailer:
		return c.trailer(b)
	case lastEnd:
		c.at = chunksOver
		return b == '\n'
	case inData, chunksOver:
	}
	return false
}

func (c *chunked) length(b byte) bool {
	digit, ok := hexadecimal(b)
	if ok && c.count < maxDigits {
		c.left, c.count = c.left<<4|int64(digit), c.count+1 //nolint:mnd // four bits a digit
		return true
	}
	if ok || c.count == 0 {
		return false
	}
	c.count = 0
	return c.behindLength(b)
}

func (c *chunked) behindLength(b byte) bool {
	c.count++
	switch {
	case b == '\r':
		c.at = lengthEnd
	case c.at == inExtension:
		return b != '\n' && c.count < maxLine
	case b == ';':
		c.at = inExtension
	case b == ' ' || b == '\t':
		c.at = inSpace
		return c.count < maxLine
	default:
		return false
	}
	return true
}

// trailer passes over what stands behind the last chunk: headers, which nothing here makes use of.
func (c *chunked) trailer(b byte) bool {
	c.count++
	switch {
	case c.at == inTrailer && b == '\n':
		c.at = trailerStart
	case c.at == inTrailer:
	case c.at == trailerStart && b == '\r':
		c.at = lastEnd
	case c.at == inTrailerName && b == ':':
		c.at = inTrailer
	case b <= ' ' || b == ':':
		return false
	default:
		c.at = inTrailerName
	}
	return c.count < maxLine
}

func hexadecimal(b byte) (digit byte, ok bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true //nolint:mnd // ten digits come before it
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true //nolint:mnd // ten digits come before it
	default:
		return 0, false
	}
}
