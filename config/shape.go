package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// field is one key of a section and how its value is read.
type field struct {
	name     string
	read     reader
	required bool
}

// reader reads one value to where it belongs, or complains.
type reader func(value)

func key(name string, read reader) field { return field{name: name, read: read} }

func required(name string, read reader) field { return field{name: name, read: read, required: true} }

// section reads a mapping of the fields and of no other keys, each at most once.
func (v value) section(fields ...field) {
	entries, ok := v.entries()
	if !ok {
		v.complain("want a section of keys, got %s", kind(v.node))
		return
	}
	first := map[string]int{} // the line of each key that has been read
	for _, entry := range entries {
		v.readEntry(entry, fields, first)
	}
	for _, f := range fields {
		if _, found := first[f.name]; f.required && !found {
			v.doc.complain(line(v.node), v.below(f.name), "this key is required")
		}
	}
}

func (v value) readEntry(entry *ast.MappingValueNode, fields []field, first map[string]int) {
	name := keyName(entry.Key)
	at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if at < 0 {
		v.complainOfUnknown(entry, name, fields)
		return
	}
	if before, repeated := first[name]; repeated {
		v.doc.complain(line(entry.Key), v.below(name), "this key is repeated; it stands on line %d already", before)
		return
	}
	first[name] = line(entry.Key)
	if _, null := entry.Value.(*ast.NullNode); null || entry.Value == nil {
		v.doc.complain(line(entry.Key), v.below(name), "this key has no value; leave it out for its default")
		return
	}
	fields[at].read(value{doc: v.doc, node: entry.Value, path: v.below(name)})
}

func (v value) complainOfUnknown(entry *ast.MappingValueNode, name string, fields []field) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	hint := "known here: " + strings.Join(names, ", ")
	if near := nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	v.doc.complain(line(entry.Key), v.below(shownKey(name)), "unknown key; %s", hint)
}

// list reads a sequence, each item by the reader that item makes for its place in to.
func list[T any](to *[]T, item func(*T) reader) reader {
	return func(v value) {
		sequence, ok := v.node.(*ast.SequenceNode)
		if !ok {
			v.complain("want a list, got %s", kind(v.node))
			return
		}
		*to = make([]T, len(sequence.Values))
		for i := range sequence.Values {
			item(&(*to)[i])(v.item(i))
		}
	}
}

// filledList is a list with at least one item.
func filledList[T any](to *[]T, item func(*T) reader) reader {
	return func(v value) {
		list(to, item)(v)
		if sequence, ok := v.node.(*ast.SequenceNode); ok && len(sequence.Values) == 0 {
			v.complain("want at least one item, got an empty list")
		}
	}
}

// entries are the keys and values of a mapping.
func (v value) entries() ([]*ast.MappingValueNode, bool) {
	switch node := v.node.(type) {
	case *ast.MappingNode:
		return node.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}, true
	default:
		return nil, false
	}
}

// child is the value under a key that has been read; where there is none, the section itself.
func (v value) child(name string) value {
	entries, _ := v.entries()
	for _, entry := range entries {
		if keyName(entry.Key) == name && entry.Value != nil {
			return value{doc: v.doc, node: entry.Value, path: v.below(name)}
		}
	}
	return value{doc: v.doc, node: v.node, path: v.below(name)}
}

// item is the i-th value of a list.
func (v value) item(i int) value {
	item := value{doc: v.doc, node: v.node, path: fmt.Sprintf("%s[%d]", v.path, i)}
	if sequence, ok := v.node.(*ast.SequenceNode); ok && i < len(sequence.Values) && sequence.Values[i] != nil {
		item.node = sequence.Values[i]
	}
	return item
}

func (v value) below(name string) string {
	if v.path == "" {
		return name
	}
	return v.path + "." + name
}

// keyName is a key's text as it stands in the file; ${NAME} means nothing in a key.
func keyName(k ast.MapKeyNode) string {
	if text, ok := k.(*ast.StringNode); ok {
		return text.Value
	}
	if token := k.GetToken(); token != nil {
		return token.Value
	}
	return ""
}
