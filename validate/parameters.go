package validate

import (
	"bytes"
	"strconv"
)

// Parameters returns the request's parameters for a record of it: the numbers and booleans as decimal text without an
// exponent, by their names, and the names of the others, whose values may hold texts. The model, the prompt and what
// concerns only the answer's transport or its payer are none. Those of a Form have the names that a backend receives.
// Fields that are null are absent.
func (r *Request) Parameters() (scalars map[string]string, others []string) {
	scalars = make(map[string]string, len(r.members))
	for i := range r.members {
		m := &r.members[i]
		if m.null || m.field == fieldModel || m.field == r.schema.prompt || m.field >= fieldLocal {
			continue
		}
		switch m.field { //nolint:exhaustive // every other field is a parameter
		case fieldStream, fieldStreamOptions, fieldUser, fieldCacheSalt:
			continue
		}
		name := fields[m.field].name
		switch value := r.body[m.value:m.end]; value[0] {
		case '"', '[', '{':
			others = append(others, name)
		default:
			scalars[name] = decimal(value)
		}
	}
	if r.outputSchema != nil {
		others = append(others, fields[fieldStructuredOutputs].name)
	}
	return scalars, others
}

// decimal returns the shortest decimal form of a JSON number, and any other literal as it is.
func decimal(literal []byte) string {
	if bytes.ContainsAny(literal, ".eE") {
		if v, err := strconv.ParseFloat(string(literal), 64); err == nil {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
	}
	return string(literal)
}
