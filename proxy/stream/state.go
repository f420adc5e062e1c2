package stream

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"

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

const (
	// Open means that more events follow.
	Open Status = iota
	// Complete means that every choice has finished and [DONE] has been received.
	Complete
	// Failed means that the stream is not valid; State.Failure says why.
	Failed
)

// FailureKind says what is wrong with a stream.
type FailureKind uint8

const (
	// ErrorEvent is an error that vLLM reported in an event.
	ErrorEvent FailureKind = iota
	// Aborted is a choice that vLLM aborted, as it does when it shuts down, or failed at.
	Aborted
	// Malformed is an event that is not one of vLLM's.
	Malformed
	// Truncated is a stream that ended too early.
	Truncated
	// NoMemory is a stream that took more memory than Limits.Memory allows.
	NoMemory
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
	tokens     int64    // lower bound of the completion tokens received
	data       int64    // events with data
	reasons    []string // the finish reasons received; few, which ChoiceUsage.reason refers to
	usage      Usage    // of the event that has no choices
	hasUsage   bool     // that event has been received, whatever it counts
	last       Usage    // of the event that finished the last choice
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

// maxReasons limits the finish reasons that a stream can have; vLLM knows half a dozen.
const maxReasons = 255

// internReason returns the index of a finish reason, which is a JSON string. Further ones than maxReasons are the last.
func (s *State) internReason(raw []byte) uint8 {
	reason := gjson.ParseBytes(raw).Str
	i := slices.Index(s.reasons, reason)
	if i < 0 {
		if len(s.reasons) == maxReasons {
			return maxReasons - 1
		}
		i, s.reasons = len(s.reasons), append(s.reasons, strings.Clone(reason))
	}
	return uint8(i)
}

// FinishReasons returns why the choices of a complete stream have finished, in the order of their indexes.
func (s *State) FinishReasons() []string {
	sorted := slices.SortedFunc(slices.Values(s.choices.all), func(a, b ChoiceUsage) int { return cmp.Compare(a.Index, b.Index) })
	reasons := make([]string, len(sorted))
	for i := range sorted {
		reasons[i] = s.reasons[sorted[i].reason]
	}
	return reasons
}

// Tokens returns a lower bound of the completion tokens received so far.
func (s *State) Tokens() int64 { return s.tokens }

// Choices returns the usage of the choices received so far, in the order of their first events.
func (s *State) Choices() []ChoiceUsage { return s.choices.all }

// DataEvents returns how many events with data have been received. Comments are none: a backend that sends only those
// makes no progress.
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
	if err := chunk.Parse(data); err != nil {
		return nil, s.fail(parseFailure(err))
	}
	switch {
	case chunk.IsError():
		return nil, s.fail(Failure{Kind: ErrorEvent, Payload: data})
	case len(chunk.choices) == 0 && !isNull(chunk.usage) && (chunk.listed || s.unfinished == 0):
		s.hasUsage = true
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

// parseFailure returns the failure of an event that cannot be parsed.
func parseFailure(err error) Failure {
	if _, full := errors.AsType[*MemoryError](err); full {
		return Failure{Kind: NoMemory, Err: err}
	}
	return Failure{Kind: Malformed, Err: err}
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
			u.finished, u.reason = true, s.internReason(c.finishReason)
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
