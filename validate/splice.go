package validate

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// BestOf says what becomes of best_of on its way to a backend.
type BestOf uint8

const (
	// KeepBestOf sends it as it came, to a backend that honours it.
	KeepBestOf BestOf = iota
	// DropBestOf leaves it out: it equals n, so there is nothing to choose.
	DropBestOf
	// EmulateBestOf asks for best_of choices with their log-probabilities, for the gateway to choose among.
	EmulateBestOf
)

// Edits are the changes between what the client sent and what a backend gets. Beside them, a member whose value is
// null goes, and a stream asks for its usage event.
type Edits struct {
	Model     string // the checkpoint's name
	MaxTokens int64  // 0: as it came
	BestOf    BestOf
	TokenIDs  bool // ask for the ids of tokens, which no client can
}

// Upstream is the body for a backend: the client's bytes with the edits spliced in. It shares the client's bytes, so
// it costs no copy of the prompt.
func (r *Request) Upstream(e Edits) Body {
	s := splicer{request: r}
	s.replace(fieldModel, quoted(e.Model))
	if e.MaxTokens > 0 {
		s.replace(fieldMaxTokens, strconv.AppendInt(nil, e.MaxTokens, 10))
	}
	switch e.BestOf {
	case KeepBestOf:
	case DropBestOf:
		s.drop = fieldBestOf
	case EmulateBestOf:
		s.drop = fieldBestOf
		s.replace(fieldN, strconv.AppendInt(nil, r.BestOf, 10))
		if r.Logprobs == Absent {
			s.replace(fieldLogprobs, []byte("0"))
		}
	}
	if r.Stream && !r.IncludeUsage {
		s.askForUsage()
	}
	if e.TokenIDs {
		s.extra = askForTokenIDs(r)
	}
	return s.run()
}

// askForTokenIDs has vLLM name tokens by their ids among log-probabilities, and list the ids of prompt and completion
// where its version can; not with echo, whose text vLLM leaves out where it lists ids.
func askForTokenIDs(r *Request) string {
	if r.Echo {
		return `,"return_tokens_as_token_ids":true`
	}
	return `,"return_tokens_as_token_ids":true,"return_token_ids":true`
}

// splicer cuts and pastes at the offsets of the members.
type splicer struct {
	request *Request
	drop    fieldID // a field to leave out; 0 (model, which is never dropped) for none
	extra   string  // members for the end, that are no fields
	edits   [5]edit
	count   int
	out     Body
	copied  int // how far the client's bytes have been taken over
}

// edit is a new value for a field, or a piece of one.
type edit struct {
	field fieldID
	value []byte
	at    span // where, when only a piece of the value changes
	done  bool
}

func (s *splicer) replace(id fieldID, value []byte) {
	s.edits[s.count] = edit{field: id, value: value}
	s.count++
}

// askForUsage has the stream end with its usage, which the ledger needs.
func (s *splicer) askForUsage() {
	r := s.request
	switch {
	case !r.streamOptionsIn:
		s.replace(fieldStreamOptions, []byte(`{"include_usage":true}`))
	case r.usageValue.end > 0:
		s.replace(fieldStreamOptions, []byte("true"))
		s.edits[s.count-1].at = r.usageValue
	default:
		inside := r.find(fieldStreamOptions).value + 1
		s.replace(fieldStreamOptions, []byte(`"include_usage":true`))
		s.edits[s.count-1].at = span{inside, inside}
	}
}

func (s *splicer) run() Body {
	r := s.request
	lastKept := -1 // the end of the last member that stays
	for i := range r.members {
		m := &r.members[i]
		e := s.editOf(m.field)
		switch {
		case e != nil:
			e.done = true
			at := e.at
			if at.end == 0 {
				at = span{m.value, m.end}
			}
			s.paste(at, e.value)
			lastKept = m.end
		case m.null || (m.field == s.drop && s.drop != fieldModel):
			s.paste(s.whole(i, lastKept >= 0), nil)
		default:
			lastKept = m.end
		}
	}
	s.append(lastKept)
	s.take(len(r.body))
	return s.out
}

// whole is the member with the one comma that goes with it: the one before it where a member that stays is before
// it, else the one behind.
func (s *splicer) whole(i int, keptBefore bool) span {
	r := s.request
	m := r.members[i]
	if keptBefore {
		return span{s.comma(r.members[i-1].end), m.end}
	}
	if i+1 < len(r.members) {
		return span{m.name, s.comma(m.end) + 1}
	}
	return span{m.name, m.end}
}

// comma is the offset of the comma that follows a value.
func (s *splicer) comma(from int) int {
	for s.request.body[from] != ',' {
		from++
	}
	return from
}

// append adds the edits whose fields the client did not send, behind the last member that stays.
func (s *splicer) append(lastKept int) {
	var added []byte
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
	added = append(added, s.extra...)
	if added != nil {
		at := max(lastKept, s.copied)
		s.paste(span{at, at}, added)
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

// paste puts value in the place of the bytes at.
func (s *splicer) paste(at span, value []byte) {
	s.take(at.start)
	if len(value) > 0 {
		s.out.segments = append(s.out.segments, value)
		s.out.size += int64(len(value))
	}
	s.copied = at.end
}

func (s *splicer) take(until int) {
	if until > s.copied {
		s.out.segments = append(s.out.segments, s.request.body[s.copied:until])
		s.out.size += int64(until - s.copied)
		s.copied = until
	}
}

// quoted is s as JSON. A checkpoint's name is configuration, so it is valid UTF-8.
func quoted(s string) []byte {
	out, _ := jsontext.AppendQuote(nil, s) // an error only marks invalid UTF-8, which is replaced
	return out
}
