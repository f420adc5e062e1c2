package stream

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// scanner is a single-pass JSON scanner without copies: it validates the text and returns values as slices of it. Every
// event of every stream passes through it. A library that validates first and looks up values afterwards takes four
// times as long.
//
// After a syntax error, bad is true and the scanner consumes nothing more.
type scanner struct {
	data  []byte
	at    int
	depth int
	bad   bool
}

// maxDepth limits the nesting of a response; vLLM's nest five levels deep.
const maxDepth = 64

// members calls visit with the raw name of each member of the object that follows. visit consumes the value.
func (s *scanner) members(visit func(name []byte)) {
	s.open('{')
	for first := true; !s.bad && !s.closes('}', first); first = false {
		name := s.text()
		s.expect(':')
		if !s.bad {
			visit(name[1 : len(name)-1])
		}
	}
}

// elements calls visit at each element of the array that follows. visit consumes it.
func (s *scanner) elements(visit func()) {
	s.open('[')
	for first := true; !s.bad && !s.closes(']', first); first = false {
		visit()
	}
}

func (s *scanner) open(opening byte) {
	s.expect(opening)
	if s.depth++; s.depth > maxDepth {
		s.bad = true
	}
}

// closes consumes the end of an object or an array if it follows, and otherwise the comma before the next element.
func (s *scanner) closes(closing byte, first bool) bool {
	switch {
	case s.next() == closing:
		s.at++
		s.depth--
		return true
	case !first:
		s.expect(',')
	}
	return false
}

func (s *scanner) value() []byte {
	next := s.next()
	start := s.at
	switch next {
	case '"':
		return s.text()
	case '{':
		s.members(func([]byte) { s.value() })
	case '[':
		s.elements(func() { s.value() })
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		s.number()
	}
	return s.data[start:s.at]
}

// end returns an error unless the whole text was valid and nothing follows.
func (s *scanner) end() error {
	if s.next(); s.bad || s.at < len(s.data) {
		return errNotJSON
	}
	return nil
}

var errNotJSON = errors.New("what the backend sent is not a JSON object")

// next skips white space and returns the byte that follows without consuming it; 0 at the end.
func (s *scanner) next() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) {
	if s.next() != c {
		s.bad = true
		return
	}
	s.at++
}

func (s *scanner) literal(word string) {
	if len(s.data)-s.at < len(word) || string(s.data[s.at:s.at+len(word)]) != word {
		s.bad = true
		return
	}
	s.at += len(word)
}

// emptyText is returned after a syntax error, so that callers can strip the quotes.
var emptyText = []byte(`""`)

// text consumes a string and returns it with its quotes and escapes.
func (s *scanner) text() []byte {
	s.expect('"')
	start := s.at - 1
	for !s.bad {
		s.at += plainLength(s.data[s.at:])
		switch {
		case s.at == len(s.data) || s.data[s.at] < ' ':
			s.bad = true
		case s.data[s.at] == '"':
			s.at++
			return s.data[start:s.at]
		default:
			s.escape()
		}
	}
	return emptyText
}

func (s *scanner) escape() {
	rest := s.data[s.at+1:]
	if len(rest) == 0 {
		s.bad = true
		return
	}
	switch rest[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at += 2
	case 'u':
		if len(rest) < 5 || !isHex(rest[1]) || !isHex(rest[2]) || !isHex(rest[3]) || !isHex(rest[4]) {
			s.bad = true
			return
		}
		s.at += 6
	default:
		s.bad = true
	}
}

func isHex(c byte) bool {
	return isDigit(c) || (c|0x20 >= 'a' && c|0x20 <= 'f')
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// plainLength returns the number of bytes before the first quote, backslash or control character. It tests eight bytes at
// a time (SWAR): in a word that contains one, the lowest set bit belongs to the first.
func plainLength(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, backslash := w^('"'*ones), w^('\\'*ones)
		found := ((quote - ones) &^ quote) | ((backslash - ones) &^ backslash) | ((w - ' '*ones) &^ w)
		if found &= tops; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\'; i++ {
	}
	return i
}

func (s *scanner) number() {
	if s.at < len(s.data) && s.data[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.data) && s.data[s.at] == '0' {
		s.at++
	} else {
		s.digits()
	}
	if s.at < len(s.data) && s.data[s.at] == '.' {
		s.at++
		s.digits()
	}
	if s.at < len(s.data) && s.data[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.data) && (s.data[s.at] == '+' || s.data[s.at] == '-') {
			s.at++
		}
		s.digits()
	}
}

func (s *scanner) digits() {
	start := s.at
	for s.at < len(s.data) && isDigit(s.data[s.at]) {
		s.at++
	}
	s.bad = s.bad || s.at == start
}
