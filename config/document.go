package config

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// document is a file while it is read. It gathers what is wrong, so that one reading finds every mistake.
//
// The syntax tree is read here and not by the YAML library's decoder, because that stops at the first mistake, gives no
// line for a value of ours that is wrong, takes 1.5 for an integer and passes over a second document.
type document struct {
	name     string
	env      func(string) (string, bool)
	mistakes []Diagnostic
	warnings []Diagnostic
}

// value is a place in the document: a node and the path that leads to it.
type value struct {
	doc  *document
	node ast.Node
	path string
}

// parse makes the syntax tree and gives its root, unless the text is not one YAML document with something in it.
func (d *document) parse(text []byte) (value, bool) {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if at := firstNotUTF8(text); at >= 0 {
		d.complain(1+bytes.Count(text[:at], []byte("\n")), "", "this is not UTF-8")
		return value{}, false
	}
	file, err := parseYAML(text)
	if err != nil {
		d.complainOfSyntax(err, text)
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
			d.complain(line(document.Body), "", "a second YAML document begins here; a configuration is one")
		}
	}
	if root == nil {
		d.complain(1, "models", "this key is required, and the file says nothing")
		return value{}, false
	}
	return value{doc: d, node: root}, true
}

var errParserPanic = errors.New("this is not YAML that can be read")

// parseYAML is the library's parser, with its panics on some broken texts turned into errors. Repeated keys pass, since
// they are found later, together with every other mistake.
func parseYAML(text []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = errParserPanic
		}
	}()
	return parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
}

func (d *document) complainOfSyntax(err error, text []byte) {
	at, message := 1, err.Error()
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		message = syntax.GetMessage()
		if token := syntax.GetToken(); token != nil && token.Position != nil {
			at = max(1, token.Position.Line)
		}
	}
	message = "not valid YAML: " + strings.NewReplacer("\n", " ", "\r", " ", "\t", `\t`).Replace(message)
	if lines := strings.Split(string(text), "\n"); at <= len(lines) && strings.Contains(lines[at-1], "${") {
		message += "; within { } and [ ] a ${NAME} must stand in quotes"
	}
	d.complain(at, "", "%s", message)
}

func (d *document) complain(line int, key, format string, args ...any) {
	d.mistakes = append(d.mistakes, Diagnostic{File: d.name, Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (v value) complain(format string, args ...any) {
	v.doc.complain(line(v.node), v.path, format, args...)
}

func (v value) warn(format string, args ...any) {
	v.doc.warnings = append(v.doc.warnings,
		Diagnostic{File: v.doc.name, Line: line(v.node), Key: v.path, Text: fmt.Sprintf(format, args...)})
}

// line is where a node begins. A section has its first colon for a token, so its first key is asked.
func line(n ast.Node) int {
	switch node := n.(type) {
	case *ast.MappingNode:
		if len(node.Values) > 0 {
			return line(node.Values[0])
		}
	case *ast.MappingValueNode:
		return line(node.Key)
	}
	token := n.GetToken()
	if token == nil || token.Position == nil {
		return 1
	}
	return max(1, token.Position.Line)
}

// kind names what a node is, for complaints.
func kind(n ast.Node) string {
	switch node := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section of keys"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return "the text " + quoted(node.Value)
	case *ast.LiteralNode:
		return "the text " + quoted(node.Value.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + shortened(n.GetToken().Value)
	case *ast.BoolNode:
		return node.GetToken().Value
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return "an anchor, alias, tag or merge (write the value itself)"
	default:
		return "something else"
	}
}

// maxQuoted keeps a complaint on one readable line, in bytes.
const maxQuoted = 80

func shortened(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuoted], "") + "…"
}

// shownKey is a key as a complaint names it: as it stands, or in quotes where that would not be one readable line.
func shownKey(name string) string {
	name = shortened(name)
	if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

func quoted(text string) string { return fmt.Sprintf("%q", shortened(text)) }

func firstNotUTF8(text []byte) int {
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
	return -1
}
