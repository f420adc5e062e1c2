package mockvllm

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// maxSchemaDepth limits the nesting of generated JSON. Beyond half of it, optional properties and items are left out.
const maxSchemaDepth = 16

// maxGeneratedJSON is the length, in bytes, after which no more values are generated: the context ends the output before.
const maxGeneratedJSON = 1 << 18

// errSchemaDepth is returned for a schema that requires itself without end.
const errSchemaDepth = constraintError("The provided JSON schema contains features not supported by xgrammar.")

// generateJSON returns a compact JSON text that conforms to the schema.
func generateJSON(schema value, random *rand.Rand) (string, error) {
	g := &jsonGenerator{root: schema, random: random}
	if err := g.write(schema, 0); err != nil {
		return "", err
	}
	return string(g.out), nil
}

type jsonGenerator struct {
	root   value
	random *rand.Rand
	out    []byte
	steps  int
}

func (g *jsonGenerator) write(schema value, depth int) error {
	if g.steps++; depth > maxSchemaDepth || g.steps > maxSteps {
		return errSchemaDepth
	}
	if len(g.out) > maxGeneratedJSON {
		return nil
	}
	if schema.kind == boolKind || schema.kind == nullKind || len(schema.members) == 0 {
		g.out = append(g.out, "null"...) // anything conforms
		return nil
	}
	if fixed, ok := schema.member("const"); ok {
		g.out = fixed.appendJSON(g.out)
		return nil
	}
	if options, ok := schema.member("enum"); ok && len(options.items) > 0 {
		g.out = options.items[g.random.IntN(len(options.items))].appendJSON(g.out)
		return nil
	}
	if ref, ok := schema.member("$ref"); ok {
		target, err := g.resolve(ref.text)
		if err != nil {
			return err
		}
		return g.write(target, depth+1)
	}
	for _, union := range []string{"anyOf", "oneOf"} {
		if options, ok := schema.member(union); ok && len(options.items) > 0 {
			return g.writeAny(options.items, depth)
		}
	}
	if parts, ok := schema.member("allOf"); ok && len(parts.items) > 0 {
		return g.write(merge(schema, parts.items), depth+1)
	}
	return g.writeType(schema, depth)
}

// writeAny writes a value for one of the schemas: a random one, or near the depth limit the first that ends.
func (g *jsonGenerator) writeAny(schemas []value, depth int) error {
	start := g.random.IntN(len(schemas))
	var err error
	for i := range schemas {
		before := len(g.out)
		if err = g.write(schemas[(start+i)%len(schemas)], depth+1); err == nil {
			return nil
		}
		g.out = g.out[:before]
	}
	return err
}

// merge returns one schema with the members of all parts, properties together.
func merge(schema value, parts []value) value {
	merged := value{kind: objectKind}
	for _, part := range append([]value{schema}, parts...) {
		for _, m := range part.members {
			at := slices.IndexFunc(merged.members, func(had member) bool { return had.name == m.name })
			switch {
			case m.name == "allOf":
			case at < 0:
				merged.members = append(merged.members, m)
			case m.value.kind == objectKind:
				had := &merged.members[at].value
				had.members = append(slices.Clone(had.members), m.value.members...)
			case m.value.kind == listKind:
				had := &merged.members[at].value
				had.items = append(slices.Clone(had.items), m.value.items...)
			}
		}
	}
	return merged
}

// resolve finds the target of a local reference, such as #/$defs/point.
func (g *jsonGenerator) resolve(ref string) (value, error) {
	path, local := strings.CutPrefix(ref, "#")
	target := g.root
	for step := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if step == "" {
			continue
		}
		next, ok := target.member(strings.NewReplacer("~1", "/", "~0", "~").Replace(step))
		if !local || !ok {
			return value{}, constraintError("Failed to transform json schema into a grammar: cannot resolve " + ref)
		}
		target = next
	}
	return target, nil
}

func (g *jsonGenerator) writeType(schema value, depth int) error {
	kind := g.typeOf(schema)
	switch kind {
	case "object":
		return g.writeObject(schema, depth)
	case "array":
		return g.writeArray(schema, depth)
	case "string":
		return g.writeString(schema)
	case "integer":
		g.writeNumber(schema, true)
	case "number":
		g.writeNumber(schema, false)
	case "boolean":
		g.out = strconv.AppendBool(g.out, g.random.IntN(2) == 0)
	case "null", "":
		g.out = append(g.out, "null"...)
	default:
		return constraintError("Failed to transform json schema into a grammar: unknown type " + kind)
	}
	return nil
}

// typeOf returns the schema's type, or the one that its other members imply.
func (g *jsonGenerator) typeOf(schema value) string {
	kind, ok := schema.member("type")
	if ok && kind.kind == listKind && len(kind.items) > 0 {
		return kind.items[g.random.IntN(len(kind.items))].text
	}
	if ok {
		return kind.text
	}
	for implied := range strings.FieldsSeq("properties=object required=object items=array prefixItems=array pattern=string " +
		"minLength=string maxLength=string minimum=number maximum=number") {
		name, kind, _ := strings.Cut(implied, "=")
		if _, ok := schema.member(name); ok {
			return kind
		}
	}
	return ""
}

// writeObject writes the required properties and about half of the others, in the schema's order.
func (g *jsonGenerator) writeObject(schema value, depth int) error {
	required := make(map[string]bool)
	list, _ := schema.member("required")
	for _, name := range list.items {
		required[name.text] = true
	}
	properties, _ := schema.member("properties")
	members := slices.Clone(properties.members)
	for _, name := range list.items {
		if _, described := properties.member(name.text); !described {
			members = append(members, member{name: name.text})
		}
	}
	g.out = append(g.out, '{')
	written := 0
	for _, m := range members {
		if !required[m.name] && (depth > maxSchemaDepth/2 || g.random.IntN(2) == 0) {
			continue
		}
		g.out = append(appendString(appendComma(g.out, written), m.name), ':')
		written++
		if err := g.write(m.value, depth+1); err != nil {
			return err
		}
	}
	g.out = append(g.out, '}')
	return nil
}

func (g *jsonGenerator) writeArray(schema value, depth int) error {
	least := int(min(schema.number("minItems", 0), maxGeneratedJSON))
	most := int(min(schema.number("maxItems", float64(max(least, 3))), float64(least+3)))
	count := least
	if depth <= maxSchemaDepth/2 && most > least {
		count += g.random.IntN(most - least + 1)
	}
	prefix, _ := schema.member("prefixItems")
	items, described := schema.member("items")
	if !described && len(prefix.items) > 0 || described && items.kind == boolKind && !items.boolean {
		count = len(prefix.items)
	}
	g.out = append(g.out, '[')
	for i := range count {
		item := items
		if i < len(prefix.items) {
			item = prefix.items[i]
		}
		g.out = appendComma(g.out, i)
		if err := g.write(item, depth+1); err != nil {
			return err
		}
	}
	g.out = append(g.out, ']')
	return nil
}

// formats has an example of each format that xgrammar enforces.
var formats = map[string]string{
	"date": "2026-01-31", "time": "12:30:00Z", "date-time": "2026-01-31T12:30:00Z", "email": "reader@example.com",
	"uuid": "123e4567-e89b-12d3-a456-426614174000", "uri": "https://example.com/", "ipv4": "192.0.2.1",
	"ipv6": "2001:db8::1", "hostname": "example.com", "duration": "P1D",
}

var stringWords = []string{"river", "stone", "bridge", "Paris", "winter", "seven"}

func (g *jsonGenerator) writeString(schema value) error {
	if pattern, ok := schema.member("pattern"); ok {
		text, err := generateRegex(pattern.text, g.random, &g.steps)
		g.out = appendString(g.out, text)
		return err
	}
	format, _ := schema.member("format")
	if example, ok := formats[format.text]; ok {
		g.out = appendString(g.out, example)
		return nil
	}
	text := stringWords[g.random.IntN(len(stringWords))]
	if least := int(min(schema.number("minLength", 0), maxGeneratedJSON)); len(text) < least {
		text += strings.Repeat(" stone", (least-len(text))/len(" stone")+1)
	}
	most := int(schema.number("maxLength", float64(len(text))))
	g.out = appendString(g.out, text[:min(len(text), most)])
	return nil
}

func (g *jsonGenerator) writeNumber(schema value, whole bool) {
	step := schema.number("multipleOf", 1)
	least := math.Ceil(schema.number("minimum", math.Inf(-1)) / step)
	if bound := math.Floor(schema.number("exclusiveMinimum", math.Inf(-1))/step) + 1; bound > least {
		least = bound
	}
	most := math.Floor(schema.number("maximum", math.Inf(1)) / step)
	if bound := math.Ceil(schema.number("exclusiveMaximum", math.Inf(1))/step) - 1; bound < most {
		most = bound
	}
	switch {
	case math.IsInf(least, -1) && math.IsInf(most, 1):
		least, most = 0, 99
	case math.IsInf(least, -1):
		least = most - 99
	case math.IsInf(most, 1):
		most = least + 99
	}
	if most < least { // a number between two multiples of the step
		g.out = appendFloat(g.out, (schema.number("minimum", least*step)+schema.number("maximum", most*step))/2)
		return
	}
	number := (least + math.Floor(g.random.Float64()*(math.Min(most-least, 1<<52)+1))) * step
	if whole || number == math.Trunc(number) {
		g.out = strconv.AppendFloat(g.out, number, 'f', -1, 64)
		return
	}
	g.out = appendFloat(g.out, number)
}

// number returns a numeric member of a schema, or the default.
func (v value) number(name string, otherwise float64) float64 {
	m, ok := v.member(name)
	if !ok || m.kind != numberKind {
		return otherwise
	}
	number, _ := asFloat(m)
	return number
}

// appendJSON appends the value as compact JSON.
func (v value) appendJSON(dst []byte) []byte {
	switch v.kind {
	case nullKind:
		return append(dst, "null"...)
	case boolKind:
		return strconv.AppendBool(dst, v.boolean)
	case numberKind:
		return append(dst, v.text...)
	case stringKind:
		return appendString(dst, v.text)
	case listKind:
		dst = append(dst, '[')
		for i, item := range v.items {
			dst = item.appendJSON(appendComma(dst, i))
		}
		return append(dst, ']')
	case objectKind:
		dst = append(dst, '{')
		for i, m := range v.members {
			dst = append(appendString(appendComma(dst, i), m.name), ':')
			dst = m.value.appendJSON(dst)
		}
		return append(dst, '}')
	}
	return dst
}
