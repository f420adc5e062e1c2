package validate

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
)

// DefaultMaxTokens is what vLLM generates at the most for a request that does not say max_tokens.
const DefaultMaxTokens = 16

// Absent is the value of Logprobs and PromptLogprobs in a request that does not have them.
const Absent = -1

// PromptKind tells the two kinds of prompt apart.
type PromptKind uint8

const (
	// Text prompts are strings: how many tokens they have only the tokenizer knows.
	Text PromptKind = iota
	// Tokens prompts are token ids: their number is exact.
	Tokens
)

// Request is a body that has passed, with the values that the gateway decides by.
type Request struct {
	Model string // the short id

	Kind         PromptKind
	Prompts      int   // how many prompts, at least 1
	PromptTokens int64 // tokens of all prompts together; 0 for Text

	MaxTokens      int64 // DefaultMaxTokens when absent
	N              int64 // 1 when absent
	BestOf         int64 // 0 when absent
	Logprobs       int   // Absent, or 0 and more
	PromptLogprobs int   // Absent, or 0 and more
	Echo, Stream   bool
	IncludeUsage   bool   // the client asked for the usage event
	User           string // the tag, empty when absent
	HasUser        bool

	body            []byte
	end             int // of the body's closing brace
	members         []member
	longestPrompt   int64 // tokens of the longest token-id prompt
	usageValue      span  // of include_usage's value, where stream_options has it
	streamOptionsIn bool  // stream_options is there and not null
}

// member is one top-level member: offsets into the body of its name, its value and the value's end.
type member struct {
	field            fieldID
	at               int // its ordinal in the body
	null             bool
	name, value, end int
}

type span struct{ start, end int }

func newRequest(body []byte) *Request {
	return &Request{body: body, MaxTokens: DefaultMaxTokens, N: 1, Logprobs: Absent, PromptLogprobs: Absent}
}

func (r *Request) find(id fieldID) *member {
	for i := range r.members {
		if r.members[i].field == id {
			return &r.members[i]
		}
	}
	return nil
}

// Choices is how many choices the whole answer will have.
func (r *Request) Choices() int { return r.Prompts * int(r.N) }

// Candidates is how many continuations of one prompt are generated, and so charged.
func (r *Request) Candidates() int64 { return max(r.N, r.BestOf) }

// LongestPrompt is the number of tokens of the longest prompt; 0 for Text.
func (r *Request) LongestPrompt() int64 { return r.longestPrompt }

// Scored tells whether the prompt's own log-probabilities are asked for, which costs vLLM memory for the whole
// vocabulary at every position. To choose the best of several asks for log-probabilities too.
func (r *Request) Scored() bool {
	return r.PromptLogprobs != Absent || (r.Echo && (r.Logprobs != Absent || r.BestOf > r.N))
}

// PromptBytes is the length of the prompt as it stands in the body, which no text in it exceeds.
func (r *Request) PromptBytes() int64 {
	m := r.find(fieldPrompt)
	return int64(m.end - m.value)
}

// RawUser is the tag as it stands in the body, quotes and escapes included; nil when absent.
func (r *Request) RawUser() []byte {
	m := r.find(fieldUser)
	if m == nil || m.null {
		return nil
	}
	return r.body[m.value:m.end]
}

// UserTag is the tag where it is printable ASCII and so fits a header.
func (r *Request) UserTag() (string, bool) {
	if !r.HasUser || r.User == "" {
		return "", false
	}
	for i := range len(r.User) {
		if c := r.User[i]; c < ' ' || c > '~' {
			return "", false
		}
	}
	return r.User, true
}

// EachText calls yield with every text prompt, unescaped; the bytes are good until yield returns.
func (r *Request) EachText(yield func(text []byte) bool) {
	if r.Kind != Text {
		return
	}
	prompt := r.find(fieldPrompt)
	var scratch []byte
	for at := prompt.value; at < prompt.end; at++ {
		if r.body[at] != '"' {
			continue
		}
		end := closingQuote(r.body, at)
		quoted := r.body[at:end]
		text := quoted[1 : len(quoted)-1]
		at = end - 1
		if bytes.IndexByte(text, '\\') >= 0 {
			unescaped, err := jsontext.AppendUnquote(scratch[:0], quoted)
			if err != nil { // none can be: the decoder has passed it
				return
			}
			text, scratch = unescaped, unescaped
		}
		if !yield(text) {
			return
		}
	}
}

// closingQuote is the offset behind the string that begins at start.
func closingQuote(body []byte, start int) int {
	for i := start + 1; i < len(body); {
		quote := bytes.IndexByte(body[i:], '"')
		if quote < 0 {
			break
		}
		i += quote + 1
		escapes := i - 2
		for body[escapes] == '\\' {
			escapes--
		}
		if (i-2-escapes)%2 == 0 {
			return i
		}
	}
	return len(body)
}

// PromptLengths is how many tokens each of the token-id prompts has; nil for Text.
func (r *Request) PromptLengths() []int64 {
	if r.Kind != Tokens {
		return nil
	}
	lengths := make([]int64, 0, r.Prompts)
	inside := false // an array of ids, or between two of them
	prompt := r.find(fieldPrompt)
	for _, c := range r.body[prompt.value:prompt.end] {
		switch {
		case c == '[', c == ']':
			inside = false
		case c >= '0' && c <= '9' && !inside:
			inside = true
			lengths = append(lengths, 1)
		case c == ',' && inside:
			lengths[len(lengths)-1]++
		}
	}
	return lengths
}

func (r *Request) logprobsOf(id fieldID) int {
	if id == fieldLogprobs {
		return r.Logprobs
	}
	if id == fieldPromptLogprobs {
		return r.PromptLogprobs
	}
	return Absent
}

// contradiction finds a required field that is missing, then a pair that cannot stand together.
func (r *Request) contradiction() error {
	for _, id := range []fieldID{fieldModel, fieldPrompt} {
		if r.find(id) == nil {
			return apierr.InvalidField(fields[id].name, fmt.Sprintf("%s is missing; expected %s", fields[id].name, fields[id].want))
		}
	}
	for _, pair := range contradictions {
		if pair.holds(r) {
			return apierr.InvalidField(pair.param, pair.message(r))
		}
	}
	return nil
}

// contradictions are pairs of fields that cannot both be obeyed, in the order in which they are reported.
var contradictions = []struct {
	param   string
	holds   func(*Request) bool
	message func(*Request) string
}{
	{
		"best_of",
		func(r *Request) bool { return r.BestOf != 0 && r.BestOf < r.N },
		func(r *Request) string {
			return fmt.Sprintf("best_of is %d but n is %d: the best n are chosen out of best_of, so best_of must be at least n", r.BestOf, r.N)
		},
	},
	{
		"best_of",
		func(r *Request) bool { return r.Stream && r.BestOf > r.N },
		func(r *Request) string {
			return fmt.Sprintf("best_of %d over n %d cannot be streamed: the best are known only at the end; drop stream or best_of", r.BestOf, r.N)
		},
	},
	{
		"prompt_logprobs",
		func(r *Request) bool { return r.Stream && r.PromptLogprobs != Absent },
		func(*Request) string {
			return "prompt_logprobs cannot be streamed; drop stream, or use echo with logprobs"
		},
	},
	{
		"stream_options",
		func(r *Request) bool { return r.streamOptionsIn && !r.Stream },
		func(*Request) string { return "stream_options has a meaning only with stream: true" },
	},
}

func overLogprobs(name string, got []byte, limit int) string {
	return fmt.Sprintf("%s: got %s; expected an integer from 0 to %d, the limit of this model", name, describe(got), limit)
}

// describe tells what was got, short enough for a message.
func describe(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
	text := apierr.Clip(string(raw[:min(len(raw), 100)]))
	switch raw[0] {
	case '"':
		return "the string " + text
	case 't', 'f':
		return text + " (a boolean)"
	case 'n':
		return "null"
	case '[':
		return "an array"
	case '{':
		return "an object"
	default:
		if !utf8.ValidString(text) {
			return "something else"
		}
		return text
	}
}
