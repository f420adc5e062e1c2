package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var errVariable = errors.New("want ${NAME} with a name of letters, digits and _, or $${ for the characters themselves")

// piece is a part of a text: a literal or a variable.
type piece struct {
	literal  string
	variable string // its name; empty: the piece is literal
}

// pieces divides a text at each ${NAME}. $${ stands for the characters ${.
func pieces(text string) (all []piece, err error) {
	for {
		before, rest, more := strings.Cut(text, "${")
		if !more {
			return append(all, piece{literal: text}), nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			all = append(all, piece{literal: literal + "${"})
			text = rest
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || !isVariableName(name) {
			return nil, errVariable
		}
		all = append(all, piece{literal: before}, piece{variable: name})
		text = after
	}
}

// expansion is a text with its variables replaced.
type expansion struct {
	text    string
	found   bool     // it refers to a variable
	unset   []string // the variables that are not set
	percent []string // the variables within a URL whose values seem to be encoded already
}

// expand replaces each ${NAME} in text by the variable's value, which is not expanded again. Within a URL it encodes the value
// for the part of the URL in which the variable stands, so that no value can end that part; what is a whole URL, or its
// beginning up to the host, stays as it is.
func expand(text string, env func(string) (string, bool), inURL bool) (e expansion, err error) {
	all, err := pieces(text)
	if err != nil {
		return e, err
	}
	var shape strings.Builder // the text with a letter in place of each variable
	for _, p := range all {
		shape.WriteString(p.literal)
		if p.variable != "" {
			shape.WriteByte('x')
		}
	}
	var out strings.Builder
	at := 0
	for _, p := range all {
		out.WriteString(p.literal)
		if at += len(p.literal); p.variable == "" {
			continue
		}
		value, set := env(p.variable)
		if !set && !slices.Contains(e.unset, p.variable) {
			e.unset = append(e.unset, p.variable)
		}
		if keep, encodes := keptInURL(shape.String(), at); inURL && encodes {
			if hasEncoded(value) {
				e.percent = append(e.percent, p.variable)
			}
			value = percentEncode(value, keep)
		}
		out.WriteString(value)
		e.found = true
		at++
	}
	e.text = out.String()
	return e, nil
}

// keptInURL returns which characters, besides letters, digits and -._~, a value at an index of a URL's text may bring
// unencoded, and false if it may bring all.
func keptInURL(shape string, at int) (keep string, encodes bool) {
	scheme := strings.Index(shape, "://")
	begin, end := 0, len(shape)
	if scheme >= 0 {
		begin = scheme + len("://")
	}
	if i := strings.IndexAny(shape[begin:], "/?#"); i >= 0 {
		end = begin + i
	}
	switch before := shape[:at]; {
	case at < begin || scheme < 0 && at < end:
		return "", false
	case at < end && strings.Contains(shape[at:end], "@"): // user name and password
		return "", true
	case at < end:
		return ":[],/", true // hosts with ports, or the path of a file
	case strings.Contains(before, "#"):
		return "", true
	case !strings.Contains(before, "?"):
		return "/:!$&'()*+,;=", true
	default:
		parameter := before[strings.LastIndexAny(before, "?&")+1:]
		if strings.Contains(parameter, "=") {
			return "/:,", true
		}
		return "/:,=&", true // parameters with their names
	}
}

// percentEncode encodes all bytes of a text but letters, digits, -._~ and those of keep.
func percentEncode(text, keep string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("-._~"+keep, c) >= 0:
			out.WriteByte(c)
		default:
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

// hasEncoded reports whether a text has a % and two hexadecimal digits.
func hasEncoded(text string) bool {
	const digits = "0123456789ABCDEFabcdef"
	for i := range len(text) - 2 {
		if text[i] == '%' && strings.IndexByte(digits, text[i+1]) >= 0 && strings.IndexByte(digits, text[i+2]) >= 0 {
			return true
		}
	}
	return false
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
