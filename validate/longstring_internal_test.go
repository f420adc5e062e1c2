package validate

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
)

// stringContents are the beginnings of strings, with what may follow them.
var stringContents = []string{
	``, `"`, `plain"`, `a\n\t\"b\\"`, `\u0041\ud83d\ude00"`, `\ud83d"`, `\ude00\ud83d"`, `\ud83dx\ude00"`, `\u12"`, `\u12g4"`, `\x"`, `\`, `\"`,
	"é漢字😀\"", "\xff\"", "\xc3\"", "\xed\xa0\x80\"", "a\x00\"", "0123456\x1f\"", "0123456789abcdef0123456789abcdef\n\"", "\x7f\u2028\ufffd\"", `", 1]`,
	strings.Repeat("0123456789", 10) + `"`, strings.Repeat("é", 40) + `"x`,
}

// FuzzStringLength compares stringLength with the decoder, which checks byte by byte.
func FuzzStringLength(f *testing.F) {
	for _, s := range stringContents {
		f.Add([]byte(s))
		f.Add([]byte(strings.Repeat("x", 29) + s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		text := append([]byte{'"'}, content...)
		value, err := jsontext.NewDecoder(bytes.NewBuffer(text)).ReadValue()
		want := len(value)
		if err != nil {
			want = 0
		}
		if got := stringLength(text); got != want {
			t.Errorf("stringLength(%q) is %d, want %d (%v)", text, got, want, err)
		}
	})
}

// FuzzLongString compares a body whose long string is near its end with the same body followed by so much white space
// that the decoder reads the string itself.
func FuzzLongString(f *testing.F) {
	behind := []string{``, `"}`, `", "n": 0}`, `", "n": 2, "model": "m", "user": "u", "stop": ["a"]}`, `", 7]}`, `", "b"], "model": "m"} x`, `"}], "model": "m"}`, `"}`, `", "prompt": 1}`}
	for i, s := range stringContents {
		f.Add(s, behind[i%len(behind)], uint8(i))
	}
	for i, s := range behind {
		f.Add(`tail`, s, uint8(i))
	}
	before := []string{
		`{"prompt": "`, `{"model": "m", "prompt": ["a", "`, `{"messages": [{"role": "user", "content": "`, `{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "`,
		`{"user": "`, `{"stop": ["`, `{"n": "`, `{"tools": [{"a": "`,
	}
	limits := Limits{}
	f.Fuzz(func(t *testing.T, content, behind string, kind uint8) {
		short := []byte(before[int(kind)%len(before)] + strings.Repeat("x", longString) + content + behind)
		padded := append(bytes.Clone(short), bytes.Repeat([]byte{' '}, maxRest+1)...)
		for _, parse := range []func([]byte, Limits) (*Request, error){Completion, Chat} {
			fast, fastErr := parse(short, limits)
			slow, slowErr := parse(padded, limits)
			if !reflect.DeepEqual(normalized(fast), normalized(slow)) {
				t.Errorf("%q: got %+v, want %+v", short, fast, slow)
			}
			got, want := withoutOffset(fastErr), withoutOffset(slowErr)
			// White space behind a body that ends within a token, or within a pair of escapes, changes the error.
			if offsetOf(fastErr) > int64(len(short)-len(`\ud83d\ude00`)) {
				got, want = nil, nil
			}
			if (fastErr == nil) != (slowErr == nil) || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: got error %v, want %v", short, fastErr, slowErr)
			}
			if got != nil && offsetOf(fastErr) != offsetOf(slowErr) {
				t.Errorf("%q: got error at %d, want at %d", short, offsetOf(fastErr), offsetOf(slowErr))
			}
		}
	})
}

// normalized returns a request without its body. No members are nil in a new parser, and an empty slice in one of the pool.
func normalized(r *Request) *Request {
	if r != nil {
		r.body = nil
		r.members = append([]member(nil), r.members...)
	}
	return r
}

// withoutOffset returns a copy of an error without its offset, or nil.
func withoutOffset(err error) *apierr.Error {
	var e *apierr.Error
	if !errors.As(err, &e) {
		return nil
	}
	copied := *e
	if offsetOf(err) >= 0 {
		copied.Extras = nil
	}
	return &copied
}

// offsetOf returns the offset of a syntax error, or -1.
func offsetOf(err error) int64 {
	var e *apierr.Error
	if !errors.As(err, &e) || e.Code != apierr.BadJSON {
		return -1
	}
	return e.Extras[0].Value.(int64) // MalformedJSON sets it
}
