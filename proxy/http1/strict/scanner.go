package strict

import (
	"bytes"
	"math"
	"strings"
)

// scanner finds the request heads in the bytes of a connection and checks their lines. Its zero value is at the
// beginning of a connection.
type scanner struct {
	state   state
	preface int                             // how many bytes of http2Preface the connection has begun with; -1: it has not
	name    [len(transferEncoding) + 1]byte // of the field, or its beginning
	nameLen int
	length  int64 // of the body, in bytes
	coded   bool  // the request has a Transfer-Encoding
	expect  int   // how many bytes of continueValue, and spaces behind it, the Expect field has; blanked: it has another value
}

// http2Preface is what an HTTP/2 client sends first.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// The fields that say where the next head begins.
const (
	contentLength    = "content-length"
	transferEncoding = "transfer-encoding"
)

// The only expectation that a server can meet. net/http responds to any other without the handler, so its value is blanked:
// the handler sees an empty one.
const (
	expectField   = "expect"
	continueValue = "100-continue"
	blanked       = -1
)

// state is what the next byte is part of.
type state uint8

const (
	headStart state = iota
	inRequestLine
	lineStart
	inName
	inLength // the value of a Content-Length
	inExpect // the value of an Expect
	inValue  // of any other field
	lineEnd  // the LF after a line's CR
	headEnd  // the LF after the last CR
	inBody
	unchecked // the rest of the connection: HTTP/2, or a body whose end only net/http finds
)

// undecided reports whether the bytes that have been scanned end within a value that may have to be blanked.
func (s *scanner) undecided() bool { return s.state == inExpect && s.expect > 0 }

// scan checks the bytes of the connection behind the first valid ones, and returns how many of all come before the first
// refused one.
func (s *scanner) scan(b []byte, valid int) int {
	for valid < len(b) {
		switch s.state {
		case unchecked:
			return len(b)
		case inBody:
			n := min(s.length, int64(len(b)-valid))
			valid += int(n)
			if s.length -= n; s.length == 0 {
				s.state = headStart
			}
		case headStart, inRequestLine, lineStart, inName, inLength, inExpect, inValue, lineEnd, headEnd:
			valid += s.skip(b[valid:])
			if valid < len(b) && s.state == inExpect {
				s.checkExpect(b[:valid], b[valid:])
			}
			if valid == len(b) || !s.next(b[valid]) {
				return valid
			}
			valid++
		}
	}
	return valid
}

// skip passes the bytes before the next one that next must see, much faster than next, and returns their number.
func (s *scanner) skip(b []byte) int {
	switch {
	case s.preface >= 0:
		return 0
	case s.state == inRequestLine || s.state == inValue:
		return lenBefore(lenBefore(len(b), b, '\r'), b, '\n')
	case s.state == inName:
		n := lenBefore(lenBefore(lenBefore(len(b), b, ':'), b, '\r'), b, '\n')
		s.nameLen += copy(s.name[s.nameLen:], b[:n])
		return n
	default:
		return 0
	}
}

// lenBefore returns how many of the first n bytes come before the first c, or n if there is none.
func lenBefore(n int, b []byte, c byte) int {
	if i := bytes.IndexByte(b[:n], c); i >= 0 {
		return i
	}
	return n
}

// next checks one byte of a head. It returns false if the byte is refused.
func (s *scanner) next(b byte) bool {
	if s.inPreface(b) {
		s.state = unchecked
		return true
	}
	switch s.state {
	case headStart:
		if b != '\r' && b != '\n' { // net/http skips line breaks after a POST, and refuses others
			s.state = inRequestLine
		}
		return true
	case lineStart:
		return s.startLine(b)
	case lineEnd:
		s.state = lineStart
		return b == '\n'
	case headEnd:
		s.endHead()
		return b == '\n'
	case inRequestLine, inName, inLength, inExpect, inValue:
		return s.inLine(b)
	case inBody, unchecked: // not part of a head
	}
	return true
}

// inPreface returns true for the last byte of http2Preface.
func (s *scanner) inPreface(b byte) bool {
	if s.preface < 0 || b != http2Preface[s.preface] {
		s.preface = -1
		return false
	}
	s.preface++
	return s.preface == len(http2Preface)
}

func (s *scanner) startLine(b byte) bool {
	switch b {
	case '\n', ' ', '\t': // a space continues the line before
		return false
	case '\r':
		s.state = headEnd
		return true
	}
	s.state, s.nameLen = inName, 0
	return s.inLine(b)
}

func (s *scanner) inLine(b byte) bool {
	switch {
	case b == '\n':
		return false
	case b == '\r':
		s.state = lineEnd
	case s.state == inName && b == ':':
		s.endName()
	case s.state == inName && s.nameLen < len(s.name):
		s.name[s.nameLen] = b
		s.nameLen++
	case s.state == inLength && '0' <= b && b <= '9':
		if s.length > math.MaxInt64/10-1 {
			return true // net/http refuses such a length, and any with other characters
		}
		s.length = s.length*10 + int64(b-'0')
	}
	return true
}

func (s *scanner) endName() {
	s.state = inValue
	switch name := string(s.name[:s.nameLen]); {
	case strings.EqualFold(name, contentLength):
		s.state, s.length = inLength, 0 // net/http refuses a second one unless it is the same
	case strings.EqualFold(name, transferEncoding):
		s.coded = true
	case strings.EqualFold(name, expectField):
		s.state, s.expect = inExpect, 0
	}
}

// checkExpect checks the first byte of rest, of the value of an Expect, and blanks it if it is not of continueValue, with
// what read has of the value before it.
func (s *scanner) checkExpect(read, rest []byte) {
	c := rest[0]
	space := c == ' ' || c == '\t'
	switch whole := s.expect >= len(continueValue); {
	case whole && space, s.expect >= 0 && !whole && strings.EqualFold(string(c), continueValue[s.expect:s.expect+1]):
		s.expect++
		return
	case s.expect <= 0 && space, c == '\r' && (whole || s.expect <= 0), c == '\n': // around the value, or refused
		return
	}
	for i := range min(max(s.expect, 0), len(read)) {
		read[len(read)-1-i] = ' '
	}
	if c != '\r' {
		rest[0] = ' '
	}
	s.expect = blanked
}

// endHead finds where the next head begins.
func (s *scanner) endHead() {
	switch {
	case s.coded:
		s.state = unchecked
	case s.length > 0:
		s.state = inBody
	default:
		s.state = headStart
	}
}
