package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// key is a key of a section.
type key struct {
	name  string
	field reflect.Value // holds the value
	tag   reflect.StructTag
}

// keysOf returns the keys of a section in the order of their fields.
func keysOf(section reflect.Value) []key {
	var all []key
	for f, v := range section.Fields() {
		if name := cmp.Or(f.Tag.Get("key"), snakeCase(f.Name)); name != "-" {
			all = append(all, key{name: name, field: v, tag: f.Tag})
		}
	}
	return all
}

// snakeCase converts the name of a field to the key in the file: APIKey to api_key.
func snakeCase(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// setDefaults sets the keys of a section and of those below it to their defaults.
func setDefaults(section reflect.Value) {
	for _, k := range keysOf(section) {
		kind, isScalar := k.kind()
		if text, found := k.tag.Lookup("default"); found {
			parsed, _ := kind.parse(&scalar{text: text, isText: true, expanded: true}) // the tags are valid
			setField(k.field, parsed)
		} else if !isScalar && k.field.Kind() == reflect.Struct {
			setDefaults(k.field)
		}
	}
}

func setField(field reflect.Value, parsed any) {
	field.Set(reflect.ValueOf(parsed).Convert(field.Type()))
}

// newSection returns a section with its defaults.
func newSection(t reflect.Type) reflect.Value {
	section := reflect.New(t).Elem()
	setDefaults(section)
	return section
}

// section decodes a mapping and reports unknown, repeated and missing keys.
func (v value) section(to reflect.Value) {
	entries, ok := v.entries()
	if !ok {
		v.errorf("want a section of keys, got %s", describeNode(v.node))
		return
	}
	keys := keysOf(to)
	for _, entry := range entries {
		v.decodeEntry(entry, keys)
	}
	for _, k := range keys {
		if !v.has(k.name) && k.isRequired() {
			v.at(k.name, v.node).errorf("this key is required")
		}
	}
	if section, ok := reflect.TypeAssert[interface{ check(v value) }](to.Addr()); ok {
		section.check(v)
	}
}

func (k key) isRequired() bool { return k.tag.Get("required") != "" }

// has reports whether a section has a key.
func (v value) has(name string) bool { return v.doc.lines[v.childPath(name)] > 0 }

func (v value) decodeEntry(entry *ast.MappingValueNode, keys []key) {
	name := keyName(entry.Key)
	written := v.at(name, entry.Key)
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range keys {
			names = append(names, k.name)
		}
		v.at(displayKey(name), entry.Key).errorf("unknown key; %s", keyHint(name, names))
		return
	}
	if v.has(name) {
		written.errorf("this key is repeated; it stands on line %d already", v.doc.lines[written.path])
		return
	}
	v.doc.lines[written.path], v.doc.nodes[written.path] = line(entry.Key), entry.Value
	if _, null := entry.Value.(*ast.NullNode); null {
		written.errorf("this key has no value; remove it for its default")
		return
	}
	v.at(name, entry.Value).decode(keys[i])
}

// decode decodes the value of a key: a list, an optional section, a section or a scalar.
func (v value) decode(k key) {
	switch kind, isScalar := k.kind(); {
	case k.field.Kind() == reflect.Slice:
		v.decodeList(k)
	case isScalar:
		v.decodeScalar(kind, k.field)
	case k.field.Kind() == reflect.Pointer:
		k.field.Set(newSection(k.field.Type().Elem()).Addr())
		v.section(k.field.Elem())
	default:
		v.section(k.field)
	}
}

func (v value) decodeList(k key) {
	sequence, ok := v.node.(*ast.SequenceNode)
	if !ok {
		v.errorf("want a list, got %s", describeNode(v.node))
		return
	}
	items := reflect.MakeSlice(k.field.Type(), len(sequence.Values), len(sequence.Values))
	for i := range sequence.Values {
		item := key{field: items.Index(i), tag: k.tag}
		if _, isScalar := item.kind(); !isScalar {
			setDefaults(item.field)
		}
		node := value{doc: v.doc, node: sequence.Values[i], path: fmt.Sprintf("%s[%d]", v.path, i)}
		v.doc.nodes[node.path] = node.node
		node.decode(item)
	}
	if len(sequence.Values) == 0 {
		k.field.SetZero() // as without the key
		if k.isRequired() {
			v.errorf("want at least one item, got an empty list")
		}
		return
	}
	k.field.Set(items)
}

// NeedsRestart returns the keys that differ from those of old and that a reload does not apply.
func (c *Config) NeedsRestart(old *Config) []string {
	return needsRestart("", reflect.ValueOf(old).Elem(), reflect.ValueOf(c).Elem())
}

func needsRestart(path string, old, section reflect.Value) (names []string) {
	before := keysOf(old)
	for i, k := range keysOf(section) {
		name := strings.TrimPrefix(path+"."+k.name, ".")
		switch _, isScalar := k.kind(); {
		case k.tag.Get("restart") == "" && !isScalar && k.field.Kind() == reflect.Struct:
			names = append(names, needsRestart(name, before[i].field, k.field)...)
		case k.tag.Get("restart") != "" && !reflect.DeepEqual(before[i].field.Interface(), k.field.Interface()):
			names = append(names, name)
		}
	}
	return names
}

// entries returns the keys and values of a mapping; false if the value is not a mapping.
func (v value) entries() ([]*ast.MappingValueNode, bool) {
	node, ok := v.node.(*ast.MappingNode)
	if !ok {
		return nil, false
	}
	return node.Values, true
}

// at returns a node as the value of a key.
func (v value) at(name string, node ast.Node) value {
	return value{doc: v.doc, node: node, path: v.childPath(name)}
}

// child returns a value below v by its path, such as models[0].id. If the file lacks it, its node is of the nearest section
// or list around it.
func (v value) child(path string) value {
	child := value{doc: v.doc, node: v.node, path: v.childPath(path)}
	for around := child.path; len(around) > len(v.path); around = around[:max(0, strings.LastIndexAny(around, ".["))] {
		if node, found := v.doc.nodes[around]; found {
			child.node = node
			break
		}
	}
	return child
}

func (v value) childPath(name string) string { return strings.TrimPrefix(v.path+"."+name, ".") }

// keyNames returns the keys of a section as they are written.
func (v value) keyNames() []string {
	entries, _ := v.entries()
	var names []string
	for _, entry := range entries {
		names = append(names, keyName(entry.Key))
	}
	return names
}

// keyName returns a key's text as written; ${NAME} is not expanded in keys.
func keyName(k ast.MapKeyNode) string { return k.GetToken().Value }
