package console

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"basegate/identity"
)

// refusals are the errors of package identity that are about what somebody has entered.
var refusals = []error{
	identity.ErrNoAccount, identity.ErrEmailTaken, identity.ErrBadEmail, identity.ErrBadName, identity.ErrBadCap,
	identity.ErrAboveAccount, identity.ErrNoKey, identity.ErrBadConcurrency, identity.ErrKeyRevoked,
	identity.ErrAccountDisabled, identity.ErrAccountPending, identity.ErrBadPassword, identity.ErrBadPurpose,
	identity.ErrTooManyAccessRequests, identity.ErrNotPending,
}

// isRefusal tells whether whoever has entered something is to be told what is wrong with it.
func isRefusal(err error) bool {
	for _, known := range refusals {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// sentence is what a refusal says, without what was being done, as a sentence.
func sentence(err error) string {
	text := err.Error()
	for _, known := range refusals {
		if at := strings.Index(text, known.Error()); at >= 0 && errors.Is(err, known) {
			text = text[at:]
			break
		}
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}
