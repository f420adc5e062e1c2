package mockvllm

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// kind is the JSON type of a value.
type kind int

const (
	nullKind kind = iota
	boolKind
	numberKind
	stringKind
	listKind
	objectKind
)

// value is a JSON value as Python's json.loads reads it: numbers keep their literal, among them NaN and Infinity; a
// lone surrogate is kept as invalid UTF-8; of members with the same name the last counts.
type value struct {
	kind    kind
	boolean bool
	text    string // content of a string or literal of a number
	items   []value
	members []member
}

type member struct {
	name  string
	value value
}

func (v value) member(name string) (value, bool) {
	for _, m := range v.members {
		if m.name == name {
			return m.value, true
		}
	}
	return value{}, false
}

// maxDepth limits nesting. CPython's own limit is near 1000.
const maxDepth = 900

// syntaxError is CPython's JSONDecodeError: its message, and the position in characters.
type syntaxError struct {
	message  string
	position int
}

// Error implements error.
func (e *syntaxError) Error() string { return fmt.Sprintf("%s: char %d", e.message, e.position) }

// parsePythonJSON parses one JSON document like json.loads.
func parsePythonJSON(text string) (value, error) {
	p := &parser{text: text}
	p.skipSpace()
	v, err := p.value(0)
	if err != nil {
		return value{}, err
	}
	p.skipSpace()
	if p.pos < len(text) {
		return value{}, p.fail("Extra data", p.pos)
	}
	return v, nil
}

type parser struct {
	text string
	pos  int
}

func (p *parser) fail(message string, pos int) error {
	return &syntaxError{message, utf8.RuneCountInString(p.text[:min(pos, len(p.text))])}
}

func (p *parser) skipSpace() {
	for p.pos < len(p.text) && strings.IndexByte(" \t\n\r", p.text[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

var pythonLiterals = map[string]value{
	"null": {}, "true": {kind: boolKind, boolean: true}, "false": {kind: boolKind},
	"NaN": {kind: numberKind, text: "NaN"}, "Infinity": {kind: numberKind, text: "Infinity"},
	"-Infinity": {kind: numberKind, text: "-Infinity"},
}

func (p *parser) value(depth int) (value, error) {
	if depth > maxDepth {
		return value{}, fmt.Errorf("maximum recursion depth exceeded while decoding a JSON array")
	}
	switch p.peek() {
	case '{':
		return p.object(depth)
	case '[':
		return p.list(depth)
	case '"':
		text, err := p.string()
		return value{kind: stringKind, text: text}, err
	}
	for word, v := range pythonLiterals {
		if strings.HasPrefix(p.text[p.pos:], word) {
			p.pos += len(word)
			return v, nil
		}
	}
	if literal := numberLiteral(p.text[p.pos:]); literal != "" {
		p.pos += len(literal)
		return value{kind: numberKind, text: literal}, nil
	}
	return value{}, p.fail("Expecting value", p.pos)
}

func (p *parser) list(depth int) (value, error) {
	v := value{kind: listKind}
	err := p.elements(']', func() error {
		item, err := p.value(depth + 1)
		v.items = append(v.items, item)
		return err
	})
	return v, err
}

func (p *parser) object(depth int) (value, error) {
	v := value{kind: objectKind}
	indexes := make(map[string]int)
	err := p.elements('}', func() error {
		m, err := p.pair(depth)
		if index, repeated := indexes[m.name]; repeated {
			v.members[index] = m
		} else {
			indexes[m.name] = len(v.members)
			v.members = append(v.members, m)
		}
		return err
	})
	return v, err
}

// elements parses what is between an opening and a closing bracket, separated by commas.
func (p *parser) elements(closing byte, parse func() error) error {
	p.pos++
	p.skipSpace()
	if p.peek() == closing {
		p.pos++
		return nil
	}
	for {
		if err := parse(); err != nil {
			return err
		}
		p.skipSpace()
		switch p.peek() {
		case ',':
			p.pos++
			p.skipSpace()
		case closing:
			p.pos++
			return nil
		default:
			return p.fail("Expecting ',' delimiter", p.pos)
		}
	}
}

func (p *parser) pair(depth int) (member, error) {
	if p.peek() != '"' {
		return member{}, p.fail("Expecting property name enclosed in double quotes", p.pos)
	}
	name, err := p.string()
	if err != nil {
		return member{}, err
	}
	p.skipSpace()
	if p.peek() != ':' {
		return member{}, p.fail("Expecting ':' delimiter", p.pos)
	}
	p.pos++
	p.skipSpace()
	v, err := p.value(depth + 1)
	return member{name, v}, err
}

func (p *parser) string() (string, error) {
	start := p.pos
	p.pos++
	var out strings.Builder
	for p.pos < len(p.text) {
		run := strings.IndexFunc(p.text[p.pos:], func(r rune) bool { return r == '"' || r == '\\' || r < 0x20 })
		if run < 0 {
			break
		}
		out.WriteString(p.text[p.pos : p.pos+run])
		p.pos += run
		switch p.text[p.pos] {
		case '"':
			p.pos++
			return out.String(), nil
		case '\\':
			if err := p.escape(&out, start); err != nil {
				return "", err
			}
		default:
			return "", p.fail("Invalid control character at", p.pos)
		}
	}
	return "", p.fail("Unterminated string starting at", start)
}

var shortEscapes = map[byte]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

func (p *parser) escape(out *strings.Builder, start int) error {
	p.pos++
	if p.pos >= len(p.text) {
		return p.fail("Unterminated string starting at", start)
	}
	if plain, ok := shortEscapes[p.text[p.pos]]; ok {
		out.WriteByte(plain)
		p.pos++
		return nil
	}
	if p.text[p.pos] != 'u' {
		return p.fail(`Invalid \escape`, p.pos-1)
	}
	unit, ok := p.hexUnit(p.pos + 1)
	if !ok {
		return p.fail(`Invalid \uXXXX escape`, p.pos+1)
	}
	p.pos += 5
	if !utf16.IsSurrogate(unit) {
		out.WriteRune(unit)
		return nil
	}
	if strings.HasPrefix(p.text[p.pos:], `\u`) {
		if low, ok := p.hexUnit(p.pos + 2); ok && utf16.DecodeRune(unit, low) != unicode.ReplacementChar {
			out.WriteRune(utf16.DecodeRune(unit, low))
			p.pos += 6
			return nil
		}
	}
	// The surrogate's bytes as a generalised UTF-8 (WTF-8): Python keeps it, and only the tokenizer rejects it.
	out.Write([]byte{0xe0 | byte(unit>>12), 0x80 | byte(unit>>6&0x3f), 0x80 | byte(unit&0x3f)}) //nolint:gosec // masked
	return nil
}

func (p *parser) hexUnit(pos int) (rune, bool) {
	if pos+4 > len(p.text) {
		return 0, false
	}
	number, err := strconv.ParseUint(p.text[pos:pos+4], 16, 16)
	return rune(number), err == nil
}

// numberLiteral returns the JSON number at the start of the text, or "".
func numberLiteral(text string) string {
	pos := 0
	digits := func() int {
		start := pos
		for pos < len(text) && text[pos] >= '0' && text[pos] <= '9' {
			pos++
		}
		return pos - start
	}
	if strings.HasPrefix(text, "-") {
		pos++
	}
	if strings.HasPrefix(text[pos:], "0") {
		pos++
	} else if digits() == 0 {
		return ""
	}
	end := pos
	if strings.HasPrefix(text[pos:], ".") {
		pos++
		if digits() == 0 {
			return text[:end]
		}
		end = pos
	}
	if pos < len(text) && (text[pos] == 'e' || text[pos] == 'E') {
		pos++
		if pos < len(text) && (text[pos] == '+' || text[pos] == '-') {
			pos++
		}
		if digits() > 0 {
			end = pos
		}
	}
	return text[:end]
}

// isInt reports whether the value is a number whose literal is a Python int.
func (v value) isInt() bool {
	return v.kind == numberKind && !strings.ContainsAny(v.text, ".eENI")
}

// repr formats the value as Python prints it, which is how vLLM quotes requests in its errors.
func (v value) repr() string {
	switch v.kind {
	case nullKind:
		return "None"
	case boolKind:
		if v.boolean {
			return "True"
		}
		return "False"
	case numberKind:
		if v.isInt() {
			return v.text
		}
		number, _ := strconv.ParseFloat(v.text, 64) // out of range yields an infinity, as in Python
		return pythonFloat(number)
	case stringKind:
		return reprString(v.text)
	case listKind:
		parts := make([]string, len(v.items))
		for i, item := range v.items {
			parts[i] = item.repr()
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case objectKind:
		parts := make([]string, len(v.members))
		for i, m := range v.members {
			parts[i] = reprString(m.name) + ": " + m.value.repr()
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return ""
}

func reprString(text string) string {
	quote := "'"
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		quote = `"`
	}
	var out strings.Builder
	out.WriteString(quote)
	for _, r := range text {
		switch {
		case r == '\\' || string(r) == quote:
			out.WriteString(`\` + string(r))
		case strings.ContainsRune("\n\r\t", r):
			out.Write(appendEscape(nil, byte(r))) //nolint:gosec // ASCII
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&out, `\x%02x`, r)
		case !unicode.IsPrint(r) && r < 0x10000:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteString(quote)
	return out.String()
}
