package lamini

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
	"basegate/validate"
)

// property is a name of an output_type and the type of its value.
type property struct{ name, kind string }

// outputTypes are the properties of an output in their order.
type outputTypes []property

// kinds maps each type to that of a JSON schema.
var kinds = map[string]string{"str": "string", "int": "integer", "float": "number", "bool": "boolean"}

// parseTypes parses an output_type, which must be valid JSON without duplicate names. It returns what is wrong with it, or
// "".
func parseTypes(value []byte) (types outputTypes, wrong string) {
	object := gjson.ParseBytes(value)
	if !object.IsObject() {
		return nil, validate.Describe(value)
	}
	object.ForEach(func(name, kind gjson.Result) bool {
		if kind.Type != gjson.String || kinds[kind.Str] == "" {
			wrong = strconv.Quote(apierr.Clip(name.Str)) + " with " + validate.Describe([]byte(kind.Raw))
		}
		types = append(types, property{name.Str, kind.Str})
		return wrong == ""
	})
	if len(types) == 0 {
		wrong = "an object without names"
	}
	return types, wrong
}

// schema returns the JSON schema of the outputs: all names are required, in their order, and no others are allowed.
func (t outputTypes) schema() []byte {
	properties, required := []byte{'{'}, []byte{'['}
	for i, p := range t {
		if i > 0 {
			properties, required = append(properties, ','), append(required, ',')
		}
		properties, required = appendText(properties, p.name), appendText(required, p.name)
		properties = append(properties, `:{"type":"`+kinds[p.kind]+`"}`...)
	}
	schema := append([]byte(`{"type":"object","properties":`), properties...)
	schema = append(append(schema, `},"required":`...), required...)
	return append(schema, `],"additionalProperties":false}`...)
}

// object returns an output as an object of the types, and reports whether it is one: an object with exactly these names,
// each once, and a value of its type.
func (t outputTypes) object(text string) (jsontext.Value, bool) {
	var values map[string]jsontext.Value
	// Unmarshal refuses duplicate names and invalid UTF-8.
	if json.Unmarshal([]byte(strings.TrimSpace(text)), &values) != nil || len(values) != len(t) {
		return nil, false
	}
	object := jsontext.Value("{")
	for i, p := range t {
		value, ok := values[p.name]
		if !ok || !p.accepts(value) {
			return nil, false
		}
		if i > 0 {
			object = append(object, ',')
		}
		object = append(appendText(object, p.name), ':')
		object = append(object, value...)
		if p.kind == "float" && !bytes.ContainsAny(value, ".eE") {
			object = append(object, ".0"...) // or clients would read an integer
		}
	}
	return append(object, '}'), true
}

// accepts reports whether a valid value has the property's type.
func (p property) accepts(value jsontext.Value) bool {
	switch kind := value.Kind(); p.kind {
	case "str":
		return kind == '"'
	case "int":
		return kind == '0' && !bytes.ContainsAny(value, ".eE")
	case "float":
		return kind == '0'
	default:
		return kind == 't' || kind == 'f'
	}
}
