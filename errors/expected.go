package errors

import (
	"regexp"
	"strings"
)

// ownWords matches the end of a message in which the gateway quotes words of its own, such as the values that it expects. What it
// quotes of a request has a quotation mark that ends it, and the others escaped, so it does not match.
var ownWords = regexp.MustCompile(
	`(?:[;:] expected |, did you mean | here: use the short id | other than )(?:[^"…]*"[\w./-]{1,64}"(?:: …)?)*[^"…]*$`)

// OwnWords returns where the end of a message begins in which the gateway quotes words of its own only; -1 if it has none.
func OwnWords(message string) int {
	if at := ownWords.FindStringIndex(message); at != nil {
		return at[0]
	}
	return -1
}

// topField matches the name of a field of a body at the begin of the path of one.
var topField = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}`)

// Expected returns the field of the body that the error is about, and what was expected of it, without anything of the request: the
// texts may be stored. Either may be empty.
func (e *Error) Expected() (field, expected string) {
	if e.Param != "" && strings.HasPrefix(e.Message, e.Param+":") { // otherwise it may be the client's name of a field that does not exist
		field = topField.FindString(e.Param)
	}
	at := OwnWords(e.Message)
	if at < 0 {
		return field, ""
	}
	expected = strings.TrimLeft(e.Message[at:], ";:, ")
	if !strings.HasPrefix(expected, "expected ") && !strings.HasPrefix(expected, "did you mean ") {
		expected = ""
	}
	return field, expected
}
