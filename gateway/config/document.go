package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// document is the file being parsed. It collects diagnostics, so that one pass finds every error.
//
// config walks the syntax tree itself instead of using the YAML library's decoder: the decoder stops at the first
// error, has no line for a value that fails validation, accepts 1.5 as an integer and ignores a second document.
type document struct {
	name     string
	env      func(string) (string, bool)
	lines    map[string]int      // where the keys stand, by their paths
	nodes    map[string]ast.Node // the values found, by their paths
	errs     []Diagnostic
	warnings []Diagnostic

	holdsSecrets bool // a secret was decoded that is not a variable
}

func newDocument(name string, env func(string) (string, bool)) *document {
	return &document{name: name, env: env, lines: map[string]int{}, nodes: map[string]ast.Node{}}
}

// value is a node of the document and its path.
type value struct {
	doc  *document
	node ast.Node
	path string
}

// parse returns the root of the syntax tree; false if the text is not exactly one YAML document that is not empty.
func (d *document) parse(text []byte) (value, bool) {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	number := 0
	for line := range bytes.Lines(text) {
		if number++; !utf8.Valid(line) {
			d.errorf(number, "", "this is not UTF-8")
			return value{}, false
		}
	}
	file, err := parseYAML(text)
	if err != nil {
		d.addSyntaxError(err, text)
		return value{}, false
	}
	var root ast.Node
	for _, document := range file.Docs {
		_, directive := document.Body.(*ast.DirectiveNode) // %YAML 1.2
		switch {
		case document.Body == nil, directive:
		case root == nil:
			root = document.Body
		default:
			d.errorf(line(document.Body), "", "a second YAML document begins here; a configuration is one")
		}
	}
	if root == nil {
		d.errorf(1, "models", "this key is required, and the file is empty")
		return value{}, false
	}
	return value{doc: d, node: root}, true
}

var errParserPanic = errors.New("this is not YAML that can be read")

// parseYAML calls the library's parser and turns its panics, which some invalid texts cause, into errors. It accepts
// repeated keys, which are reported later together with all other errors.
func parseYAML(text []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = errParserPanic
		}
	}()
	return parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
}

// syntaxError is an error of the YAML library, by a part of its text, in words for people who know no parser.
type syntaxError struct{ part, text string }

// The first of syntaxErrors that matches counts.
var syntaxErrors = []syntaxError{
	{"end character of double-quoted", `a text that begins with " does not end`},
	{"end character of single-quoted", "a text that begins with ' does not end"},
	{"cannot start any token", "a tab; indent with spaces"},
	{"tab character", "a tab; indent with spaces"},
	{"',' or '}' must be specified", "within { } a comma is missing, or the } at the end"},
	{"',' or ']' must be specified", "within [ ] a comma is missing, or the ] at the end"},
	{"flow mapping end token", "the } that ends a { is missing"},
	{"sequence end token", "the ] that ends a [ is missing"},
	{"unexpected key name", "a colon is missing behind a key"},
	{"mapping value is not allowed", "a second colon on one line; put a text that has one in quotes"},
	{"value is not allowed in this context", "this does not fit the lines above; is it indented as they are?"},
	{"is a reserved character", "a text that begins with @ or ` must stand in quotes"},
}

func (d *document) addSyntaxError(err error, text []byte) {
	number, message := 1, err.Error()
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		message = syntax.GetMessage()
		if token := syntax.GetToken(); token != nil && token.Position != nil {
			number = max(1, token.Position.Line)
		}
	}
	if i := slices.IndexFunc(syntaxErrors, func(known syntaxError) bool { return strings.Contains(message, known.part) }); i >= 0 {
		message = syntaxErrors[i].text
	}
	message = "not valid YAML: " + strings.NewReplacer("\n", " ", "\r", " ", "\t", `\t`).Replace(message)
	if lines := strings.Split(string(text), "\n"); number <= len(lines) && strings.Contains(lines[number-1], "${") {
		message += "; within { } and [ ] a ${NAME} must stand in quotes"
	}
	d.errorf(number, "", "%s", message)
}

func (d *document) errorf(line int, key, format string, args ...any) {
	d.errs = append(d.errs, Diagnostic{File: d.name, Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (v value) errorf(format string, args ...any) {
	v.doc.errorf(line(v.node), v.path, format, args...)
}

func (v value) warnf(format string, args ...any) {
	v.doc.warnings = append(v.doc.warnings,
		Diagnostic{File: v.doc.name, Line: line(v.node), Key: v.path, Text: fmt.Sprintf(format, args...)})
}

// isSound reports whether no mistake has been found in the value.
func (v value) isSound() bool {
	return !slices.ContainsFunc(v.doc.errs, func(d Diagnostic) bool { return d.concerns(v.path) })
}

// line returns the line on which a node begins. The token of a mapping is its first colon, so line uses its first key.
func line(n ast.Node) int {
	if node, ok := n.(*ast.MappingNode); ok && len(node.Values) > 0 {
		return line(node.Values[0].Key)
	}
	token := n.GetToken()
	if token == nil || token.Position == nil {
		return 1
	}
	return max(1, token.Position.Line)
}

// describeNode returns what a node is, for diagnostics.
func describeNode(n ast.Node) string {
	switch node := n.(type) {
	case *ast.MappingNode:
		return "a section of keys"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return "the text " + quote(node.Value)
	case *ast.LiteralNode:
		return "the text " + quote(node.Value.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + truncate(n.GetToken().Value)
	case *ast.BoolNode:
		return node.GetToken().Value
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return "an anchor, alias, tag or merge (write the value itself)"
	default:
		return "something else"
	}
}

// maxQuote limits the text quoted in a diagnostic, in bytes, so that it stays on one readable line.
const maxQuote = 80

func truncate(text string) string {
	if len(text) <= maxQuote {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuote], "") + "…"
}

// displayKey returns a key for a diagnostic: unchanged, or quoted if it has characters that are not printable.
func displayKey(name string) string {
	name = truncate(name)
	if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

func quote(text string) string { return fmt.Sprintf("%q", truncate(text)) }
