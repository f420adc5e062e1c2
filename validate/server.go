package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Server is what is known of the server of a backend. The zero value is one that has every field.
type Server struct {
	Version Version
	Rust    bool // vLLM's Rust frontend answers

	completions, chat *fieldSet // that it describes itself; nil if it does not
	guided            bool      // it describes guided_json without structured_outputs
}

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

func (s *Server) described(document []byte, name string, of *schema) *fieldSet {
	properties := gjson.GetBytes(document, "components.schemas."+name+".properties")
	if !properties.Get(fields[of.prompt].name).Exists() {
		return nil
	}
	s.guided = s.guided || properties.Get("guided_json").Exists() && !properties.Get("structured_outputs").Exists()
	known := new(fieldSet)
	properties.ForEach(func(name, _ gjson.Result) bool {
		if id, ours := of.byName[name.Str]; ours {
			known[id] = true
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

const orAnother = "; remove it or use another model"

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
				return r.unserved(l.field, r.schema.table[l.field].name, "expected "+l.expected), true
			}
		}
	}
	var known *fieldSet
	switch r.schema.prompt {
	case fieldPrompt:
		known = s.completions
	case fieldMessages:
		known = s.chat
	default: // the endpoints of the tokenizer, which no server describes
	}
	if u, found := r.tooNew(s, known); found {
		return u, true
	}
	if i := slices.IndexFunc(r.members, func(m member) bool { return !m.null && s.lacks(known, m.field) }); i >= 0 {
		id := r.members[i].field
		return r.unserved(id, r.schema.table[id].name, "expected a server that has it; this one describes no such field"+orAnother), true
	}
	return Unserved{}, false
}

// lacks reports whether the server describes its requests, and has no such field among theirs. The gateway itself handles
// user and best_of, and respells structured output for servers that take it as guided_json and the like.
func (s *Server) lacks(known *fieldSet, id fieldID) bool {
	if known == nil || !id.sent() || known[id] {
		return false
	}
	return id != fieldUser && id != fieldBestOf && (id != fieldStructuredOutputs || !s.TakesGuided())
}

// tooNew returns the newest field that the server's version does not have. The server's own description goes before the version.
func (r *Request) tooNew(s *Server, known *fieldSet) (u Unserved, found bool) {
	var newest Version
	for i := range laterFields {
		l := &laterFields[i]
		name := fields[l.field].name
		older := s.Version.Before(l.since) || l.field == fieldStructuredOutputs && s.TakesGuided()
		if !older || !r.has(l.field) || (l.used != nil && !l.used(r)) || (l.name == name && known != nil && known[l.field]) {
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
	of, known := completion, s.completions
	if ofChat {
		of, known = chat, s.chat
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

// Version is a version of vLLM. The zero value is one that is not known.
type Version struct{ Major, Minor, Patch int }

// ParseVersion parses what vLLM reports at /version. A suffix (rc1, .post1, +cpu) is ignored. The zero Version is
// returned for text that is not a version, and for 0.1.dev, which a build without tags reports whatever its age.
func ParseVersion(text string) Version {
	var v Version
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch); n < 2 || strings.HasPrefix(text, "0.1.dev") {
		return Version{}
	}
	return v
}

// Known reports whether the version is known.
func (v Version) Known() bool { return v != Version{} }

// Before reports whether v is known and older than w.
func (v Version) Before(w Version) bool {
	return v.Known() && cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch)) < 0
}

// String returns the version without a patch of 0.
func (v Version) String() string {
	if v.Patch == 0 {
		return fmt.Sprintf("%d.%d", v.Major, v.Minor)
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}

// SinceStructuredOutputs is the first version with structured_outputs, and the first whose completions follow a
// response_format of type json_schema.
var SinceStructuredOutputs = Version{Minor: 11}

// sinceLogprobTokenIDs is the first version with logprob_token_ids; some before ignore it.
var sinceLogprobTokenIDs = Version{Minor: 26}

// TakesLogprobTokenIDs reports whether the server has logprob_token_ids, as far as that is known.
func (s *Server) TakesLogprobTokenIDs() bool {
	if s.completions != nil {
		return s.completions[fieldLogprobTokenIDs]
	}
	return !s.Rust && !s.Version.Before(sinceLogprobTokenIDs)
}

// laterField is a field, or a use of a field, that not every version of vLLM has.
type laterField struct {
	field fieldID
	name  string // what the error message calls it
	since Version
	used  func(*Request) bool // nil: whenever the field is present
}

// laterFields are in the order in which they are looked for. Those that are older than the oldest version supported, 0.6,
// are not listed, nor is structured output, which is respelled.
var laterFields = []laterField{
	{fieldBadWords, "bad_words", Version{Minor: 26}, func(r *Request) bool { return r.Kind != Messages }},
	{fieldBadWords, "bad_words", Version{Minor: 11}, func(r *Request) bool { return r.Kind == Messages }},
	{fieldMaxCompletionTokens, "max_completion_tokens", Version{Minor: 6, Patch: 4}, nil},
	{fieldTruncatePromptTokens, "truncate_prompt_tokens -1", Version{Minor: 20}, func(r *Request) bool { return r.Truncate == TruncateToFit }},
	{fieldTruncationSide, "truncation_side", Version{Minor: 24}, nil},
	{fieldReturnTokenIDs, "return_token_ids", Version{Minor: 10, Patch: 1}, nil},
	{fieldCacheSalt, "cache_salt", Version{Minor: 10}, nil},
	{fieldLogprobTokenIDs, "logprob_token_ids", sinceLogprobTokenIDs, nil},
	{fieldStreamInterval, "stream_interval", Version{Minor: 27}, nil},
	{fieldRepetitionDetection, "repetition_detection", Version{Minor: 32}, nil},
	{fieldReturnWeightVersions, "return_weight_versions", Version{Minor: 33}, nil},
	{fieldXArgs, "vllm_xargs", Version{Minor: 10}, nil},
	{fieldReasoningEffort, "reasoning_effort", Version{Minor: 10, Patch: 1}, nil},
	{fieldIncludeReasoning, "include_reasoning", Version{Minor: 10, Patch: 1}, nil},
	{fieldReturnTokenStrs, "return_token_strs", Version{Minor: 9}, func(r *Request) bool { return r.returnTokenStrs }},
	{fieldStructuredOutputs, "structured_outputs.disable_any_whitespace", SinceStructuredOutputs, func(r *Request) bool { return r.structured.disablesWhitespace }},
}
