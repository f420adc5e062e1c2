package mockvllm

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// appendString writes a JSON string as pydantic and Starlette do: UTF-8 as it is, and only what must be escaped.
func appendString(to []byte, text string) []byte {
	to = append(to, '"')
	start := 0
	for i := range len(text) {
		b := text[i]
		if b >= 0x20 && b != '"' && b != '\\' {
			continue
		}
		to = append(to, text[start:i]...)
		to = appendEscape(to, b)
		start = i + 1
	}
	return append(append(to, text[start:]...), '"')
}

func appendEscape(to []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(to, '\\', b)
	case '\n':
		return append(to, `\n`...)
	case '\r':
		return append(to, `\r`...)
	case '\t':
		return append(to, `\t`...)
	case '\b':
		return append(to, `\b`...)
	case '\f':
		return append(to, `\f`...)
	default:
		return fmt.Appendf(to, `\u%04x`, b)
	}
}

// appendASCII writes a JSON string as json.dumps does: everything but ASCII escaped, by surrogates where needed.
func appendASCII(to []byte, text string) []byte {
	to = append(to, '"')
	for _, r := range text {
		switch {
		case r < 0x20 || r == '"' || r == '\\':
			to = appendEscape(to, byte(r)) //nolint:gosec // ASCII
		case r < utf8.RuneSelf:
			to = append(to, byte(r))
		case r < 0x10000:
			to = fmt.Appendf(to, `\u%04x`, r)
		default:
			r -= 0x10000
			to = fmt.Appendf(to, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return append(to, '"')
}

// appendFloat writes a number as Python's repr does: 0.0, 1e-05, -9999.0.
func appendFloat(to []byte, value float64) []byte {
	switch {
	case math.IsNaN(value):
		return append(to, "nan"...)
	case math.IsInf(value, 0):
		return append(to, strings.TrimPrefix(strconv.FormatFloat(value, 'g', -1, 64), "+")...)
	}
	magnitude := math.Abs(value)
	if magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16) {
		return strconv.AppendFloat(to, value, 'e', -1, 64)
	}
	start := len(to)
	to = strconv.AppendFloat(to, value, 'f', -1, 64)
	if slices.Contains(to[start:], '.') {
		return to
	}
	return append(to, ".0"...)
}

func pythonFloat(value float64) string {
	return strings.ToLower(string(appendFloat(nil, value)))
}

func appendInts(to []byte, values []int) []byte {
	to = append(to, '[')
	for i, value := range values {
		if i > 0 {
			to = append(to, ',')
		}
		to = strconv.AppendInt(to, int64(value), 10)
	}
	return append(to, ']')
}
