package console

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"basegate/identity"
)

// inputErrors are the errors of package identity that the user's input causes.
var inputErrors = []error{
	identity.ErrNoAccount, identity.ErrEmailTaken, identity.ErrBadEmail, identity.ErrBadName, identity.ErrBadCap,
	identity.ErrAboveAccount, identity.ErrNoKey, identity.ErrBadConcurrency, identity.ErrKeyRevoked,
	identity.ErrAccountDisabled, identity.ErrAccountPending, identity.ErrBadPassword, identity.ErrBadPurpose,
	identity.ErrTooManyAccessRequests, identity.ErrNotPending,
}

// isInputError reports whether the user's input caused the error, so that the user gets to see its text.
func isInputError(err error) bool {
	for _, known := range inputErrors {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// inputErrorText returns the text of an input error as a sentence, without the operations that wrap it.
func inputErrorText(err error) string {
	text := err.Error()
	for _, known := range inputErrors {
		if at := strings.Index(text, known.Error()); at >= 0 && errors.Is(err, known) {
			text = text[at:]
			break
		}
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// asInvalid converts an input error to a problem, and returns any other error unchanged.
func asInvalid(err error) error {
	if isInputError(err) {
		return invalid(inputErrorText(err))
	}
	return err
}
