package validate

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
)

// DefaultMaxTokens is the max_tokens that vLLM applies to a request without one.
const DefaultMaxTokens = 16

// Absent is the value of Logprobs and PromptLogprobs in a request without them.
const Absent = -1

// TruncateToFit is the Truncate of a request whose prompts are cut to what fits the context beside max_tokens.
const TruncateToFit = -1

// PromptKind is the kind of a request's prompts.
type PromptKind uint8

// The values of PromptKind.
const (
	Text     PromptKind = iota // strings; only the tokenizer can count their tokens
	Tokens                     // token ids, so their number is exact
	Pairs                      // a context with continuations, which become a request of Tokens once they have been tokenized
	Messages                   // a conversation, which the model's template makes into one prompt; only the backend can count its tokens
)

// Request is a parsed body with the values that the gateway needs.
type Request struct {
	Model string // the short id

	Kind          PromptKind
	Prompts       int   // number of prompts, at least 1
	PromptTokens  int64 // sum over all prompts; 0 for Text and Messages
	LongestPrompt int64 // in tokens; 0 for Text and Messages

	MaxTokens      int64 // the default of the endpoint if absent
	MinTokens      int64 // at most MaxTokens
	Truncate       int64 // truncate_prompt_tokens: TruncateToFit, or a number of tokens; 0 if absent
	N              int64 // 1 if absent
	BestOf         int64 // 0 if absent
	Logprobs       int   // Absent, or at least 0
	PromptLogprobs int   // Absent, or at least 0
	Echo, Stream   bool
	IncludeUsage   bool   // the client asked for the usage event
	IncludeReceipt bool   // the client asked for the event with the receipt
	User           string // the user tag; empty if absent
	HasUser        bool
	PromptCacheKey string // takes the place of the prompt's beginning where requests are steered by it; empty if absent

	NoSpecialTokens bool // the tokenizer must add no special tokens to text prompts

	joinsSpecialTokens bool // spaces_between_special_tokens is false

	schema           *schema
	body             []byte
	members          []member
	hasStreamOptions bool // stream_options is present and not null
	includeUsage     span // of include_usage's value in stream_options; zero if absent
	continuousUsage  bool // continuous_usage_stats is true
	localOption      bool // stream_options has a member that is not for vLLM, or null
	returnTokenIDs   bool
	returnTokenStrs  bool
	promptArray      bool // the prompts are elements of an array
	structured       structuredOutput
	dropped          []span // null members of objects in the body, and others that no backend receives, in their order
	chat             conversation
	question         question

	outputSchema []byte // of Constrain; nil if there is none
	total        int64  // of LimitTotal
	hasTotal     bool
}

// member is a top-level member of the body.
type member struct {
	field            fieldID
	null             bool
	name, value, end int // offsets of the name, of the value and of the value's end
}

// span is a range of offsets in the body, without its end.
type span struct{ start, end int }

func newRequest(s *schema, body []byte) *Request {
	r := &Request{schema: s, body: body, MaxTokens: DefaultMaxTokens, N: 1, Logprobs: Absent, PromptLogprobs: Absent}
	r.chat.topLogprobs = Absent
	return r
}

func (r *Request) find(id fieldID) *member {
	for i := range r.members {
		if r.members[i].field == id {
			return &r.members[i]
		}
	}
	return nil
}

func (r *Request) has(id fieldID) bool {
	m := r.find(id)
	return m != nil && !m.null
}

// Has reports whether the client sent a field with this name that is not null.
func (r *Request) Has(name string) bool {
	id, known := r.schema.byName[name]
	return known && r.has(id)
}

// Choices returns the number of choices in the complete response.
func (r *Request) Choices() int { return r.Prompts * int(r.N) }

// Candidates returns the number of completions that are generated, and charged, for each prompt.
func (r *Request) Candidates() int64 { return max(r.N, r.BestOf) }

// Scored reports whether vLLM computes log-probabilities of the prompt's tokens, which costs it memory for the whole
// vocabulary at every position. Emulating best_of requests log-probabilities too.
func (r *Request) Scored() bool {
	return r.Kind == Pairs || r.PromptLogprobs != Absent || (r.Echo && (r.Logprobs != Absent || r.BestOf > r.N))
}

// Repeatable reports whether a second response is meant to be that of the first: nothing is sampled, or by a seed, or besides the
// scores of the prompt nothing but one token is asked for, or log-likelihoods are.
func (r *Request) Repeatable() bool {
	if r.Kind == Pairs {
		return true
	}
	scored := r.PromptLogprobs != Absent || r.Echo && r.Logprobs != Absent
	if r.Has("seed") || scored && r.MaxTokens == 1 {
		return true
	}
	temperature, err := strconv.ParseFloat(string(r.Value("temperature")), 64)
	return err == nil && temperature == 0
}

// Fields iterates over the names and the JSON of the fields that the client sent and that are not null, in their order. The JSON must
// not be modified.
func (r *Request) Fields() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range r.members {
			if m := &r.members[i]; !m.null && !yield(r.schema.table[m.field].name, r.body[m.value:m.end]) {
				return
			}
		}
	}
}

// ForgetBody ends the use of the body that the request was made of, whose buffer is about to be used again. Methods that
// return a part of it panic afterwards.
func (r *Request) ForgetBody() { r.body = nil }

// Body returns the body that the request was made of. It must not be modified.
func (r *Request) Body() []byte { return r.body }

// PromptJSON returns the JSON of the prompt, or of the messages, as the client sent it: at least as long as its text. It must not
// be modified.
func (r *Request) PromptJSON() []byte {
	m := r.find(r.schema.prompt)
	return r.body[m.value:m.end]
}

// CacheSalt returns the JSON of cache_salt, or nil if it is absent.
func (r *Request) CacheSalt() []byte { return r.valueOf(fieldCacheSalt) }

// RawUser returns the user tag's JSON, quotes and escapes included, or nil if it is absent.
func (r *Request) RawUser() []byte { return r.valueOf(fieldUser) }

// valueOf returns the JSON of a field as the client sent it, or nil if it is absent or null.
func (r *Request) valueOf(id fieldID) []byte {
	m := r.find(id)
	if m == nil || m.null {
		return nil
	}
	return r.body[m.value:m.end]
}

// NameOf returns the client's name of a completion's field.
func (r *Request) NameOf(field string) string {
	for _, id := range r.schema.fields {
		if id.sent() && fields[id].name == field {
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
	if r.schema == serving && field == fields[fieldLogprobTokenIDs].name { // Edits.NextIDs
		return fields[fieldContinuations].name
	}
	for i := range r.members {
		if m := &r.members[i]; !m.null && m.field.sent() && fields[m.field].name == field {
			name := r.schema.table[m.field].name
			if _, sent := questions.byName[name]; r.schema == serving && !sent {
				return ""
			}
			return name
		}
	}
	return ""
}

// Value returns the JSON of a field as the client sent it, or nil if it is absent or null. It must not be modified.
func (r *Request) Value(name string) []byte {
	id, known := r.schema.byName[name]
	if !known {
		return nil
	}
	return r.valueOf(id)
}

// Constrain makes Upstream ask for an output that conforms to a JSON schema.
func (r *Request) Constrain(schema []byte) { r.outputSchema = schema }

// LimitTotal makes MaxTokens what the longest prompt leaves of total tokens, or of the context if total is 0. MaxTokens is
// 1 until the prompts have been counted and the caller sets it.
func (r *Request) LimitTotal(total int64) {
	r.total, r.hasTotal, r.MaxTokens = total, true, 1
}

// Total returns the total of LimitTotal, and whether there is one.
func (r *Request) Total() (tokens int64, limited bool) { return r.total, r.hasTotal }

// UserTag returns the user tag if it can be sent in a header: it is not empty and all of it is printable ASCII.
func (r *Request) UserTag() (string, bool) {
	if r.User == "" || strings.ContainsFunc(r.User, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", false
	}
	return r.User, true
}

// EachText calls yield with each text prompt, unescaped. The bytes are valid until yield returns.
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
			if err != nil { // impossible: the decoder has accepted the string
				return
			}
			text, scratch = unescaped, unescaped
		}
		if !yield(text) {
			return
		}
	}
}

// closingQuote returns the offset after the string that begins at start.
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

// PromptLengths returns the number of tokens of each token-id prompt; nil for Text.
func (r *Request) PromptLengths() []int64 {
	if r.Kind != Tokens {
		return nil
	}
	lengths := make([]int64, 0, r.Prompts)
	started := false // after the first id of an array
	prompt := r.find(fieldPrompt)
	for _, c := range r.body[prompt.value:prompt.end] {
		switch {
		case c == '[', c == ']':
			started = false
		case c >= '0' && c <= '9' && !started:
			started = true
			lengths = append(lengths, 1)
		case c == ',' && started:
			lengths[len(lengths)-1]++
		}
	}
	return lengths
}

// logprobsOf returns the value of a field that requests logprobs; Absent for other fields.
func (r *Request) logprobsOf(id fieldID) int {
	switch id {
	case fieldLogprobs:
		return r.Logprobs
	case fieldPromptLogprobs:
		return r.PromptLogprobs
	case fieldTopLogprobs:
		return r.chat.topLogprobs
	case fieldTop:
		return r.question.top
	default:
		return Absent
	}
}

// checkFieldSet returns an error if a required field is missing or two fields conflict.
func (r *Request) checkFieldSet() error {
	for _, id := range r.schema.required {
		if r.find(id) == nil {
			f := &r.schema.table[id]
			return apierr.InvalidField(f.name, fmt.Sprintf("%s is missing; expected %s", f.name, f.expected))
		}
	}
	param, message := "", ""
	if r.schema.conflict != nil {
		param, message = r.schema.conflict(r)
	}
	if param == "" {
		param, message = r.conflict()
	}
	if param != "" {
		return apierr.InvalidField(param, message)
	}
	return nil
}

// conflict returns the first pair of fields whose values conflict, if any: the field that the error names, and its message.
func (r *Request) conflict() (param, message string) {
	switch {
	case r.BestOf != 0 && r.BestOf < r.N:
		return "best_of", fmt.Sprintf("best_of is %d but n is %d: the best n are chosen out of best_of, so best_of must be at least n", r.BestOf, r.N)
	case r.Stream && r.BestOf > r.N:
		return "best_of", fmt.Sprintf("best_of %d over n %d cannot be streamed: the best are known only at the end; drop stream or best_of", r.BestOf, r.N)
	case r.Stream && r.PromptLogprobs != Absent:
		return "prompt_logprobs", "prompt_logprobs cannot be streamed; drop stream, or use echo with logprobs"
	case r.has(fieldMaxTokens) && r.has(fieldMaxCompletionTokens):
		return "max_tokens", "max_tokens and max_completion_tokens mean the same; send one of them"
	case r.has(fieldLogprobTokenIDs) && r.Logprobs == Absent && !r.chat.logprobs:
		return "logprob_token_ids", "logprob_token_ids has a meaning only with logprobs"
	case r.question.top > 0 && !r.question.tokens:
		return "top", "top has a meaning only with tokens: true"
	case r.hasStreamOptions && !r.Stream:
		return "stream_options", "stream_options has a meaning only with stream: true"
	case r.has(fieldStreamInterval) && !r.Stream:
		return "stream_interval", "stream_interval has a meaning only with stream: true"
	case r.has(fieldTruncationSide) && r.Truncate == 0:
		return "truncation_side", "truncation_side has a meaning only with truncate_prompt_tokens"
	case r.MinTokens > r.MaxTokens:
		return "min_tokens", fmt.Sprintf("min_tokens: got %d; expected an integer from 0 to %d, %s", r.MinTokens, r.MaxTokens, r.whatMaxTokensIs())
	case r.returnTokenIDs && r.Echo:
		return "return_token_ids", "return_token_ids cannot be combined with echo, because vLLM then leaves the echoed text out; drop one of them"
	case r.chat.topLogprobs != Absent && !r.chat.logprobs:
		return "top_logprobs", "top_logprobs has a meaning only with logprobs: true"
	case r.has(fieldResponseFormat) && r.has(fieldStructuredOutputs):
		return "structured_outputs", "structured_outputs and response_format exclude each other; send one of them"
	case r.has(fieldToolChoice) && !r.chat.noTool && !r.has(fieldTools):
		return "tool_choice", `tool_choice other than "none" has a meaning only with tools`
	case r.chat.choice != "" && !slices.Contains(r.chat.functions, r.chat.choice):
		return "tool_choice", "tool_choice: got the function " + strconv.Quote(apierr.Clip(r.chat.choice)) + ", which is not among the tools"
	case r.chat.continuesMessage && !r.chat.noGenerationPrompt:
		return "continue_final_message", "continue_final_message continues the last message, so it needs add_generation_prompt: false"
	default:
		return "", ""
	}
}

func (r *Request) whatMaxTokensIs() string {
	switch {
	case r.schema != chat:
		return "which is max_tokens (16 when absent)"
	case r.chat.defaultMaxTokens:
		return "the model's default max_completion_tokens"
	default:
		return "which is " + fields[r.maxTokensField()].name
	}
}

// checkSequences returns an error if the request asks for more than most completions; 0: no limit.
func (r *Request) checkSequences(most int64) error {
	sequences := int64(r.Prompts) * r.Candidates()
	if most == 0 || sequences <= most {
		return nil
	}
	if r.Kind == Messages {
		return apierr.InvalidField("n", fmt.Sprintf("n: got %d; expected at most %d completions in one request", r.N, most))
	}
	if _, hasN := r.schema.byName["n"]; !hasN {
		name := r.schema.table[r.schema.prompt].name
		return apierr.InvalidField(name, fmt.Sprintf("%s: got %d in one request; expected at most %d", name, r.Prompts, most))
	}
	if int64(r.Prompts) > most || r.N == 1 {
		return apierr.InvalidField("prompt", fmt.Sprintf(
			"prompt: got %d prompts, which with max(n, best_of) %d ask for %d completions; expected at most %d completions in one request",
			r.Prompts, r.Candidates(), sequences, most))
	}
	return apierr.InvalidField("n", fmt.Sprintf(
		"n: got %d, which with %d prompts and max(n, best_of) %d asks for %d completions; expected at most %d completions in one request",
		r.N, r.Prompts, r.Candidates(), sequences, most))
}

// Describe returns a short description of a JSON value for an error message.
func Describe(raw []byte) string {
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

// Parameters returns the request's parameters for a record of it: the numbers and booleans as decimal text without an
// exponent, by their names, and the names of the others, whose values may hold texts. The model, the prompt and what
// concerns only the answer's transport or its payer are none. Those of a Form have the names that a backend receives.
// Fields that are null are absent.
func (r *Request) Parameters() (scalars map[string]string, others []string) {
	scalars = make(map[string]string, len(r.members))
	for i := range r.members {
		m := &r.members[i]
		if m.null || !m.field.sent() {
			continue
		}
		switch m.field {
		case fieldModel, r.schema.prompt, fieldStream, fieldStreamOptions, fieldUser, fieldCacheSalt:
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
