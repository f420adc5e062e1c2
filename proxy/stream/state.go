package stream

import (
	"bytes"
	"cmp"
	"errors"
	"iter"
	"slices"
	"unique"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"
)

var (
	errNotEvent = errors.New("the backend sent something other than server-sent events")
	errNotChunk = errors.New("the backend sent an event without choices")
	errNoChoice = errors.New("the backend sent an event of a choice that was not asked for")
	errNoFinish = errors.New("the stream ended before every choice had finished")
	errNoUsage  = errors.New("the stream ended without the usage that was asked for")
)

// Status is the status of a stream.
type Status uint8

// The values of Status.
const (
	Open     Status = iota // more events follow
	Complete               // every choice has finished, and [DONE] has been received
	Failed                 // the stream is not valid; State.Failure says why
)

// FailureKind says what is wrong with a stream.
type FailureKind uint8

// The values of FailureKind.
const (
	ErrorEvent FailureKind = iota // vLLM reported an error in an event
	Aborted                       // vLLM aborted a choice, as it does when it shuts down, or failed at it
	Malformed                     // an event is not one of vLLM's
	Truncated                     // the stream ended too early
	NoMemory                      // the stream took more memory than Limits.Memory allows
)

// Failure says why a stream failed.
type Failure struct {
	Kind    FailureKind
	Payload []byte // of an ErrorEvent: vLLM's JSON, valid until the next read
	Err     error  // of Malformed, Truncated and NoMemory; it quotes nothing of the stream
}

// State tracks one stream of completion chunks.
type State struct {
	total     int                    // choices of the complete response
	passUsage bool                   // the client asked for the usage event
	echoed    func(choice int) int64 // prompt tokens that each choice echoes; nil without echo
	choices   choiceSet

	unfinished int
	tokens     int64 // lower bound of the completion tokens received
	data       int64 // events with data
	usage      Usage // of the event that has no choices
	hasUsage   bool  // that event has been received, whatever it counts
	details    Details
	last       Usage // of the event that finished the last choice
	failure    Failure
	chunk      chunkTemplate
}

// NewState returns the state of a stream. echoed returns how many tokens of the prompt each choice echoes; it is nil
// without echo. The caller must Release the State.
func NewState(l Limits, passUsage bool, echoed func(choice int) int64) *State {
	return &State{
		total: l.Choices, passUsage: passUsage, echoed: echoed, unfinished: l.Choices,
		choices: choiceSet{memory: counter{memory: l.Memory}}, chunk: chunkTemplate{Object: *NewObject(l)},
	}
}

// Release returns the memory that has been counted. The State must not be used afterwards.
func (s *State) Release() {
	s.choices.memory.release()
	s.chunk.Release()
}

// Usage returns what the backend reported at the end of the stream. vLLM reports it in an event of its own. llama.cpp puts
// it on the event that finishes a choice, and counts this choice and its prompt; other servers report the whole response
// on the event that finishes the last choice. perPrompt is the number of choices of each prompt.
func (s *State) Usage(perPrompt int) Usage { return s.reported(perPrompt).beside(s.Tokens) }

func (s *State) reported(perPrompt int) Usage {
	if s.usage.Known || s.unfinished > 0 || !s.last.Known {
		return s.usage
	}
	sum, known := Usage{Known: true}, 0
	prompts := make(map[int]int64)
	for i := range s.choices.all {
		c := &s.choices.all[i]
		if c.final.Known {
			known++
		}
		sum.Completion += c.final.Completion
		prompts[c.Index/perPrompt] = max(prompts[c.Index/perPrompt], c.final.Prompt)
	}
	for _, tokens := range prompts {
		sum.Prompt += tokens
	}
	switch known {
	case s.total:
		return sum
	case 1:
		return s.last
	default:
		return s.usage
	}
}

// Details returns what the usage event of the stream has; nothing before it has been received.
func (s *State) Details() Details { return s.details }

// FinishReasons returns why the choices of a complete stream have finished, in the order of their indexes.
func (s *State) FinishReasons() []string {
	sorted := slices.SortedFunc(slices.Values(s.choices.all), func(a, b ChoiceUsage) int { return cmp.Compare(a.Index, b.Index) })
	reasons := make([]string, len(sorted))
	for i := range sorted {
		reasons[i] = sorted[i].reason.Value()
	}
	return reasons
}

// Tokens returns a lower bound of the completion tokens received so far.
func (s *State) Tokens() int64 { return s.tokens }

// Choices returns the usage of the choices received so far, in the order of their first events.
func (s *State) Choices() []ChoiceUsage { return s.choices.all }

// DataEvents returns how many events with data have been received: a backend that sends only comments makes no progress.
func (s *State) DataEvents() int64 { return s.data }

// Failure says why the stream is Failed.
func (s *State) Failure() Failure { return s.failure }

// Add processes a batch of whole events and returns the bytes to pass on: the batch without the events that the client
// must not receive and without [DONE]. It removes them in place. Nothing after the end of the stream is passed on.
func (s *State) Add(batch []byte) ([]byte, Status) {
	passed := batch[:0]
	for rest := batch; len(rest) > 0; {
		var event []byte
		before := len(batch) - len(rest)
		event, rest = splitEvent(rest)
		kept, status := s.addEvent(event)
		switch {
		case status != Open:
			return passed, status
		case len(passed) == before: // nothing has been removed yet
			passed = batch[:before+len(kept)]
		default:
			passed = append(passed, kept...)
		}
	}
	return passed, Open
}

var done = []byte("[DONE]")

// addEvent processes one event and returns what is passed on, which is at its beginning.
func (s *State) addEvent(event []byte) (kept []byte, status Status) {
	data, _, isSimple := cutSimple(event)
	if !isSimple {
		event = withoutComments(event)
		data = payload(event)
	}
	if len(data) == 0 {
		if !hasOnlySSEFields(event) {
			return nil, s.fail(Failure{Kind: Malformed, Err: errNotEvent})
		}
		return nil, Open
	}
	s.data++
	if bytes.Equal(data, done) {
		return nil, s.atDone()
	}
	chunk := &s.chunk
	switch err := chunk.Parse(data); {
	case errors.Is(err, errNotJSON), errors.Is(err, errTooManyChoices):
		return nil, s.fail(Failure{Kind: Malformed, Err: err})
	case err != nil:
		return nil, s.fail(Failure{Kind: NoMemory, Err: err})
	}
	switch {
	case chunk.IsError():
		return nil, s.fail(Failure{Kind: ErrorEvent, Payload: data})
	case len(chunk.choices) == 0 && !isNull(chunk.details.Usage) && (chunk.listed || s.unfinished == 0):
		s.hasUsage, s.details = true, chunk.details.clone()
		if usage := chunk.Usage(); usage.Known {
			s.usage = usage
		}
		if !s.passUsage {
			return nil, Open
		}
		return event, Open
	case !chunk.listed:
		return nil, s.fail(Failure{Kind: Malformed, Err: errNotChunk})
	case chunk.Aborted():
		return nil, s.fail(Failure{Kind: Aborted})
	case slices.ContainsFunc(chunk.choices, func(c choice) bool { return c.index < 0 || c.index >= s.total }):
		return nil, s.fail(Failure{Kind: Malformed, Err: errNoChoice})
	default:
		if err := s.addChoices(chunk); err != nil {
			return nil, s.fail(Failure{Kind: NoMemory, Err: err})
		}
		return event, Open
	}
}

// addChoices counts what a chunk brings of each choice, and which choices it finishes.
func (s *State) addChoices(chunk *chunkTemplate) error {
	for i := range chunk.choices {
		c := &chunk.choices[i]
		u, isNew := s.choices.get(c.index)
		if isNew && s.echoed != nil {
			u.Echoed = s.echoed(c.index)
		}
		before := u.MinTokens()
		u.count(c)
		var usage Usage
		if len(chunk.choices) == 1 { // continuous_usage_stats: the usage of this choice so far
			usage = chunk.Usage()
			u.Reported = max(u.Reported, usage.Completion)
		}
		s.choices.appendText(u, c.unquoted())
		s.tokens += u.MinTokens() - before
		if c.finished() && !u.finished {
			u.finished, u.reason = true, unique.Make(gjson.ParseBytes(c.finishReason).Str)
			s.unfinished--
			if usage.Prompt > 0 || usage.Completion > 0 {
				u.final, s.last = usage, usage
			} else {
				s.last = Usage{}
			}
		}
	}
	return s.choices.countMemory()
}

func (s *State) fail(f Failure) Status {
	s.failure = f
	return Failed
}

// atDone returns the status at [DONE], which vLLM also sends after an error.
func (s *State) atDone() Status {
	if s.unfinished > 0 {
		return s.fail(Failure{Kind: Truncated, Err: errNoFinish})
	}
	return Complete
}

// End returns the status of a stream that ended without [DONE]: it is Complete if every choice has finished and the
// usage that the client asked for has been received.
func (s *State) End() Status {
	if s.passUsage && !s.hasUsage {
		return s.fail(Failure{Kind: Truncated, Err: errNoUsage})
	}
	return s.atDone()
}

// choiceSet holds the choices of a stream of which something has been received. A request may ask for millions, so it grows
// with the stream and not with the request.
type choiceSet struct {
	all       []ChoiceUsage // in the order of their first events
	last      int           // position of the choice that was got last
	positions map[int]int   // by index; nil while there is only one choice
	held      int64         // approximate size of all this, in bytes
	memory    counter
}

const (
	// choiceUsageBytes is what a choice takes in all and in positions, in bytes, both of which grow by doubling.
	choiceUsageBytes = 256
	// memoryStep is the step in which memory is counted, in bytes, and what is not counted at all: a stream counts
	// nothing for its first few thousand tokens.
	memoryStep = 16 << 10
)

// get returns the choice of an index, and whether it is a new one. The pointer is valid until the next call.
func (s *choiceSet) get(index int) (u *ChoiceUsage, isNew bool) {
	if s.last < len(s.all) && s.all[s.last].Index == index {
		return &s.all[s.last], false
	}
	position, found := s.positions[index]
	if !found {
		position = len(s.all)
		s.all = append(s.all, ChoiceUsage{Index: index})
		s.held += choiceUsageBytes
		switch {
		case position == 1:
			s.positions = map[int]int{s.all[0].Index: 0, index: 1}
		case position > 1:
			s.positions[index] = position
		}
	}
	s.last = position
	return &s.all[position], !found
}

func (s *choiceSet) appendText(u *ChoiceUsage, text []byte) {
	if len(text) == 0 {
		return
	}
	before := cap(u.text)
	u.text = append(append(u.text, text...), separator)
	s.held += int64(cap(u.text) - before)
}

// countMemory counts what has been added. Its error is that of Limits.Memory.
func (s *choiceSet) countMemory() error {
	if s.held < s.memory.counted+memoryStep {
		return nil
	}
	steps := (s.held - s.memory.counted) / memoryStep
	return s.memory.grow(steps * memoryStep)
}

// ChoiceUsage counts the part of one choice that has been received. vLLM reports the usage of a stream only at its end,
// so a stream that is cut off is charged by these counts. An event may contain several tokens; their number follows from
// the members that list or count them, or else from its text only.
type ChoiceUsage struct {
	Index    int
	Events   int64 // events with text
	Scored   int64 // tokens listed by logprobs (of a chat completion, by their content), those of an echoed prompt included
	Listed   int64 // tokens listed by token_ids
	Reported int64 // tokens by the usage of the last event, if each event has one
	Echoed   int64 // tokens of the prompt, which an echo repeats first

	finished bool
	reason   unique.Handle[string] // why it has finished
	final    Usage                 // of the event that finished it
	text     []byte                // of the events with text, with a separator between two: the escaped text, as in the JSON
}

// separator ends the text of each event of a stream. It is no byte of an escaped text.
const separator = 0

func (u *ChoiceUsage) count(c *choice) {
	if c.hasText() {
		u.Events++
	}
	if len(c.logprobs) > 0 && c.logprobs[0] == '{' {
		u.Scored += gjson.GetBytes(c.logprobs, "tokens.#").Int() + gjson.GetBytes(c.logprobs, "content.#").Int()
	}
	if len(c.tokenIDs) > 0 && c.tokenIDs[0] == '[' {
		u.Listed += gjson.GetBytes(c.tokenIDs, "#").Int()
	}
}

// MinTokens returns a lower bound of the completion tokens: one for each event with text, or what an event lists.
func (u *ChoiceUsage) MinTokens() int64 {
	return max(u.Events, u.Scored-u.Echoed, u.Listed, u.Reported)
}

// IsCounted reports whether the events themselves say how many tokens they hold.
func (u *ChoiceUsage) IsCounted() bool { return u.Scored > 0 || u.Listed > 0 || u.Reported > 0 }

// TextBytes returns an upper bound of the length of the text received, in bytes.
func (u *ChoiceUsage) TextBytes() int { return len(u.text) }

// Texts returns the text of each event that has one, without the prompt if the choice begins with it. The text of an event
// that only repeats the prompt is empty.
func (u *ChoiceUsage) Texts(prompt string) iter.Seq[string] {
	return func(yield func(string) bool) {
		echo := []byte(prompt) // what is left of it
		for rest := u.text; len(rest) > 0; {
			var escaped []byte
			escaped, rest, _ = bytes.Cut(rest, []byte{separator})
			text := unescape(escaped)
			switch {
			case bytes.HasPrefix(text, echo):
				text, echo = text[len(echo):], nil
			case bytes.HasPrefix(echo, text):
				text, echo = nil, echo[len(text):]
			default:
				echo = nil
			}
			if !yield(string(text)) {
				return
			}
		}
	}
}

func unescape(escaped []byte) []byte {
	quoted := make([]byte, 0, len(escaped)+2)
	quoted = append(append(append(quoted, '"'), escaped...), '"')
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return escaped // vLLM has sent a lone surrogate
	}
	return text
}
