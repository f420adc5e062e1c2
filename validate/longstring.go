package validate

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// longString is the least size of a string that readString scans itself, in bytes.
	longString = 1 << 10
	// maxRest is the most that may follow such a string, in bytes.
	maxRest = maxPooled
)

// readString reads a string value, of which the caller has peeked the quote. The decoder checks strings byte by byte,
// which is most of the time that a long prompt takes. readString therefore scans a long string that is near the end of
// the body eight bytes at a time. The decoder cannot skip what has been checked, so it goes on in a copy of the rest.
func (p *parser) readString() ([]byte, error) {
	if len(p.body)-p.offset() >= longString {
		start := p.valueStart()
		if end := start + stringNearEnd(p.body[start:]); end-start >= longString {
			p.skipTo(end)
			return p.body[start:end], nil
		}
	}
	return p.decoder.ReadValue()
}

// stringNearEnd returns the length of the string at the beginning of b if it is valid and at most maxRest bytes follow
// it, and 0 otherwise.
func stringNearEnd(b []byte) int {
	quote := 1 + bytes.IndexByte(b[1:], '"')
	if quote == 0 || b[quote-1] != '\\' && len(b)-quote > maxRest { // not closed, or it ends there
		return 0
	}
	n := stringLength(b)
	if len(b)-n > maxRest {
		return 0
	}
	return n
}

// skipTo makes the decoder continue at an offset in the body, behind a value. The new source of the decoder begins with
// brackets and names that lead to the same depth, and with an empty value.
func (p *parser) skipTo(offset int) {
	rest := p.rest[:0]
	tokens := 1
	for i := 1; i <= p.decoder.StackDepth(); i++ {
		if kind, _ := p.decoder.StackIndex(i); kind == '[' {
			rest = append(rest, '[')
			tokens++
		} else {
			rest = append(rest, `{"":`...)
			tokens += 2
		}
	}
	rest = append(rest, `""`...)
	p.base = offset - len(rest)
	p.rest = append(rest, p.body[offset:]...)
	p.source = *bytes.NewBuffer(p.rest)
	p.decoder.Reset(&p.source, decoderOptions)
	for range tokens {
		p.decoder.ReadToken() //nolint:errcheck // the prefix is valid JSON
	}
}

// stringLength returns the length of the JSON string at the beginning of b with its quotes, and 0 if it is not valid.
func stringLength(b []byte) int {
	quote := 0 // the next quote, which may turn out to be escaped
	for n := 1; ; {
		if quote < n {
			found := bytes.IndexByte(b[n:], '"')
			if found < 0 {
				return 0
			}
			quote = n + found
		}
		plain := b[n:quote]
		backslash := bytes.IndexByte(plain, '\\')
		if backslash >= 0 {
			plain = plain[:backslash]
		}
		switch {
		case hasControl(plain) || !utf8.Valid(plain):
			return 0
		case backslash < 0:
			return quote + 1
		}
		n += backslash
		escape := escapeLength(b[n:])
		if escape == 0 {
			return 0
		}
		n += escape
	}
}

// escapeLength returns the length of the escape sequence, or pair of surrogates, at the beginning of b; 0 if it is not valid.
func escapeLength(b []byte) int {
	if len(b) > 1 && strings.IndexByte(`"\/bfnrt`, b[1]) >= 0 {
		return len(`\n`)
	}
	switch first := codeUnit(b); {
	case first < 0:
		return 0
	case !utf16.IsSurrogate(first):
		return len(`\u0000`)
	case utf16.DecodeRune(first, codeUnit(b[6:])) == utf8.RuneError:
		return 0
	default:
		return len(`\ud83d\ude00`)
	}
}

// codeUnit decodes the sequence \uXXXX at the beginning of b, and returns -1 if there is none.
func codeUnit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var unit [2]byte
	if _, err := hex.Decode(unit[:], b[2:6]); err != nil {
		return -1
	}
	return rune(binary.BigEndian.Uint16(unit[:]))
}

// hasControl reports whether b has a byte below the space, eight bytes at a time: the subtraction sets the top bit of
// such a byte, and of others only above one.
func hasControl(b []byte) bool {
	const spaces, tops = 0x2020202020202020, 0x8080808080808080
	for ; len(b) >= 32; b = b[32:] {
		w0, w1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		w2, w3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		if ((w0-spaces)&^w0|(w1-spaces)&^w1|(w2-spaces)&^w2|(w3-spaces)&^w3)&tops != 0 {
			return true
		}
	}
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}
