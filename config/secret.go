package config

import (
	"fmt"
	"io"
	"unique"
)

// masked is what every route out of a Secret but Reveal shows.
const masked = "***"

// Secret is a text that prints as *** by every route: every verb of fmt, JSON, YAML and any other text encoding, zap.
// The zero value is the empty text. Two secrets are == when their texts are.
//
// The text stands behind a pointer, so that even printing a struct that holds a Secret in an unexported field, where
// fmt calls no methods, shows an address.
type Secret struct {
	text unique.Handle[string]
}

// NewSecret makes a Secret of text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: unique.Make(text)}
}

// Reveal is the text itself.
func (s Secret) Reveal() string {
	if s == (Secret{}) {
		return ""
	}
	return s.text.Value()
}

// Equal tells whether the texts are the same; for go-cmp, which does not look into unexported fields.
func (s Secret) Equal(other Secret) bool { return s == other }

// String implements fmt.Stringer.
func (Secret) String() string { return masked }

// Format implements fmt.Formatter, for every verb and flag.
func (Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, masked) // fmt has no way to take an error
}

// MarshalText implements encoding.TextMarshaler, and so JSON, YAML and XML.
func (Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }
