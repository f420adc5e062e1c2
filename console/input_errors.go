package console

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"basegate/budget/quota"
	"basegate/identity"
)

// inputErrors are the errors of package identity that the user's input causes, so that the user gets to see their texts, with the
// form fields that they are about; empty if that is none or depends.
var inputErrors = map[error]string{
	identity.ErrEmailTaken: "email", identity.ErrBadEmail: "email", identity.ErrBadName: "name",
	identity.ErrNameTaken: "name", identity.ErrPastExpiry: "expires",
	identity.ErrBadPurpose: "purpose", identity.ErrBadPassword: "password", identity.ErrBadModels: "models",
	identity.ErrBadConcurrency: "concurrency", identity.ErrConcurrencyAboveAccount: "concurrency",
	identity.ErrBadGrace: "grace", identity.ErrNoAccount: "", identity.ErrBadCap: "", identity.ErrAboveAccount: "",
	identity.ErrNoKey: "", identity.ErrKeyRevoked: "", identity.ErrAccountDisabled: "", identity.ErrAccountPending: "",
	identity.ErrTooManyAccessRequests: "", identity.ErrTooManyFromNetwork: "", identity.ErrNotPending: "",
	identity.ErrSetByOperator: "", identity.ErrTooManyKeys: "", identity.ErrTooManyChildren: "", identity.ErrNoRun: "",
}

// limitFields are the form fields of the limits but caps that the texts of other input errors name.
var limitFields = []struct{ text, field string }{
	{"the key expires", "expires"},
	{"the models are", "models"},
	{"concurrency", "concurrency"},
}

// formProblem returns the problem that a form shows for an error: one of a field, or of the user's input, whose text is a
// sentence without the operations that wrap it.
func formProblem(err error) (p *problem, ok bool) {
	if p, ok := errors.AsType[*problem](err); ok {
		return p, true
	}
	for known, field := range inputErrors {
		if !errors.Is(err, known) {
			continue
		}
		text := err.Error()
		if at := strings.Index(text, known.Error()); at >= 0 {
			text = text[at:]
		}
		for _, k := range quota.Table {
			if field == "" && strings.Contains(err.Error(), k.Name) {
				field = k.Field
			}
		}
		for _, limit := range limitFields {
			if field == "" && strings.Contains(err.Error(), limit.text) {
				field = limit.field
			}
		}
		first, size := utf8.DecodeRuneInString(text)
		return invalid(string(unicode.ToUpper(first)) + text[size:] + ".").on(field), true
	}
	return nil, false
}
