package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// scalar is a single value with its variables replaced.
type scalar struct {
	text     string
	got      string // the value as diagnostics show it, with variables not replaced
	isText   bool   // YAML parsed it as text
	expanded bool   // it contained a variable, so its type depends on the expanded text and not on what YAML parsed
}

// scalar decodes a single value. It reports an error and returns false for a section, a list or an invalid variable.
func (v value) scalar(want string) (scalar, bool) { return v.decode(want, false) }

// url is scalar for a URL, in which it encodes what variables bring. No diagnostic shows what may be a password.
func (v value) url(want string) (scalar, bool) {
	s, ok := v.decode(want, true)
	if strings.Contains(s.text, "@") {
		s.got = "a text with an @, which is not shown"
	}
	return s, ok
}

func (v value) decode(want string, isURL bool) (scalar, bool) {
	switch node := v.node.(type) {
	case *ast.StringNode:
		return v.expandScalar(node.Value, isURL)
	case *ast.LiteralNode:
		return v.expandScalar(node.Value.Value, isURL)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return scalar{text: node.GetToken().Value, got: describe(node)}, true
	default:
		v.errorf("want %s, got %s", want, describe(v.node))
		return scalar{}, false
	}
}

// expandScalar returns text with its variables replaced, and warns of variables that are not set.
func (v value) expandScalar(text string, isURL bool) (scalar, bool) {
	e, err := expand(text, v.doc.env, isURL)
	if err != nil {
		v.errorf("%v", err) // the text is not quoted: it may be a password
		return scalar{}, false
	}
	for _, name := range e.unset {
		v.warnf("the variable %s is not set and taken as empty", name)
	}
	for _, name := range e.percent {
		v.warnf("the variable %s has a %% with two digits, which are taken literally: a variable within a URL holds the text itself, "+
			"and is encoded by basegate", name)
	}
	s := scalar{text: e.text, got: quote(text), isText: true, expanded: e.found}
	if e.found {
		s.got += " with its variables replaced"
	}
	return s, true
}

// text decodes a text. check returns an error that names what is allowed if the text is not.
func text(to *string, check func(string) error) decodeFunc {
	return func(v value) {
		s, ok := v.scalar("text")
		if !ok {
			return
		}
		if err := check(s.text); err != nil {
			v.errorf("want %v, got %s", err, s.got)
			return
		}
		if !s.isText {
			v.errorf("want text, got %s; put it in quotes", s.got)
			return
		}
		*to = s.text
	}
}

// argument decodes one argument of a command as written; numbers need no quotes.
func argument(to *string) decodeFunc {
	return func(v value) {
		if s, ok := v.scalar("text"); ok {
			*to = s.text
		}
	}
}

// secret decodes a text that no diagnostic shows.
func secret(to *Secret) decodeFunc {
	return func(v value) {
		s, ok := v.scalar("text")
		switch {
		case !ok:
		case !s.isText:
			v.errorf("want text; put it in quotes")
		case !isPrintable(s.text):
			v.errorf("want printable ASCII without spaces")
		default:
			*to = NewSecret(s.text)
			v.doc.holdsSecrets = v.doc.holdsSecrets || (s.text != "" && !s.expanded)
		}
	}
}

// oneOf decodes one of the allowed texts.
func oneOf(to *string, allowed ...string) decodeFunc {
	return text(to, func(s string) error {
		if slices.Contains(allowed, s) {
			return nil
		}
		return fmt.Errorf("one of %s", strings.Join(allowed, ", "))
	})
}

// integer decodes a decimal integer from minimum to maximum. A maximum of at least math.MaxInt32 is not named in
// diagnostics.
func integer[T int | int64](to *T, minimum, maximum T) decodeFunc {
	want := fmt.Sprintf("a whole number from %d to %d", minimum, maximum)
	if int64(maximum) >= math.MaxInt32 {
		want = fmt.Sprintf("a whole number of at least %d", minimum)
	}
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		n, err := strconv.ParseInt(s.text, 10, 64)
		canonical := err == nil && strconv.FormatInt(n, 10) == s.text
		if s.isText && !s.expanded || !canonical || n < int64(minimum) || n > int64(maximum) {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = T(n)
	}
}

// duration decodes a duration of at least minimum; 0 needs no unit.
func duration(to *time.Duration, minimum time.Duration) decodeFunc {
	want := "a duration such as 30s, 5m or 1h30m"
	if minimum > 0 {
		want += ", longer than 0"
	}
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s.text)
		if err != nil || d < minimum {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = d
	}
}

const (
	flushAtCommit = "commit" // the value of database.flush for 0
	minFlush      = 10 * time.Millisecond
	maxFlush      = time.Minute
)

// flush decodes how often commits are flushed to disk: a duration, or "commit" for 0.
func flush(to *time.Duration) decodeFunc {
	const want = "commit, or a duration from 10ms to 1m such as 1s"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s.text)
		switch {
		case s.text == flushAtCommit:
			*to = 0
		case err != nil || d < minFlush || d > maxFlush:
			v.errorf("want %s, got %s", want, s.got)
		default:
			*to = d
		}
	}
}

// days decodes a duration that may also be a number of days, such as 30d.
func days(to *time.Duration, minimum time.Duration) decodeFunc {
	want := fmt.Sprintf("a duration such as 12h or 30d, at least %v", minimum)
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s.text)
		if digits, found := strings.CutSuffix(s.text, "d"); found {
			var n int64
			n, err = strconv.ParseInt(digits, 10, 16)
			d = time.Duration(n) * 24 * time.Hour
		}
		if err != nil || d < minimum {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = d
	}
}

// keepForever is the value of keep_requests for no limit.
const keepForever = "forever"

// minKeepRequests is the least value of keep_requests: budgets are checked against the rows of the month.
const minKeepRequests = 31

// keepRequests decodes how long requests are kept; 0 is for ever.
func keepRequests(to *time.Duration) decodeFunc {
	want := fmt.Sprintf("%s, or a number of days from %dd such as 400d", keepForever, minKeepRequests)
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		if s.text == keepForever {
			*to = 0
			return
		}
		digits, found := strings.CutSuffix(s.text, "d")
		n, err := strconv.ParseInt(digits, 10, 16)
		if !found || err != nil || n < minKeepRequests {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = time.Duration(n) * 24 * time.Hour
	}
}

// minPositive is the minimum of durations that must not be 0.
const minPositive = time.Nanosecond

var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"KB", 1000},
	{"MB", 1000 * 1000},
	{"GB", 1000 * 1000 * 1000},
	{"B", 1},
	{"", 1},
}

// size decodes a positive number of bytes.
func size(to *int64) decodeFunc {
	const want = "a size such as 16MiB, 1GB or 65536 (KiB, MiB, GiB, KB, MB, GB or plain bytes), more than 0"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		n, ok := parseSize(s.text)
		if !ok {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = n
	}
}

func parseSize(text string) (int64, bool) {
	for _, unit := range units {
		digits, found := strings.CutSuffix(text, unit.name)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n <= 0 || strconv.FormatInt(n, 10) != digits || n > math.MaxInt64/unit.bytes {
			return 0, false
		}
		return n * unit.bytes, true
	}
	return 0, false
}
