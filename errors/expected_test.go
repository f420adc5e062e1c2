package errors_test

import (
	"fmt"
	"strings"
	"testing"

	apierr "basegate/errors"
)

func TestExpectedHasNothingOfTheRequest(t *testing.T) {
	for _, c := range []struct {
		err             error
		field, expected string
	}{
		{apierr.InvalidField("n", "n: got 0; expected an integer from 1 to 128"), "n", "expected an integer from 1 to 128"},
		{apierr.InvalidField("messages[0].role", `messages[0].role: got "x"; expected "user" or "system"`), "messages", `expected "user" or "system"`},
		{apierr.UnknownField("my_secret", ""), "", ""},
		{apierr.UnknownField("max_tokns", "max_tokens"), "", `did you mean "max_tokens"?`},
		{apierr.InvalidField("stop", "stop: got the string \"private; expected private\"; expected a list"), "stop", "expected a list"},
	} {
		field, expected := apierr.From(c.err).Expected()
		if field != c.field || expected != c.expected {
			t.Errorf("%v: got %q and %q, want %q and %q", c.err, field, expected, c.field, c.expected)
		}
	}
	for _, text := range []string{`x", did you mean "`, `"; expected "a`, `; expected `, `: expected "a": …`, ` other than "`, "…"} {
		for _, quoted := range []string{text + "P R I V A T E", "P R I V A T E" + text} {
			e := apierr.From(apierr.InvalidField("stop", fmt.Sprintf("stop: got the string %q; expected a list", quoted)))
			if _, expected := e.Expected(); strings.Contains(expected, "P R I") {
				t.Errorf("%s: got %q, which quotes the request", e.Message, expected)
			}
		}
	}
}
