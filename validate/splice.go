package validate

import (
	"bytes"
	"io"
	"net"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Body is a request body made of segments, some of which are the client's own bytes.
type Body struct {
	segments net.Buffers
	size     int64
}

// Size returns the length in bytes.
func (b Body) Size() int64 { return b.size }

// Reader returns a new reader of the whole body, one for each attempt.
func (b Body) Reader() io.Reader {
	segments := slices.Clone(b.segments) // reading consumes them
	return &segments
}

// Append appends the whole body to dst.
func (b Body) Append(dst []byte) []byte { return append(dst, bytes.Join(b.segments, nil)...) }

func (b *Body) add(segments ...[]byte) {
	for _, s := range segments {
		if len(s) > 0 {
			b.segments = append(b.segments, s)
			b.size += int64(len(s))
		}
	}
}

// BestOf says how best_of is sent to a backend.
type BestOf uint8

// The values of BestOf.
const (
	KeepBestOf    BestOf = iota // unchanged, to a backend that honours it
	DropBestOf                  // not at all: it equals n, so there is nothing to choose
	EmulateBestOf               // as n, with log-probabilities, by which the gateway chooses
)

// Edits are the changes that Request.Upstream makes to the client's body. In addition, it removes members whose value
// is null (of the body, of messages, tools and what they hold, and of the objects of structured output, repetition_detection
// and vllm_xargs), the members of messages that only clients use and the fields that no backend has, renames the other fields
// of a Form, and requests the usage event of a stream.
type Edits struct {
	Model     string // the checkpoint's name
	MaxTokens int64  // 0: unchanged
	BestOf    BestOf
	TokenIDs  bool   // name tokens by their ids, and list the ids of prompt and completion, whether the client asked for it or not
	Guided    bool   // respell structured output for a server that TakesGuided
	NextIDs   []byte // a JSON array: name these tokens in place of the likeliest ones of a Loglikelihood
	Priority  int64  // of a backend that schedules by it; 0, which is vLLM's default, is not sent
}

// Upstream returns the body for a backend: the client's bytes, which it shares, with the edits spliced in.
func (r *Request) Upstream(e Edits) Body {
	s := splicer{request: r, omitted: fieldModel}
	s.setField(fieldModel, quoted(e.Model))
	if e.MaxTokens > 0 {
		s.setField(r.maxTokensField(), strconv.AppendInt(nil, e.MaxTokens, 10))
	}
	switch e.BestOf {
	case KeepBestOf:
	case DropBestOf:
		s.omitted = fieldBestOf
	case EmulateBestOf:
		s.omitted = fieldBestOf
		s.setField(fieldN, strconv.AppendInt(nil, r.BestOf, 10))
		if r.Logprobs == Absent {
			s.setField(fieldLogprobs, []byte("0"))
		}
	}
	if r.Stream && (!r.IncludeUsage || r.localOption) {
		s.requestUsage()
	}
	if e.TokenIDs {
		s.setField(fieldReturnTokensAsTokenIDs, []byte("true"))
		if !r.Echo { // vLLM leaves the echoed text out if it lists ids
			s.setField(fieldReturnTokenIDs, []byte("true"))
		}
	}
	if e.NextIDs != nil {
		s.setField(fieldLogprobs, []byte("1"))
		s.setField(fieldLogprobTokenIDs, e.NextIDs)
	}
	if e.Guided {
		s.respell()
	}
	switch {
	case r.outputSchema != nil && e.Guided:
		s.added = append(append(s.added, `,"guided_json":`...), r.outputSchema...)
	case r.outputSchema != nil:
		s.added = append(append(append(s.added, `,"structured_outputs":{"json":`...), r.outputSchema...), '}')
	}
	if e.Priority != 0 { // no field of the client's: the validation refuses it
		s.added = strconv.AppendInt(append(s.added, `,"priority":`...), e.Priority, 10)
	}
	return s.splice()
}

// splicer replaces, removes and adds members at their offsets in the client's body.
type splicer struct {
	request *Request
	omitted fieldID // a field to remove; fieldModel, which is never removed, if there is none
	edits   [10]edit
	count   int    // of edits
	added   []byte // members to add that no client can send, each after a comma
	out     Body
	copied  int // offset in the client's body up to which it has been copied or replaced
}

// edit is a new value of a field, or of a part of it.
type edit struct {
	field fieldID
	value []byte
	part  span // the bytes to replace if they are only a part of the value
	done  bool
}

func (s *splicer) setField(id fieldID, value []byte) {
	s.edits[s.count] = edit{field: id, value: value}
	s.count++
}

func (s *splicer) setPart(id fieldID, value []byte, part span) {
	s.setField(id, value)
	s.edits[s.count-1].part = part
}

// requestUsage requests the usage event of a stream, which the ledger needs.
func (s *splicer) requestUsage() {
	r := s.request
	switch {
	case r.localOption && r.continuousUsage:
		s.setField(fieldStreamOptions, []byte(`{"include_usage":true,"continuous_usage_stats":true}`))
	case r.localOption, !r.hasStreamOptions:
		s.setField(fieldStreamOptions, []byte(`{"include_usage":true}`))
	case r.includeUsage.end > 0:
		s.setPart(fieldStreamOptions, []byte("true"), r.includeUsage)
	default: // an empty object
		inside := r.find(fieldStreamOptions).value + 1
		s.setPart(fieldStreamOptions, []byte(`"include_usage":true`), span{inside, inside})
	}
}

func (s *splicer) splice() Body {
	r := s.request
	lastKept := -1 // offset after the last member that is kept; -1 before the first
	for i := range r.members {
		m := &r.members[i]
		e := s.editOf(m.field)
		switch {
		case e != nil:
			e.done = true
			s.rename(m)
			at := e.part
			if at.end == 0 {
				at = span{m.value, m.end}
			}
			s.replace(at, e.value)
			lastKept = m.end
		case m.null || !m.field.sent() || (m.field == s.omitted && s.omitted != fieldModel):
			s.replace(s.memberSpan(i, lastKept >= 0), nil)
		default:
			s.rename(m)
			s.dropMembers(m)
			lastKept = m.end
		}
	}
	s.addMissing(lastKept)
	s.copyUntil(len(r.body))
	return s.out
}

// rename replaces a form's name of a field by the backend's.
func (s *splicer) rename(m *member) {
	if name := fields[m.field].name; s.request.schema.table[m.field].name != name {
		s.replace(span{m.name, m.value}, []byte(`"`+name+`":`))
	}
}

// dropMembers removes what is not sent to a backend of the objects in a member's value.
func (s *splicer) dropMembers(m *member) {
	dropped := s.request.dropped
	first, _ := slices.BinarySearchFunc(dropped, m.value, func(at span, start int) int { return at.start - start })
	for _, at := range dropped[first:] {
		if at.start >= m.end {
			return
		}
		s.replace(at, nil)
	}
}

// memberSpan returns a member with the one comma to remove with it: the one before it if an earlier member is kept.
func (s *splicer) memberSpan(i int, keptBefore bool) span {
	r := s.request
	m := r.members[i]
	if keptBefore {
		return span{s.commaAfter(r.members[i-1].end), m.end}
	}
	if i+1 < len(r.members) {
		return span{m.name, s.commaAfter(m.end) + 1}
	}
	return span{m.name, m.end}
}

// commaAfter returns the offset of the comma that follows a value.
func (s *splicer) commaAfter(valueEnd int) int {
	return valueEnd + bytes.IndexByte(s.request.body[valueEnd:], ',')
}

// addMissing adds the edited fields that the client did not send after the last member that is kept.
func (s *splicer) addMissing(lastKept int) {
	added := s.added
	for i := range s.count {
		e := &s.edits[i]
		if e.done {
			continue
		}
		added = append(added, `,"`...)
		added = append(added, fields[e.field].name...)
		added = append(added, `":`...)
		added = append(added, e.value...)
	}
	if added != nil {
		at := max(lastKept, s.copied)
		s.replace(span{at, at}, added)
	}
}

func (s *splicer) editOf(id fieldID) *edit {
	for i := range s.count {
		if s.edits[i].field == id {
			return &s.edits[i]
		}
	}
	return nil
}

// replace copies the client's bytes before a span and writes value in place of the span.
func (s *splicer) replace(at span, value []byte) {
	s.copyUntil(at.start)
	s.out.add(value)
	s.copied = at.end
}

// copyUntil adds the client's bytes up to an offset as a segment.
func (s *splicer) copyUntil(end int) {
	if end > s.copied {
		s.out.add(s.request.body[s.copied:end])
		s.copied = end
	}
}

// quoted returns s as a JSON string. The name of a checkpoint comes from the configuration, so it is valid UTF-8.
func quoted(s string) []byte {
	out, _ := jsontext.AppendQuote(nil, s) // an error only reports invalid UTF-8, which is replaced
	return out
}
