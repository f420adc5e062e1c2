package validate

import (
	"slices"

	"github.com/tidwall/gjson"
)

// Server is what is known of the server of a backend. The zero value is one that has every field.
type Server struct {
	Version Version
	Rust    bool // vLLM's Rust frontend answers

	completions, chat fieldSet // that it describes itself; zero if it does not
	guided            bool     // it describes guided_json without structured_outputs
}

// fieldSet is a set of fields.
type fieldSet [(allFields + 63) / 64]uint64

func (s *fieldSet) add(id fieldID) { s[id/64] |= 1 << (id % 64) }

func (s *fieldSet) has(id fieldID) bool { return s[id/64]&(1<<(id%64)) != 0 }

// Describe takes the names of the fields from the server's OpenAPI document, which corrects the table by versions. Without
// the schema of an endpoint's requests, the version decides alone.
func (s *Server) Describe(document []byte) {
	if !gjson.ValidBytes(document) {
		return
	}
	s.completions = s.described(document, "CompletionRequest", completion)
	s.chat = s.described(document, "ChatCompletionRequest", chat)
}

// TakesGuided reports whether structured output is respelled for the server: its version is before SinceStructuredOutputs, or
// it describes the fields of such a version.
func (s *Server) TakesGuided() bool { return s.guided || s.Version.Before(SinceStructuredOutputs) }

func (s *Server) described(document []byte, name string, of *schema) (known fieldSet) {
	properties := gjson.GetBytes(document, "components.schemas."+name+".properties")
	if !properties.Get(fields[of.prompt].name).Exists() {
		return fieldSet{}
	}
	s.guided = s.guided || properties.Get("guided_json").Exists() && !properties.Get("structured_outputs").Exists()
	properties.ForEach(func(name, _ gjson.Result) bool {
		if id, ours := of.byName[name.Str]; ours {
			known.add(id)
		}
		return true
	})
	return known
}

// String names the server for a message.
func (s *Server) String() string {
	name := "vLLM " + s.Version.String()
	if !s.Version.Known() {
		name = "a vLLM of an unknown version"
	}
	if s.Rust {
		name += " with its Rust frontend"
	}
	return name
}

// Unserved is a field of a request that a server cannot serve.
type Unserved struct {
	Field  string // the top-level field, as the client names it
	Name   string // the field with its member or value, for messages
	Reason string // for messages: what was expected, and what to do
}

const orAnother = "; leave it out or use another model"

// rustLimits are what vLLM's Rust frontend refuses or ignores.
var rustLimits = []struct {
	field    fieldID
	expected string
	used     func(*Request) bool
}{
	{fieldPrompt, "one prompt, a string or an array of token ids; send one at a time or use another model", func(r *Request) bool { return r.promptArray }},
	{fieldN, "1" + orAnother, func(r *Request) bool { return r.N > 1 }},
	{fieldBestOf, "1" + orAnother, func(r *Request) bool { return r.BestOf > 1 }},
	{fieldTruncatePromptTokens, "no echo beside it" + orAnother, func(r *Request) bool { return r.Echo && r.Truncate != 0 }},
	{fieldSpacesBetweenSpecialTokens, "true" + orAnother, func(r *Request) bool { return r.joinsSpecialTokens }},
	{fieldReturnWeightVersions, "vLLM's Python frontend" + orAnother, nil},
	{fieldStreamInterval, "vLLM's Python frontend" + orAnother, nil},
	{fieldTruncationSide, "vLLM's Python frontend" + orAnother, nil},
}

// Unserved returns a field of the request that the server cannot serve, as far as that is known, or false if it serves all.
func (r *Request) Unserved(s *Server) (Unserved, bool) {
	if s.Rust {
		for i := range rustLimits {
			l := &rustLimits[i]
			if r.has(l.field) && (l.used == nil || l.used(r)) {
				return r.unserved(l.field, fields[l.field].name, "expected "+l.expected), true
			}
		}
	}
	var known *fieldSet
	switch r.schema.prompt {
	case fieldPrompt:
		known = &s.completions
	case fieldMessages:
		known = &s.chat
	default:
		known = &fieldSet{}
	}
	if u, found := r.tooNew(s, known); found {
		return u, true
	}
	if i := slices.IndexFunc(r.members, func(m member) bool { return !m.null && s.lacks(known, m.field) }); i >= 0 {
		id := r.members[i].field
		return r.unserved(id, fields[id].name, "expected a server that has it; this one describes no such field"+orAnother), true
	}
	return Unserved{}, false
}

// lacks reports whether the server describes its requests, and has no such field among theirs. The gateway itself handles
// user and best_of, and respells structured output for servers that take it as guided_json and the like.
func (s *Server) lacks(known *fieldSet, id fieldID) bool {
	if *known == (fieldSet{}) || known.has(id) || id >= fieldLocal {
		return false
	}
	return id != fieldUser && id != fieldBestOf && (id != fieldStructuredOutputs || !s.TakesGuided())
}

// tooNew returns the field of the request that is newest in vLLM, if the server's version does not have it. The server's own
// description goes before the version.
func (r *Request) tooNew(s *Server, known *fieldSet) (u Unserved, found bool) {
	var newest Version
	for i := range laterFields {
		l := &laterFields[i]
		name := fields[l.field].name
		older := s.Version.Before(l.since) || l.field == fieldStructuredOutputs && s.TakesGuided()
		if !older || !r.has(l.field) || (l.used != nil && !l.used(r)) || (l.name == name && known.has(l.field)) {
			continue
		}
		if newest.Before(l.since) || !found {
			newest, found = l.since, true
			u = r.unserved(l.field, l.name, "expected vLLM "+l.since.String()+" or later, which is the first to have it"+orAnother)
		}
	}
	return u, found
}

func (r *Request) unserved(id fieldID, name, reason string) Unserved {
	return Unserved{Field: r.schema.table[id].name, Name: name, Reason: reason}
}

// Undescribed returns the fields that the server's version has by the table, and that its own description lacks.
func (s *Server) Undescribed(ofChat bool) (names []string) {
	of, known := completion, &s.completions
	if ofChat {
		of, known = chat, &s.chat
	}
	for _, id := range of.fields {
		newer := slices.ContainsFunc(laterFields, func(l laterField) bool {
			return l.field == id && l.name == fields[id].name && s.Version.Before(l.since)
		})
		if s.lacks(known, id) && !newer {
			names = append(names, fields[id].name)
		}
	}
	return names
}
