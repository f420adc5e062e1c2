package config

import (
	"errors"
	"slices"
	"strings"
)

var errVariable = errors.New("want ${NAME} with a name of letters, digits and _, or $${ for the characters themselves")

// expand replaces each ${NAME} in text by the variable's value, once: a value is not expanded again. $${ stands for the
// characters ${. It tells whether there was a variable, and which had no value.
func expand(text string, env func(string) (string, bool)) (expanded string, had bool, unset []string, err error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			out.WriteString(text)
			return out.String(), had, unset, nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(literal + "${")
			text = rest
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || !isVariable(name) {
			return "", false, nil, errVariable
		}
		value, set := env(name)
		if !set && !slices.Contains(unset, name) {
			unset = append(unset, name)
		}
		out.WriteString(before + value)
		text, had = after, true
	}
}

func isVariable(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case c == '_', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}
