package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// kind is how the values of a key are parsed, and shown.
type kind struct {
	want     string // what is allowed; of a text, parse names it
	zero     string // a word for the duration 0
	optional bool   // an empty text leaves the field as it is
	hidden   bool   // no diagnostic quotes a value: it may hold a secret
	isURL    bool   // what variables bring is encoded, and a text with an @ may hold a password, so that it is not quoted
	orPath   bool   // a text without :// is no URL

	// parse returns the value of the field. An error other than errUnwanted says itself what is allowed, and may come with a
	// value.
	parse func(*scalar) (any, error)

	// show formats the value of the field; nil: as fmt does.
	show func(reflect.Value) string
}

// errUnwanted is returned for a value that is not what a kind wants.
var errUnwanted = errors.New("not what is wanted")

// scalar is a single value with its variables replaced.
type scalar struct {
	text     string
	got      string // the value as diagnostics show it, with variables not replaced; empty: it may hold a secret
	isText   bool   // YAML parsed it as text
	expanded bool   // it contained a variable, so its type depends on the expanded text and not on what YAML parsed
	secret   bool   // set by parse: it holds a secret
}

// isQuoted reports whether the file says that the value is a text, which is no number and neither true nor false.
func (s *scalar) isQuoted() bool { return s.isText && !s.expanded }

// unwanted returns the error that a value is not what is allowed.
func (s *scalar) unwanted(want string) error {
	if s.got == "" {
		return fmt.Errorf("want %s", want)
	}
	return fmt.Errorf("want %s, got %s", want, s.got)
}

// kinds are all kinds but those of integers and of the tag of, by the names of the tag as, or else by the type of the
// field.
var kinds = map[string]kind{
	"bool":          {want: "true or false", parse: parseBool},
	"time.Duration": {want: wantDuration, parse: durations(0, math.MaxInt64, time.ParseDuration)},
	"positive":      {want: wantDuration + ", longer than 0", parse: durations(1, math.MaxInt64, time.ParseDuration)},
	"age":           {want: "a duration such as 12h or 30d, at least 1h0m0s", parse: durations(time.Hour, math.MaxInt64, parseAge)},
	"flush":         {want: "commit, or a duration from 10ms to 1m such as 1s", zero: "commit", parse: durations(10*time.Millisecond, time.Minute, time.ParseDuration)},
	// Budgets are checked against the rows of the month.
	"keep_requests": {want: "forever, or a number of days from 31d such as 400d", zero: "forever", parse: durations(31*day, math.MaxInt64, parseDayCount), show: showDays},
	"fraction":      {want: "a number from 0 to 1", parse: parseFraction},
	"size":          {want: wantSize, parse: parseSize},

	"identifier":    matching(`[A-Za-z0-9._-]{1,64}`, "1 to 64 of the characters A-Z a-z 0-9 . _ -"),                  // in URLs and JSON
	"alias":         matching(`[!-+\--~]{1,200}`, "1 to 200 characters of printable ASCII without spaces and commas"), // lists of ids have commas
	"word":          matching(`[!-~]+`, "printable ASCII without spaces, not empty"),                                  // in headers and log lines
	"label":         matching(`[ -~]*`, "printable ASCII"),
	"group":         matching(`[ -~]+`, "the name of a group in printable ASCII, not empty"),
	"gateway":       matching(`[!-~]{0,200}`, "at most 200 characters of printable ASCII without spaces, or nothing"),
	"path":          matching(`[^\x00]+`, "the path of a file"),
	"adapters_dir":  text(parseAdaptersDir),
	"optional_path": matching(`[^\x00]*`, "the path of a file"),
	"argument":      {want: "text", parse: func(s *scalar) (any, error) { return s.text, nil }, show: maskedCommand}, // numbers need no quotes
	"config.Secret": {want: "text", parse: parseSecret},

	"address":    text(parseAddress),
	"host":       textThat(isHost, "the name of a host such as gateway.example.org, without a port"),
	"network":    {want: wantNetwork, parse: parseNetwork},
	"origin":     {want: wantOrigin, parse: parseOrigin},
	"server":     {want: wantServer, isURL: true, parse: parseServer},
	"public_url": {want: wantServer, isURL: true, parse: parsePublicURL},
	"issuer":     {want: wantIssuer, isURL: true, optional: true, parse: parseIssuer},
	"collector":  {want: wantCollector, isURL: true, optional: true, parse: parseCollector},
	"webhook":    {want: wantWebhook, isURL: true, optional: true, hidden: true, parse: parseWebhook, show: maskedURL},
	"target":     {want: wantTarget, isURL: true, orPath: true, optional: true, parse: parseTarget, show: maskedTarget},
	"files":      {want: wantFiles, isURL: true, optional: true, parse: parseFiles},
	"database":   {want: wantDatabase, isURL: true, optional: true, hidden: true, parse: parseDatabase, show: redactedDatabase},
	"smtp":       {want: wantSMTP, isURL: true, optional: true, hidden: true, parse: parseSMTP},
	"sender":     textThat(isSender, "an e-mail address such as basegate@example.org or Basegate <basegate@example.org>, or nothing"),
	"helo":       textThat(isHelo, "the name of a host such as gateway.example.org, an address such as [192.0.2.1] or [IPv6:2001:db8::1], or nothing"),

	"weekdays": text(ParseDays),
	"start":    text(parseStartClock),
	"clock":    text(parseClock),
	"zone":     text(parseLocation),
}

// kind returns the kind of a key's values, or of the items of a list; false for a section.
func (k key) kind() (kind, bool) {
	if allowed, found := k.tag.Lookup("of"); found {
		isAllowed := func(s string) bool { return slices.Contains(strings.Split(allowed, ", "), s) }
		return textThat(isAllowed, "one of "+allowed), true
	}
	switch name := cmp.Or(k.tag.Get("as"), k.field.Type().String()); name {
	case "int":
		return integer(k.tag, math.MaxInt32), true
	case "int64":
		return integer(k.tag, math.MaxInt64), true
	default:
		found, ok := kinds[name]
		return found, ok
	}
}

// decodeScalar decodes a single value into a field.
func (v value) decodeScalar(k kind, field reflect.Value) {
	s, ok := v.scalar(k)
	if !ok || k.optional && s.text == "" {
		return
	}
	if k.zero != "" && k.zero == s.text {
		field.SetZero()
		return
	}
	if k.hidden {
		s.got = ""
	}
	parsed, err := k.parse(s)
	if errors.Is(err, errUnwanted) {
		err = s.unwanted(k.want)
	}
	if err != nil {
		v.errorf("%v", err)
	}
	if parsed != nil {
		setField(field, parsed)
		v.doc.holdsSecrets = v.doc.holdsSecrets || s.secret && !s.expanded
	}
}

// scalar returns a single value. It reports an error and returns false for a section, a list or an invalid variable.
func (v value) scalar(k kind) (*scalar, bool) {
	switch node := v.node.(type) {
	case *ast.StringNode:
		return v.expandScalar(node.Value, k)
	case *ast.LiteralNode:
		return v.expandScalar(node.Value.Value, k)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return &scalar{text: node.GetToken().Value, got: describeNode(node)}, true
	default:
		v.errorf("want %s, got %s", k.want, describeNode(v.node))
		return nil, false
	}
}

// expandScalar returns text with its variables replaced, and warns of variables that are not set.
func (v value) expandScalar(text string, k kind) (*scalar, bool) {
	e, err := expand(text, v.doc.env, k.isURL && !k.orPath)
	if k.orPath && strings.Contains(e.text, "://") {
		e, err = expand(text, v.doc.env, true)
	}
	if err != nil {
		v.errorf("%v", err) // the text is not quoted: it may be a password
		return nil, false
	}
	for _, name := range e.unset {
		v.warnf("the variable %s is not set and taken as empty", name)
	}
	for _, name := range e.percent {
		v.warnf("the variable %s has a %% with two digits, which are taken literally: a variable within a URL holds the text itself, "+
			"and is encoded by basegate", name)
	}
	s := &scalar{text: e.text, got: quote(text), isText: true, expanded: e.found}
	if e.found {
		s.got += " with its variables replaced"
	}
	if k.isURL && !k.orPath && strings.Contains(s.text, "@") {
		s.got = "a text with an @, which is not shown"
	}
	return s, true
}

// text returns the kind of a text. The error of parse names what is allowed.
func text[T any](parse func(string) (T, error)) kind {
	return kind{want: "text", parse: func(s *scalar) (any, error) {
		parsed, err := parse(s.text)
		switch {
		case err != nil:
			return nil, s.unwanted(err.Error())
		case !s.isText:
			return nil, fmt.Errorf("want text, got %s; put it in quotes", s.got)
		}
		return parsed, nil
	}}
}

// textThat returns the kind of a text for which isAllowed holds.
func textThat(isAllowed func(string) bool, want string) kind {
	return text(func(s string) (string, error) {
		if !isAllowed(s) {
			return "", errors.New(want)
		}
		return s, nil
	})
}

// matching returns the kind of a text of which a pattern matches all.
func matching(pattern, want string) kind {
	return textThat(regexp.MustCompile(`^(`+pattern+`)$`).MatchString, want)
}

// parseAdaptersDir returns a folder without the slash at its end. It must not be all of the machine.
func parseAdaptersDir(s string) (string, error) {
	dir := strings.TrimSuffix(s, "/")
	if s != "" && (dir == "" || !path.IsAbs(dir) || path.Clean(dir) != dir || strings.Contains(dir, "\x00")) {
		return "", errors.New("the absolute path of a folder without . and .., or nothing")
	}
	return dir, nil
}

// isPrintable reports whether every character is visible ASCII.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func parseSecret(s *scalar) (any, error) {
	switch {
	case !s.isText:
		return nil, errors.New("want text; put it in quotes")
	case !isPrintable(s.text):
		return nil, errors.New("want printable ASCII without spaces")
	}
	s.secret = s.text != ""
	return NewSecret(s.text), nil
}

func parseBool(s *scalar) (any, error) {
	if s.isQuoted() || s.text != "true" && s.text != "false" {
		return nil, errUnwanted
	}
	return s.text == "true", nil
}

// integer returns the kind of a decimal number, whose tag has its bounds. A maximum of at least math.MaxInt32 is not named
// in diagnostics.
func integer(tag reflect.StructTag, maximum int64) kind {
	minimum, _ := strconv.ParseInt(tag.Get("min"), 10, 64) // 0 if there is no tag
	if bound, err := strconv.ParseInt(tag.Get("max"), 10, 64); err == nil {
		maximum = bound
	}
	want := fmt.Sprintf("a whole number from %d to %d", minimum, maximum)
	if maximum >= math.MaxInt32 {
		want = fmt.Sprintf("a whole number of at least %d", minimum)
	}
	return kind{want: want, parse: func(s *scalar) (any, error) {
		n, err := strconv.ParseInt(s.text, 10, 64)
		if s.isQuoted() || err != nil || strconv.FormatInt(n, 10) != s.text || n < minimum || n > maximum {
			return nil, errUnwanted
		}
		return n, nil
	}}
}

const wantDuration = "a duration such as 30s, 5m or 1h30m"

func durations(minimum, maximum time.Duration, parse func(string) (time.Duration, error)) func(*scalar) (any, error) {
	return func(s *scalar) (any, error) {
		d, err := parse(s.text)
		if err != nil || d < minimum || d > maximum {
			return nil, errUnwanted
		}
		return d, nil
	}
}

const day = 24 * time.Hour

// parseDayCount parses a number of days such as 30d.
func parseDayCount(text string) (time.Duration, error) {
	digits, found := strings.CutSuffix(text, "d")
	n, err := strconv.ParseInt(digits, 10, 16)
	if err != nil || !found {
		return 0, errors.New("not a number of days")
	}
	return time.Duration(n) * day, nil
}

// parseAge parses a duration that may also be a number of days.
func parseAge(text string) (time.Duration, error) {
	if d, err := parseDayCount(text); err == nil {
		return d, nil
	}
	return time.ParseDuration(text)
}

func showDays(v reflect.Value) string { return fmt.Sprintf("%dd", v.Int()/int64(day)) }

const wantSize = "a size such as 16MiB, 1GB or 65536 (KiB, MiB, GiB, KB, MB, GB or plain bytes), more than 0"

var (
	sizePattern = regexp.MustCompile(`^([1-9][0-9]*)(|B|[KMG]i?B)$`)
	sizeUnits   = map[string]int64{
		"": 1, "B": 1, "KB": 1000, "MB": 1000 * 1000, "GB": 1000 * 1000 * 1000, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	}
)

// parseSize parses a positive number of bytes.
func parseSize(s *scalar) (any, error) {
	parts := sizePattern.FindStringSubmatch(s.text)
	if parts == nil {
		return nil, errUnwanted
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || n > math.MaxInt64/sizeUnits[parts[2]] {
		return nil, errUnwanted
	}
	return n * sizeUnits[parts[2]], nil
}

func parseFraction(s *scalar) (any, error) {
	n, err := strconv.ParseFloat(s.text, 64)
	if err != nil || s.isQuoted() || !(n >= 0 && n <= 1) {
		return nil, errUnwanted
	}
	return n, nil
}
