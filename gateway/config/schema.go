package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// field is one key of a section and the function that decodes its value.
type field struct {
	name     string
	decode   decodeFunc
	required bool
}

// decodeFunc decodes one value into its destination, or reports an error.
type decodeFunc func(value)

func key(name string, decode decodeFunc) field { return field{name: name, decode: decode} }

func required(name string, decode decodeFunc) field {
	return field{name: name, decode: decode, required: true}
}

// section decodes a mapping and reports unknown, repeated and missing keys.
func (v value) section(fields ...field) {
	entries, ok := v.entries()
	if !ok {
		v.errorf("want a section of keys, got %s", describe(v.node))
		return
	}
	lines := map[string]int{} // the line of each key found
	for _, entry := range entries {
		v.decodeEntry(entry, fields, lines)
	}
	for _, f := range fields {
		if _, found := lines[f.name]; f.required && !found {
			v.doc.errorf(line(v.node), v.childPath(f.name), "this key is required")
		}
	}
}

func (v value) decodeEntry(entry *ast.MappingValueNode, fields []field, lines map[string]int) {
	name := keyName(entry.Key)
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 {
		v.addUnknownKey(entry, name, fields)
		return
	}
	if earlier, repeated := lines[name]; repeated {
		v.doc.errorf(line(entry.Key), v.childPath(name), "this key is repeated; it stands on line %d already", earlier)
		return
	}
	lines[name] = line(entry.Key)
	if _, null := entry.Value.(*ast.NullNode); null || entry.Value == nil {
		v.doc.errorf(line(entry.Key), v.childPath(name), "this key has no value; leave it out for its default")
		return
	}
	fields[i].decode(value{doc: v.doc, node: entry.Value, path: v.childPath(name)})
}

func (v value) addUnknownKey(entry *ast.MappingValueNode, name string, fields []field) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	hint := "known here: " + strings.Join(names, ", ")
	if suggestion := suggestKey(name, names); suggestion != "" {
		hint = fmt.Sprintf("did you mean %s?", suggestion)
	}
	v.doc.errorf(line(entry.Key), v.childPath(displayKey(name)), "unknown key; %s", hint)
}

// list decodes a sequence into to; item returns the function that decodes one element.
func list[T any](to *[]T, item func(*T) decodeFunc) decodeFunc {
	return func(v value) {
		sequence, ok := v.node.(*ast.SequenceNode)
		if !ok {
			v.errorf("want a list, got %s", describe(v.node))
			return
		}
		*to = make([]T, len(sequence.Values))
		for i := range sequence.Values {
			item(&(*to)[i])(v.item(i))
		}
	}
}

// nonEmptyList decodes a sequence with at least one element.
func nonEmptyList[T any](to *[]T, item func(*T) decodeFunc) decodeFunc {
	return func(v value) {
		list(to, item)(v)
		if sequence, ok := v.node.(*ast.SequenceNode); ok && len(sequence.Values) == 0 {
			v.errorf("want at least one item, got an empty list")
		}
	}
}

// entries returns the keys and values of a mapping; false if the value is not a mapping.
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

// child returns the value of a key, or the section's node with the key's path if the key is absent.
func (v value) child(name string) value {
	entries, _ := v.entries()
	for _, entry := range entries {
		if keyName(entry.Key) == name && entry.Value != nil {
			return value{doc: v.doc, node: entry.Value, path: v.childPath(name)}
		}
	}
	return value{doc: v.doc, node: v.node, path: v.childPath(name)}
}

// item returns the i-th element of a list.
func (v value) item(i int) value {
	item := value{doc: v.doc, node: v.node, path: fmt.Sprintf("%s[%d]", v.path, i)}
	if sequence, ok := v.node.(*ast.SequenceNode); ok && i < len(sequence.Values) && sequence.Values[i] != nil {
		item.node = sequence.Values[i]
	}
	return item
}

func (v value) childPath(name string) string {
	if v.path == "" {
		return name
	}
	return v.path + "." + name
}

// keyName returns a key's text as written; ${NAME} is not expanded in keys.
func keyName(k ast.MapKeyNode) string {
	if text, ok := k.(*ast.StringNode); ok {
		return text.Value
	}
	if token := k.GetToken(); token != nil {
		return token.Value
	}
	return ""
}
