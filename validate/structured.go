package validate

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// structuredOutput is the constraint on the output of a request.
type structuredOutput struct {
	// guided is the name under which versions before SinceStructuredOutputs take the constraint; empty if there is none,
	// or if they take it as the client sent it.
	guided string
	value  span // of the constraint's value in the body; zero for json_object
	// disablesWhitespace is true if disable_any_whitespace is present.
	disablesWhitespace bool
}

// maxStructured limits response_format and structured_outputs, in bytes. To find a name that stands twice, all names of
// the object are kept, which allocates a multiple of its size: 6 MB for an object of names alone at this limit.
const maxStructured = 256 << 10

func readCacheSalt(p *parser, f *field) error {
	raw, err := p.readScalar(f, '"')
	if err != nil {
		return err
	}
	salt := p.unquote(raw)
	switch n := utf8.RuneCount(salt); {
	case n < 1 || n > 128:
		return p.invalid(f, "a string of "+strconv.Itoa(n)+" characters")
	case bytes.ContainsAny(salt, "@/\\\x00"):
		return p.invalid(f, "a string with one of these four characters")
	}
	return nil
}

// objectValue is an object within the body whose syntax and names have been checked.
type objectValue struct {
	gjson.Result     // its Index counts from base
	base         int // offset in the body
}

// readObject reads a field that is an object of up to maxStructured bytes without duplicate names at any depth.
func (p *parser) readObject(f *field) (o objectValue, err error) {
	if p.decoder.PeekKind() != '{' {
		return o, p.invalidKind(f, "")
	}
	start := p.valueStart()
	if err := p.skipValue(); err != nil {
		return o, err
	}
	value := p.body[start:p.offset()]
	if len(value) > maxStructured {
		return o, p.invalid(f, fmt.Sprintf("an object of %d bytes, over the limit of %d", len(value), maxStructured))
	}
	if len(value) > maxPooled && !p.objectCounted {
		if err := p.grow(MaxParserMemory); err != nil {
			return o, err
		}
		p.objectCounted = true
	}
	if name, found := duplicateName(value, maxStructured); found {
		return o, p.duplicate(name)
	}
	return objectValue{gjson.ParseBytes(value), start}, nil
}

// each calls visit with each member until it returns a description of what is wrong with one. A member that is null is
// absent: it is not visited, and not sent to a backend.
func (p *parser) each(o objectValue, visit func(name string, value objectValue) (wrong string)) (wrong string) {
	cut := cutter{leading: -1}
	o.ForEach(func(name, value gjson.Result) bool {
		v := objectValue{value, o.base}
		null := v.Type == gjson.Null
		if !null {
			wrong = visit(name.Str, v)
		}
		cut.member(p.request, o.base+name.Index, v.span().end, null)
		return wrong == ""
	})
	cut.ended(p.request)
	return wrong
}

// span returns the offsets of the value in the body.
func (o objectValue) span() span {
	start := o.base + o.Index
	return span{start, start + len(o.Raw)}
}

// described describes the value of a member for an error message.
func (o objectValue) described(member string) string {
	return member + " with " + describe([]byte(o.Raw))
}

func readResponseFormat(p *parser, f *field) error {
	o, err := p.readObject(f)
	if err != nil {
		return err
	}
	kind, hasSchema, wrongSchema := "", false, ""
	wrong := p.each(o, func(name string, v objectValue) string {
		switch {
		case name == "type" && v.Type == gjson.String:
			kind = v.Str
		case name == "json_schema" && v.IsObject():
			hasSchema, wrongSchema = true, p.readJSONSchema(v)
		case name == "type" || name == "json_schema":
			return v.described(name)
		default:
			return strconv.Quote(apierr.Clip(name)) + " in it"
		}
		return ""
	})
	switch {
	case wrong != "":
	case kind == "json_schema" && hasSchema:
		wrong = wrongSchema
	case kind == "json_schema":
		wrong = "type json_schema without json_schema"
	case kind == "":
		wrong = "an object without type"
	case kind != "text" && kind != "json_object":
		wrong = "type " + strconv.Quote(apierr.Clip(kind))
	case hasSchema:
		wrong = "json_schema beside type " + kind
	}
	if wrong != "" {
		return p.invalid(f, wrong)
	}
	return nil
}

// readJSONSchema reads the json_schema of a response_format, and returns what is wrong with it.
func (p *parser) readJSONSchema(o objectValue) (wrong string) {
	named, hasSchema := false, false
	wrong = p.each(o, func(name string, v objectValue) string {
		switch {
		case name == "name" && v.Type == gjson.String && v.Str != "":
			named = true
		case name == "schema" && v.IsObject():
			hasSchema = true
			p.request.structured = structuredOutput{guided: "guided_json", value: v.span()}
		case name == "strict" && v.IsBool():
		case name == "description" && v.Type == gjson.String:
		case name == "name" || name == "schema" || name == "strict" || name == "description":
			return v.described("json_schema." + name)
		default:
			return strconv.Quote(apierr.Clip(name)) + " in json_schema"
		}
		return ""
	})
	switch {
	case wrong != "":
		return wrong
	case !named:
		return "json_schema without name"
	case !hasSchema:
		return "json_schema without schema"
	default:
		return ""
	}
}

// constraints are the members of structured_outputs of which exactly one may be present.
var constraints = map[string]struct {
	guided string // the field that versions before SinceStructuredOutputs have for it
	valid  func(gjson.Result) bool
}{
	"json":        {"guided_json", func(v gjson.Result) bool { return v.IsObject() || isText(v) }},
	"regex":       {"guided_regex", isText},
	"choice":      {"guided_choice", isTexts},
	"grammar":     {"guided_grammar", isText},
	"json_object": {guidedJSONObject, func(v gjson.Result) bool { return v.Type == gjson.True }},
}

// guidedJSONObject is the field that versions before SinceStructuredOutputs have for json_object.
const guidedJSONObject = "response_format"

func isText(v gjson.Result) bool { return v.Type == gjson.String && v.Str != "" }

// isTexts reports whether v is an array of at least one string, none empty.
func isTexts(v gjson.Result) bool {
	all := v.IsArray()
	n := 0
	v.ForEach(func(_, element gjson.Result) bool {
		n++
		all = all && isText(element)
		return all
	})
	return all && n > 0
}

func readStructuredOutputs(p *parser, f *field) error {
	o, err := p.readObject(f)
	if err != nil {
		return err
	}
	found, s := "", structuredOutput{}
	wrong := p.each(o, func(name string, v objectValue) string {
		constraint, isConstraint := constraints[name]
		switch {
		case !isConstraint && name != "disable_any_whitespace":
			return strconv.Quote(apierr.Clip(name)) + " in it"
		case name == "disable_any_whitespace" && v.IsBool():
			s.disablesWhitespace = true
		case !isConstraint || !constraint.valid(v.Result):
			return v.described(name)
		case found != "":
			return "both " + found + " and " + name
		default:
			found, s.guided, s.value = name, constraint.guided, v.span()
		}
		return ""
	})
	if wrong == "" && found == "" {
		wrong = "an object without any of them"
	}
	if wrong != "" {
		return p.invalid(f, wrong)
	}
	p.request.structured = s
	return nil
}

// respell replaces response_format or structured_outputs by the field that versions before SinceStructuredOutputs have
// for it.
func (s *splicer) respell() {
	r := s.request
	if r.structured.guided == "" {
		return
	}
	value := bytes.Clone(r.body[r.structured.value.start:r.structured.value.end])
	if r.structured.guided == guidedJSONObject {
		value = []byte(`{"type":"json_object"}`)
	}
	id := fieldStructuredOutputs
	if m := r.find(fieldStructuredOutputs); m == nil || m.null {
		id = fieldResponseFormat
	}
	m := r.find(id)
	member := append([]byte(`"`+r.structured.guided+`":`), value...)
	s.setPart(id, member, span{m.name, m.end})
}
