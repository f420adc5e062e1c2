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
	got      string // how a complaint shows it: never with what came from the environment
	isText   bool   // YAML takes it for text
	expanded bool   // it had a variable, so what it looks like counts, not what YAML took it for
}

// scalar reads a single value. It complains, and says false, when there is a section or a list, or a variable that
// cannot be read.
func (v value) scalar(want string) (scalar, bool) {
	switch node := v.node.(type) {
	case *ast.StringNode:
		return v.expanded(node.Value)
	case *ast.LiteralNode:
		return v.expanded(node.Value.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return scalar{text: node.GetToken().Value, got: kind(node)}, true
	default:
		v.complain("want %s, got %s", want, kind(v.node))
		return scalar{}, false
	}
}

func (v value) expanded(text string) (scalar, bool) {
	expanded, had, unset, err := expand(text, v.doc.env)
	if err != nil {
		v.complain("%v, got %s", err, quoted(text))
		return scalar{}, false
	}
	for _, name := range unset {
		v.warn("the variable %s is not set and taken as empty", name)
	}
	s := scalar{text: expanded, got: quoted(text), isText: true, expanded: had}
	if had {
		s.got += " with its variables replaced"
	}
	return s, true
}

// text reads a text that satisfies check, which says what is allowed where it does not.
func text(to *string, check func(string) error) reader {
	return func(v value) {
		s, ok := v.scalar("text")
		if !ok {
			return
		}
		if err := check(s.text); err != nil {
			v.complain("want %v, got %s", err, s.got)
			return
		}
		if !s.isText {
			v.complain("want text, got %s; put it in quotes", s.got)
			return
		}
		*to = s.text
	}
}

// argument reads one word of a command as it is written, numbers included.
func argument(to *string) reader {
	return func(v value) {
		if s, ok := v.scalar("text"); ok {
			*to = s.text
		}
	}
}

// secret reads a text that no complaint shows.
func secret(to *Secret) reader {
	return func(v value) {
		s, ok := v.scalar("text")
		switch {
		case !ok:
		case !s.isText:
			v.complain("want text; put it in quotes")
		case !isPrintable(s.text):
			v.complain("want printable ASCII without spaces")
		default:
			*to = NewSecret(s.text)
		}
	}
}

// oneOf reads one of a few words.
func oneOf(to *string, allowed ...string) reader {
	return text(to, func(s string) error {
		if slices.Contains(allowed, s) {
			return nil
		}
		return fmt.Errorf("one of %s", strings.Join(allowed, ", "))
	})
}

// integer reads a whole decimal number within bounds.
func integer[T int | int64](to *T, least, most T) reader {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	if int64(most) >= math.MaxInt32 {
		want = fmt.Sprintf("a whole number of at least %d", least)
	}
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		n, err := strconv.ParseInt(s.text, 10, 64)
		canonical := err == nil && strconv.FormatInt(n, 10) == s.text
		if s.isText && !s.expanded || !canonical || n < int64(least) || n > int64(most) {
			v.complain("want %s, got %s", want, s.got)
			return
		}
		*to = T(n)
	}
}

// duration reads a span of time of at least the given one; 0 needs no unit.
func duration(to *time.Duration, least time.Duration) reader {
	want := "a duration such as 30s, 5m or 1h30m"
	if least > 0 {
		want += ", longer than 0"
	}
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s.text)
		if err != nil || d < least {
			v.complain("want %s, got %s", want, s.got)
			return
		}
		*to = d
	}
}

// positive is the shortest duration where 0 makes no sense.
const positive = time.Nanosecond

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

// size reads a positive number of bytes.
func size(to *int64) reader {
	const want = "a size such as 16MiB, 1GB or 65536 (KiB, MiB, GiB, KB, MB, GB or plain bytes), more than 0"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		n, ok := parseSize(s.text)
		if !ok {
			v.complain("want %s, got %s", want, s.got)
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
