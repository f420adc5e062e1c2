package mockvllm

import (
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// appendString appends a JSON string as pydantic and Starlette write it: raw UTF-8, escaped only if JSON requires it.
func appendString(dst []byte, text string) []byte {
	dst, _ = jsontext.AppendQuote(dst, text) // the error is of invalid UTF-8, which it replaces
	return dst
}

// appendFloat appends a number as Python's repr writes it: 0.0, 1e-05, -9999.0.
func appendFloat(dst []byte, value float64) []byte {
	magnitude := math.Abs(value)
	if magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16) {
		return strconv.AppendFloat(dst, value, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, value, 'f', -1, 64)
	if slices.Contains(dst[start:], '.') {
		return dst
	}
	return append(dst, ".0"...)
}

func appendInts(dst []byte, values []int) []byte {
	dst = append(dst, '[')
	for i, value := range values {
		dst = strconv.AppendInt(appendComma(dst, i), int64(value), 10)
	}
	return append(dst, ']')
}
