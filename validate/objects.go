package validate

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

func (o objectValue) span() span {
	start := o.base + o.Index
	return span{start, start + len(o.Raw)}
}

// described describes the value of a member for an error message.
func (o objectValue) described(member string) string {
	return member + " with " + Describe([]byte(o.Raw))
}

// object returns a reader of a field that is an object, of which check returns what is wrong, or "".
func object(check func(p *parser, o objectValue) (wrong string)) Reader {
	return func(p *parser, f *field) error {
		o, err := p.readObject(f)
		if err != nil {
			return err
		}
		if wrong := check(p, o); wrong != "" {
			return p.invalid(f, wrong)
		}
		return nil
	}
}

// memberCheck reports whether the value of a member is valid.
type memberCheck func(gjson.Result) bool

// eachKnown is each for an object with known members only, whose values are valid. prefix and unknown are for what is wrong.
func (p *parser) eachKnown(o objectValue, known map[string]memberCheck, prefix, unknown string, visit func(name string, v objectValue) (wrong string)) string {
	return p.each(o, func(name string, v objectValue) string {
		switch valid, isKnown := known[name]; {
		case !isKnown:
			return fmt.Sprintf(unknown, strconv.Quote(apierr.Clip(name)))
		case !valid(v.Result):
			return v.described(prefix + name)
		default:
			return visit(name, v)
		}
	})
}

func isString(v gjson.Result) bool { return v.Type == gjson.String }

// The members of response_format and of its json_schema.
var (
	formatMembers = map[string]memberCheck{"type": isString, "json_schema": gjson.Result.IsObject}
	schemaMembers = map[string]memberCheck{
		"name": isText, "schema": gjson.Result.IsObject, "strict": gjson.Result.IsBool, "description": isString,
	}
)

func (p *parser) checkResponseFormat(o objectValue) (wrong string) {
	kind, hasSchema, wrongSchema := "", false, ""
	wrong = p.eachKnown(o, formatMembers, "", "%s in it", func(name string, v objectValue) string {
		if name == "type" {
			kind = v.Str
		} else {
			hasSchema, wrongSchema = true, p.checkJSONSchema(v)
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
	return wrong
}

func (p *parser) checkJSONSchema(o objectValue) (wrong string) {
	named, hasSchema := false, false
	wrong = p.eachKnown(o, schemaMembers, "json_schema.", "%s in json_schema", func(name string, v objectValue) string {
		switch name {
		case "name":
			named = true
		case "schema":
			hasSchema = true
			p.request.structured = structuredOutput{guided: "guided_json", value: v.span()}
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

// structuredMembers are the members of structured_outputs.
var structuredMembers = map[string]memberCheck{
	"json":                   func(v gjson.Result) bool { return v.IsObject() || isText(v) },
	"regex":                  isText,
	"choice":                 isTexts,
	"grammar":                isText,
	"json_object":            func(v gjson.Result) bool { return v.Type == gjson.True },
	"disable_any_whitespace": gjson.Result.IsBool,
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

func (p *parser) checkStructuredOutputs(o objectValue) (wrong string) {
	found, s := "", structuredOutput{}
	wrong = p.eachKnown(o, structuredMembers, "", "%s in it", func(name string, v objectValue) string {
		switch {
		case name == "disable_any_whitespace":
			s.disablesWhitespace = true
		case found != "":
			return "both " + found + " and " + name
		default:
			found, s.guided, s.value = name, "guided_"+name, v.span()
		}
		return ""
	})
	if s.guided == "guided_json_object" {
		s.guided = guidedJSONObject
	}
	if wrong == "" && found == "" {
		wrong = "an object without any of them"
	}
	p.request.structured = s
	return wrong
}

// respell replaces response_format or structured_outputs by what versions before SinceStructuredOutputs have for it.
func (s *splicer) respell() {
	r := s.request
	if r.structured.guided == "" {
		return
	}
	value := bytes.Clone(r.body[r.structured.value.start:r.structured.value.end])
	if r.structured.guided == guidedJSONObject {
		value = []byte(`{"type":"json_object"}`)
	}
	id := fieldResponseFormat
	if r.has(fieldStructuredOutputs) {
		id = fieldStructuredOutputs
	}
	m := r.find(id)
	member := append([]byte(`"`+r.structured.guided+`":`), value...)
	s.setPart(id, member, span{m.name, m.end})
}

// optionsWithReceipt describes stream_options where receipts are on.
var optionsWithReceipt = field{
	name:     "stream_options",
	expected: "an object with at the most include_receipt, include_usage and, beside that, continuous_usage_stats (true or false)",
}

// The members of stream_options.
const (
	usageOption = iota
	continuousOption
	receiptOption
)

var optionNames = []string{"include_usage", "continuous_usage_stats", "include_receipt"}

// readStreamOptions reads stream_options. continuous_usage_stats needs include_usage, because vLLM ignores it otherwise.
func readStreamOptions(p *parser, f *field) error {
	names := optionNames[:receiptOption]
	if p.limits.Receipts {
		f, names = &optionsWithReceipt, optionNames
	}
	if p.decoder.PeekKind() != '{' {
		return p.invalidKind(f, "")
	}
	r := p.request
	r.hasStreamOptions = true
	dropped := len(r.dropped)
	var values [3]byte // the first byte of each member's value; 0 if it is absent
	err := p.readNamed(names, func(at int) (kept bool, err error) {
		value, err := p.skipInvalid()
		if err == nil && value[0] != 't' && value[0] != 'f' {
			err = p.invalid(f, names[at]+" with "+Describe(value))
		}
		if err != nil {
			return false, err
		}
		values[at] = value[0]
		if at == usageOption {
			r.includeUsage = span{p.offset() - len(value), p.offset()}
		}
		return at != receiptOption, nil
	}, func(name string) error { return p.invalid(f, strconv.Quote(apierr.Clip(name))+" in it") })
	if err != nil {
		return err
	}
	r.localOption = len(r.dropped) > dropped
	r.IncludeUsage, r.continuousUsage, r.IncludeReceipt = values[usageOption] == 't', values[continuousOption] == 't', values[receiptOption] == 't'
	if r.continuousUsage && !r.IncludeUsage || values[continuousOption] == 'f' && values[usageOption] == 0 {
		return p.invalid(f, "continuous_usage_stats without include_usage: true")
	}
	return nil
}

// maxRepetition limits the numbers in repetition_detection: some versions of vLLM fail without a reason at huge ones.
const maxRepetition = 1024

func (p *parser) checkRepetitionDetection(o objectValue) (wrong string) {
	values := map[string]int64{"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}
	wrong = p.each(o, func(name string, v objectValue) string {
		if _, known := values[name]; !known {
			return strconv.Quote(apierr.Clip(name)) + " in it"
		}
		n, err := strconv.ParseInt(v.Raw, 10, 64)
		if v.Type != gjson.Number || err != nil || n < 0 || n > maxRepetition {
			return v.described(name)
		}
		values[name] = n
		return ""
	})
	switch {
	case wrong != "":
	case values["min_count"] < 2:
		wrong = "min_count " + strconv.FormatInt(values["min_count"], 10) + " (0 when absent)"
	case values["min_pattern_size"] > values["max_pattern_size"]:
		wrong = "a min_pattern_size over max_pattern_size (0 when absent)"
	}
	return wrong
}

// readXArgs reads vllm_xargs. Its names are checked when the model is known.
func (p *parser) readXArgs(o objectValue) (wrong string) {
	return p.each(o, func(name string, v objectValue) string {
		p.xargs = append(p.xargs, name)
		scalars := !v.IsObject()
		if v.IsArray() {
			v.ForEach(func(_, element gjson.Result) bool {
				scalars = !element.IsObject() && !element.IsArray() && element.Type != gjson.Null
				return scalars
			})
		}
		if !scalars {
			return v.described(apierr.Clip(name))
		}
		return ""
	})
}

// checkXArgs returns an error if vllm_xargs has a name that the request's model does not take.
func (p *parser) checkXArgs(model *Model) error {
	for _, name := range p.xargs {
		if !model.unknown && !slices.Contains(model.XArgs, name) {
			return apierr.InvalidField("vllm_xargs", "vllm_xargs: got the name "+strconv.Quote(apierr.Clip(name))+
				"; expected one of the names that the operator lists for this model"+listed(model.XArgs))
		}
	}
	return nil
}

// listed returns names for the end of a sentence.
func listed(names []string) string {
	if len(names) == 0 {
		return ", which are none"
	}
	return ": " + strings.Join(names, ", ")
}
