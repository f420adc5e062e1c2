package config

import (
	"errors"
	"slices"
	"strings"
)

var errVariable = errors.New("want ${NAME} with a name of letters, digits and _, or $${ for the characters themselves")

// expand replaces each ${NAME} in text by the variable's value, which is not expanded again. $${ stands for the
// characters ${. found reports whether text refers to a variable; unset lists the variables that are not set.
func expand(text string, env func(string) (string, bool)) (expanded string, found bool, unset []string, err error) {
	var out strings.Builder
	for {
		before, rest, more := strings.Cut(text, "${")
		if !more {
			out.WriteString(text)
			return out.String(), found, unset, nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(literal + "${")
			text = rest
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || !isVariableName(name) {
			return "", false, nil, errVariable
		}
		value, set := env(name)
		if !set && !slices.Contains(unset, name) {
			unset = append(unset, name)
		}
		out.WriteString(before + value)
		text, found = after, true
	}
}

func isVariableName(name string) bool {
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
