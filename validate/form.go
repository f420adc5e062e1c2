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
	Name string
	// Field is the completion's field that it stands for; empty for a field that only the form has, which no backend
	// receives.
	Field    string
	Required bool
	// Expected describes the values that are valid, and Read reads one. Without them, they are those of Field.
	Expected string
	Read     Reader
}

// NewForm returns the Form with these fields. conflicts are checked before those of a completion. example is a body, for
// the message about one that is no object, and advice has sentences about fields that the form has not, by their names; for
// the other fields of a completion there is one that names /v1/completions.
func NewForm(example string, fieldRows []FormField, conflicts []Conflict, advice map[string]string) *Form {
	table := fields
	f := &Form{schema{
		table: &table, byName: map[string]fieldID{}, advice: maps.Clone(advice), example: example,
		conflicts: slices.Concat(conflicts, completionConflicts), prompt: fieldPrompt,
	}}
	s, own := &f.schema, fieldOwn
	for _, row := range fieldRows {
		id, known := completion.byName[row.Field]
		if !known {
			id = own
			own++
		}
		table[id].name = row.Name
		if row.Read != nil {
			table[id].expected, table[id].read = row.Expected, row.Read
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
	return generationRequest(&f.schema, body, limits)
}

// Integer returns a Reader of an integer from lo to hi. store may be nil.
func Integer(lo, hi int64, store func(*Request, int64)) Reader {
	return integer(between(lo, hi), store)
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

// Describe returns a short description of a JSON value, for an error message.
func Describe(value []byte) string { return describe(value) }

// NameOf returns the client's name of a completion's field.
func (r *Request) NameOf(field string) string {
	for _, id := range r.schema.fields {
		if id < fieldOwn && fields[id].name == field {
			return r.schema.table[id].name
		}
	}
	return field
}

// MaxTokensName returns the client's name of the field that holds MaxTokens.
func (r *Request) MaxTokensName() string {
	if r.has(fieldMaxCompletionTokens) {
		return fields[fieldMaxCompletionTokens].name
	}
	return r.NameOf("max_tokens")
}

// SentAs returns the name under which the client sent a field of a backend's, or "" if the client did not send it.
func (r *Request) SentAs(field string) string {
	for i := range r.members {
		if m := &r.members[i]; !m.null && m.field < fieldOwn && fields[m.field].name == field {
			return r.schema.table[m.field].name
		}
	}
	return ""
}

// Value returns the JSON of a field as the client sent it, or nil if it is absent or null. It must not be modified.
func (r *Request) Value(name string) []byte {
	if !r.Has(name) {
		return nil
	}
	m := r.find(r.schema.byName[name])
	return r.body[m.value:m.end]
}

// Constrain makes Upstream ask for an output that conforms to a JSON schema.
func (r *Request) Constrain(schema []byte) { r.outputSchema = schema }

// outputConstraint returns the member of a backend's body that holds the schema of Constrain.
func (r *Request) outputConstraint(guided bool) []byte {
	if guided {
		return slices.Concat([]byte(`,"guided_json":`), r.outputSchema)
	}
	return slices.Concat([]byte(`,"structured_outputs":{"json":`), r.outputSchema, []byte("}"))
}

// LimitTotal makes MaxTokens what the longest prompt leaves of total tokens, or of the context if total is 0. MaxTokens is
// 1 until the prompts have been counted and the caller sets it.
func (r *Request) LimitTotal(total int64) {
	r.total, r.hasTotal, r.MaxTokens = total, true, 1
}

// Total returns the total of LimitTotal, and whether there is one.
func (r *Request) Total() (tokens int64, limited bool) { return r.total, r.hasTotal }
