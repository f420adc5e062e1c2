package config

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

var errVariable = errors.New("want ${NAME} with a name of letters, digits and _, or $${ for the characters themselves")

const escaped = "$${" // stands for the characters ${

// reference matches what is escaped, ${NAME}, and ${ without a name.
var reference = regexp.MustCompile(`\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?`)

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
	var out strings.Builder
	end := 0 // of what is written
	for _, match := range reference.FindAllStringSubmatchIndex(text, -1) {
		begin := match[0]
		out.WriteString(text[end:begin])
		end = match[1]
		if text[begin:end] == escaped {
			out.WriteString("${")
			continue
		}
		if match[2] < 0 {
			return e, errVariable
		}
		name := text[match[2]:match[3]]
		value, set := env(name)
		if !set && !slices.Contains(e.unset, name) {
			e.unset = append(e.unset, name)
		}
		keep, encodes := keptInURL(text, begin)
		if inURL && encodes {
			if percentEncoded.MatchString(value) {
				e.percent = append(e.percent, name)
			}
			value = percentEncode(value, keep)
		}
		out.WriteString(value)
		e.found = true
	}
	e.text = out.String() + text[end:]
	return e, nil
}

// keptInURL returns which characters, besides letters, digits and -._~, a value at an index of a URL may bring unencoded, and
// false if it may bring all.
func keptInURL(text string, at int) (keep string, encodes bool) {
	scheme := strings.Index(text, "://")
	begin, end := 0, len(text)
	if scheme >= 0 {
		begin = scheme + len("://")
	}
	if i := strings.IndexAny(text[begin:], "/?#"); i >= 0 {
		end = begin + i
	}
	switch before := text[:at]; {
	case at < begin || scheme < 0 && at < end:
		return "", false
	case at < end && strings.Contains(text[at:end], "@"): // user name and password
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
	encoded := strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
	for _, c := range keep {
		encoded = strings.ReplaceAll(encoded, url.QueryEscape(string(c)), string(c))
	}
	return encoded
}

// percentEncoded matches a % and two hexadecimal digits.
var percentEncoded = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
