package proxy

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// scanner walks through one JSON text of vLLM's, once and without a copy: it makes sure that it is JSON, and its callers
// take what they look at as it stands. Every event of every stream comes through here, which is why this is not left to
// a library: to check first and look up afterwards takes four times as long.
//
// A mistake makes it bad, and from then on it takes nothing more.
type scanner struct {
	data []byte
	at   int
	deep int
	bad  bool
}

// deepest is how deep an answer may nest; vLLM's nest five deep.
const deepest = 64

// members calls visit with the name of each member of the object that follows, as it is written. visit takes the value.
func (s *scanner) members(visit func(name []byte)) {
	s.enter('{')
	for first := true; !s.bad && !s.leaves('}', first); first = false {
		name := s.text()
		s.expect(':')
		if !s.bad {
			visit(name[1 : len(name)-1])
		}
	}
}

// elements calls visit at each element of the array that follows. visit takes it.
func (s *scanner) elements(visit func()) {
	s.enter('[')
	for first := true; !s.bad && !s.leaves(']', first); first = false {
		visit()
	}
}

// enter begins an object or an array.
func (s *scanner) enter(opening byte) {
	s.expect(opening)
	if s.deep++; s.deep > deepest {
		s.bad = true
	}
}

// leaves takes the end of an object or an array where it follows, and else the comma before the next.
func (s *scanner) leaves(closing byte, first bool) bool {
	switch {
	case s.next() == closing:
		s.at++
		s.deep--
		return true
	case !first:
		s.expect(',')
	}
	return false
}

// value takes any value, and returns it as it stands.
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

// end makes sure that nothing follows.
func (s *scanner) end() error {
	if s.next(); s.bad || s.at < len(s.data) {
		return errNotJSON
	}
	return nil
}

// errNotJSON is said of what is not one JSON object.
var errNotJSON = errors.New("what the backend sent is not a JSON object")

// next skips white space and looks at the byte that follows; 0 at the end.
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

// emptyText stands for a string that is none, so that its quotes can be taken off.
var emptyText = []byte(`""`)

// text takes a string, and returns it with its quotes and escapes.
func (s *scanner) text() []byte {
	s.expect('"')
	start := s.at - 1
	for !s.bad {
		s.at += plainRun(s.data[s.at:])
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

// escape takes a backslash and what belongs to it.
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

// plainRun is how many bytes come before the first quote, backslash or control character. It looks at eight at a time;
// in a word that has one, the lowest bit set is that of the first.
func plainRun(b []byte) int {
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

// number takes a number, by JSON's grammar.
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

// digits takes one at least.
func (s *scanner) digits() {
	start := s.at
	for s.at < len(s.data) && isDigit(s.data[s.at]) {
		s.at++
	}
	s.bad = s.bad || s.at == start
}
