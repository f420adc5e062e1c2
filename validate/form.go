package validate

import (
	"maps"
	"slices"
	"strconv"
)

// Form is the field table of another API's form of a completion. A request in it is parsed, checked and spliced as a
// completion is, but its errors name the fields as the client does.
type Form struct{ schema schema }

// FormField is a field of a Form.
type FormField struct {
	Name     string
	Field    string // of a completion that it stands for; empty for a field that only the form has, which no backend receives
	Required bool
	Expected string // the values that are valid; with Read, or both are those of Field
	Read     Reader
}

// NewForm returns the Form with these fields. conflict returns a pair of fields that conflict, as the field that the error names
// and its message; it may be nil. The conflicts of a completion are checked after it. example is a body, for
// the message about one that is no object, and advice has sentences about fields that the form has not, by their names; for
// the other fields of a completion there is one that names /v1/completions.
func NewForm(example string, fieldRows []FormField, conflict func(*Request) (param, message string), advice map[string]string) *Form {
	f := &Form{schema{
		table: slices.Clone(fields), byName: map[string]fieldID{}, advice: maps.Clone(advice), example: example,
		conflict: conflict, prompt: fieldPrompt,
	}}
	s := &f.schema
	for _, row := range fieldRows {
		id, known := completion.byName[row.Field]
		if !known {
			id = fieldID(len(s.table))
			s.table = append(s.table, field{})
		}
		s.table[id].name = row.Name
		if row.Read != nil {
			s.table[id].expected, s.table[id].read = row.Expected, row.Read
		}
		s.fields = append(s.fields, id)
		s.byName[row.Name] = id
		if row.Required {
			s.required = append(s.required, id)
		}
	}
	for name := range completion.byName {
		if s.advice[name] == "" {
			s.advice[name] = "this form does not have it; POST /v1/completions does"
		}
	}
	return f
}

// Parse parses a body. Its errors are those of Completion.
func (f *Form) Parse(body []byte, limits Limits) (*Request, error) {
	return parse(&f.schema, body, limits)
}

// Value returns a Reader of any value of up to 256 KiB without duplicate names. check returns what is wrong with its JSON,
// for an error message, or "".
func Value(check func(value []byte) (wrong string)) Reader {
	return func(p *parser, f *field) (err error) {
		start := p.valueStart()
		if p.decoder.PeekKind() == '{' {
			_, err = p.readObject(f)
		} else {
			_, err = p.skipInvalid()
		}
		if err != nil {
			return err
		}
		value := p.body[start:p.offset()]
		if len(value) > maxStructured {
			return p.invalid(f, "a value of "+strconv.Itoa(len(value))+" bytes")
		}
		if wrong := check(value); wrong != "" {
			return p.invalid(f, wrong)
		}
		return nil
	}
}
