package config

import (
	"fmt"
	"io"
	"unique"
)

// masked is what every method of a Secret but Reveal returns.
const masked = "***"

// Secret is a text that is formatted as ***: by every verb of fmt, by JSON, YAML and any other text encoding, and by
// zap. The zero value is the empty text. Two secrets are equal (==) if their texts are.
//
// The text is behind a pointer: fmt calls no methods on unexported struct fields, so printing a struct that holds a
// Secret in one shows an address.
type Secret struct {
	text unique.Handle[string]
}

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: unique.Make(text)}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s == (Secret{}) {
		return ""
	}
	return s.text.Value()
}

// Equal reports whether the texts are equal. It exists for go-cmp, which does not compare unexported fields.
func (s Secret) Equal(other Secret) bool { return s == other }

// String implements fmt.Stringer.
func (Secret) String() string { return masked }

// Format implements fmt.Formatter, for every verb and flag.
func (Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, masked) // Format cannot return an error
}

// MarshalText implements encoding.TextMarshaler, and so JSON, YAML and XML.
func (Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }
