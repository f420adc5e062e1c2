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
	identity.ErrTooManyAccessRequests, identity.ErrTooManyFromNetwork, identity.ErrNotPending,
	identity.ErrSetByOperator, identity.ErrBadModels, identity.ErrBadGrace, identity.ErrConcurrencyAboveAccount,
	identity.ErrTooManyKeys,
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

// inputFields are the form fields that input errors are about.
var inputFields = map[error]string{
	identity.ErrEmailTaken: "email", identity.ErrBadEmail: "email", identity.ErrBadName: "name",
	identity.ErrBadPurpose: "purpose", identity.ErrBadPassword: "password", identity.ErrBadModels: "models",
	identity.ErrBadConcurrency: "concurrency", identity.ErrConcurrencyAboveAccount: "concurrency",
	identity.ErrBadGrace: "grace",
}

// limitFields are the form fields of the limits that the texts of other input errors name.
var limitFields = []struct{ text, field string }{
	{"monthly budget", "month"},
	{"daily budget", "day"},
	{"input budget", "input"},
	{"output budget", "output"},
	{"the key expires", "expires"},
	{"the models are", "models"},
	{"concurrency", "concurrency"},
}

// inputProblem converts an input error to a problem of the field that it is about.
func inputProblem(err error) *problem {
	p := invalid(inputErrorText(err))
	for known, field := range inputFields {
		if errors.Is(err, known) {
			return p.on(field)
		}
	}
	for _, limit := range limitFields {
		if strings.Contains(err.Error(), limit.text) {
			return p.on(limit.field)
		}
	}
	return p
}

// formProblem returns the problem that a form shows for an error: of a field, or of the user's input.
func formProblem(err error) (p *problem, ok bool) {
	if p, ok := errors.AsType[*problem](err); ok {
		return p, true
	}
	if isInputError(err) {
		return inputProblem(err), true
	}
	return nil, false
}

// asInvalid converts an input error to a problem, and returns any other error unchanged.
func asInvalid(err error) error {
	if isInputError(err) {
		return inputProblem(err)
	}
	return err
}
