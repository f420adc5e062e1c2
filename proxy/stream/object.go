package stream

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Usage is what vLLM reports that a request has cost, in tokens.
type Usage struct {
	Prompt, Completion int64
	Known              bool // vLLM has reported it
}

// beside returns a usage that is reported beside at least that many completion tokens. A zero is not known then, nor for the
// prompt, which has a token at least.
func (u Usage) beside(tokens func() int64) Usage {
	if u.Prompt == 0 || u.Completion == 0 && tokens() > 0 {
		return Usage{}
	}
	return u
}

// Object is a completion object of vLLM, a plain response body or the payload of an event, with the members that the
// gateway reads. The values are slices of the parsed bytes, nil if the member is absent.
type Object struct {
	failure, object, detail []byte // the members "error", "object" and "detail"
	details                 Details
	listed                  bool // the member "choices" is a list
	choices                 []choice
	maxChoices              int // 0: unlimited
	memory                  counter
}

// Details are the members "usage" and "metrics" as vLLM has sent them; nil if absent.
type Details struct{ Usage, Metrics []byte }

func (d Details) clone() Details { return Details{bytes.Clone(d.Usage), bytes.Clone(d.Metrics)} }

// Details returns what the object has. It refers to the parsed bytes.
func (o *Object) Details() Details { return o.details }

// choice is an element of the member "choices".
type choice struct {
	index                        int // 0 if absent, -1 if it is no index
	text, logprobs, finishReason []byte
	tokenIDs                     []byte // of the completion alone
	textAt                       int    // offset of text in the object
	more                         []byte // further text of a chat completion, escaped, without quotes
}

// NewObject returns an empty Object. The caller must Release it.
func NewObject(l Limits) *Object {
	return &Object{maxChoices: l.Choices, memory: counter{memory: l.Memory}}
}

// Release returns the memory that has been counted. The Object must not be used afterwards.
func (o *Object) Release() { o.memory.release() }

// Parse parses one JSON object and replaces what was parsed before. Its error never quotes the bytes; it is
// that of Limits.Memory if the choices take too much.
func (o *Object) Parse(body []byte) error {
	o.failure, o.object, o.detail, o.details, o.listed, o.choices = nil, nil, nil, Details{}, false, o.choices[:0]
	s := scanner{data: body}
	var full error // why no further choice is taken
	s.members(func(name []byte) {
		switch string(name) {
		case "error":
			o.failure = s.value()
		case "object":
			o.object = s.value()
		case "detail":
			o.detail = s.value()
		case "usage":
			o.details.Usage = s.value()
		case "metrics":
			o.details.Metrics = s.value()
		case "choices":
			if s.next() == '[' {
				o.listed = true
				s.elements(func() {
					if full = o.growChoices(); full != nil {
						s.bad = true
						return
					}
					o.choices = append(o.choices, parseChoice(&s))
				})
				return
			}
			s.bad = !isNull(s.value()) || s.bad
		default:
			s.value()
		}
	})
	if full != nil {
		return full
	}
	return s.end()
}

const (
	// choiceBytes is the size of a choice, in bytes.
	choiceBytes = 144
	// maxUncounted limits the choices whose memory is not counted.
	maxUncounted = 64
)

// growChoices makes room for another choice. An element of the array can be as short as two bytes, so the choices may take
// far more memory than the body.
func (o *Object) growChoices() error {
	n := len(o.choices)
	if o.maxChoices > 0 && n >= o.maxChoices {
		return errTooManyChoices
	}
	if n < cap(o.choices) || n < maxUncounted {
		return nil
	}
	before := o.memory.counted
	if err := o.memory.grow(2 * choiceBytes * int64(n)); err != nil {
		return err
	}
	o.choices = slices.Grow(o.choices, n)
	o.memory.shrink(before)
	return nil
}

func parseChoice(s *scanner) choice {
	if s.next() != '{' {
		s.value()
		return choice{index: -1}
	}
	var c choice
	s.members(func(name []byte) {
		if isMessage := string(name) == "delta" || string(name) == "message"; isMessage && s.next() == '{' {
			c.parseMessage(s)
			return
		}
		value := s.value()
		switch string(name) {
		case "index":
			if !isNull(value) {
				c.index = parseCount(value)
			}
		case "text":
			c.text, c.textAt = value, s.at-len(value)
		case "logprobs":
			c.logprobs = value
		case "finish_reason":
			c.finishReason = value
		case "token_ids":
			c.tokenIDs = value
		}
	})
	return c
}

// parseCount parses an index or a token count of up to nine digits; -1 if it is neither.
func parseCount[T string | []byte](raw T) int {
	if len(raw) == 0 || len(raw) > 9 {
		return -1
	}
	n := 0
	for i := range len(raw) {
		if !isDigit(raw[i]) {
			return -1
		}
		n = 10*n + int(raw[i]-'0')
	}
	return n
}

// IsError reports whether the object is one of vLLM's errors, which several versions send with status 200. FastAPI's have
// a "detail" in place of the choices.
func (o *Object) IsError() bool {
	return !isNull(o.failure) || string(o.object) == `"error"` || (!o.listed && !isNull(o.detail))
}

// IsComplete reports whether the object has that many choices, each index once, and every one has finished.
func (o *Object) IsComplete(choices int) bool {
	if len(o.choices) != choices {
		return false
	}
	seen := make([]bool, choices)
	for i := range o.choices {
		c := &o.choices[i]
		if c.index < 0 || c.index >= choices || seen[c.index] || !c.finished() {
			return false
		}
		seen[c.index] = true
	}
	return true
}

// Aborted reports whether vLLM has aborted one of the choices, or failed at it, which it does with status 200.
func (o *Object) Aborted() bool {
	for i := range o.choices {
		if o.choices[i].aborted() {
			return true
		}
	}
	return false
}

// FinishReasons returns why the choices have finished, in the order of the object.
func (o *Object) FinishReasons() []string {
	reasons := make([]string, len(o.choices))
	for i := range o.choices {
		reasons[i] = strings.Clone(gjson.ParseBytes(o.choices[i].finishReason).Str)
	}
	return reasons
}

// Usage returns the usage in the object. It is known only if both counts are there and are token counts, and not zero beside
// text: the ledger sums them, and an absent one is not zero.
func (o *Object) Usage() Usage {
	if len(o.details.Usage) == 0 || o.details.Usage[0] != '{' {
		return Usage{}
	}
	u := gjson.ParseBytes(o.details.Usage)
	prompt, completion := tokenCount(u, "prompt_tokens"), tokenCount(u, "completion_tokens")
	if prompt < 0 || completion < 0 {
		return Usage{}
	}
	return Usage{Prompt: prompt, Completion: completion, Known: true}.beside(o.minTokens)
}

// minTokens returns a lower bound of the tokens of the choice that has most, those of an echo included.
func (o *Object) minTokens() (tokens int64) {
	for i := range o.choices {
		var counted ChoiceUsage
		counted.count(&o.choices[i])
		tokens = max(tokens, counted.MinTokens())
	}
	return tokens
}

// tokenCount returns a member's token count, -1 if it is absent or not a count.
func tokenCount(u gjson.Result, name string) int64 { return int64(parseCount(u.Get(name).Raw)) }

// ChoiceUsage returns the usage of each choice, in the order of the object. It refers to the parsed bytes.
func (o *Object) ChoiceUsage() []ChoiceUsage {
	all := make([]ChoiceUsage, len(o.choices))
	for i := range o.choices {
		c := &o.choices[i]
		all[i].Index = c.index
		all[i].count(c)
		all[i].text = c.unquoted()
	}
	return all
}

func (c *choice) finished() bool { return isText(c.finishReason) }
func (c *choice) aborted() bool {
	return string(c.finishReason) == `"abort"` || string(c.finishReason) == `"error"`
}
func (c *choice) hasText() bool { return isText(c.text) || len(c.more) > 0 }

func isText(value []byte) bool { return len(value) > len(`""`) && value[0] == '"' }

// unquoted returns the text with its escapes, without its quotes.
func (c *choice) unquoted() []byte {
	if !isText(c.text) {
		return c.more
	}
	text := c.text[1 : len(c.text)-1]
	if len(c.more) > 0 {
		return slices.Concat(text, c.more)
	}
	return text
}

func isNull(value []byte) bool { return len(value) == 0 || string(value) == "null" }

// parseMessage parses the message of a chat completion's choice, or the delta of an event. All that the model has generated
// counts as its text: the content, the reasoning (reasoning_content before vLLM 0.12), and the names and arguments of tool
// calls.
func (c *choice) parseMessage(s *scanner) {
	s.members(func(name []byte) {
		switch string(name) {
		case "content", "reasoning", "reasoning_content":
			c.addText(s.value(), s.at)
		case "tool_calls":
			if s.next() != '[' {
				s.value()
				return
			}
			s.elements(func() { c.parseToolCall(s) })
		default:
			s.value()
		}
	})
}

func (c *choice) parseToolCall(s *scanner) {
	eachMember(s, func(name []byte) {
		if string(name) != "function" {
			s.value()
			return
		}
		eachMember(s, func(name []byte) {
			value := s.value()
			if member := string(name); (member == "name" || member == "arguments") && isText(value) {
				c.more = append(c.more, value[1:len(value)-1]...)
			}
		})
	})
}

// eachMember calls visit with the name of each member if an object follows, and otherwise consumes the value.
func eachMember(s *scanner, visit func(name []byte)) {
	if s.next() != '{' {
		s.value()
		return
	}
	s.members(visit)
}

// addText adds a member that is text and ends at an offset. The first one is kept in place, so that a chunkTemplate can find
// it.
func (c *choice) addText(value []byte, end int) {
	switch {
	case !isText(c.text):
		if isText(value) || len(c.text) == 0 {
			c.text, c.textAt = value, end-len(value)
		}
	case isText(value):
		c.more = append(c.more, value[1:len(value)-1]...)
	}
}

// chunkTemplate parses the chunks of one stream. Nearly all differ from the previous one only in their text, so it
// compares the bytes before and after the text with those of the last chunk it parsed, and parses the text alone if they
// are equal. That saves three quarters of the time.
type chunkTemplate struct {
	Object
	prefix, suffix []byte // around the text of the last parsed chunk; an empty suffix matches nothing
	index          int    // of its choice
}

func (t *chunkTemplate) Parse(body []byte) error {
	if t.match(body) {
		return nil
	}
	t.prefix, t.suffix = t.prefix[:0], t.suffix[:0]
	if err := t.Object.Parse(body); err != nil {
		return err
	}
	t.learn(body)
	return nil
}

// match parses a chunk that differs from the last one in its text alone. The other bytes are equal, so they are the same
// JSON with the same meaning: one choice with text, and nothing else that the gateway reads.
func (t *chunkTemplate) match(body []byte) bool {
	end := len(body) - len(t.suffix)
	if len(t.suffix) == 0 || end <= len(t.prefix) || !bytes.HasPrefix(body, t.prefix) || !bytes.HasSuffix(body, t.suffix) {
		return false
	}
	s := scanner{data: body[len(t.prefix):end]}
	if s.data[0] != '"' {
		return false
	}
	text := s.text()
	if s.bad || s.at < len(s.data) {
		return false
	}
	t.failure, t.object, t.detail, t.details, t.listed = nil, nil, nil, Details{}, true
	t.choices = append(t.choices[:0], choice{index: t.index, text: text})
	return true
}

// maxTemplate limits the bytes kept around the text; vLLM sends about 200.
const maxTemplate = 2 << 10

// learn keeps the bytes around the text of a chunk that has nothing else that the gateway reads.
func (t *chunkTemplate) learn(body []byte) {
	if len(t.choices) != 1 || t.IsError() || t.Usage().Known {
		return
	}
	c := &t.choices[0]
	if len(body)-len(c.text) > maxTemplate {
		return
	}
	if c.index < 0 || len(c.more) > 0 || len(c.text) == 0 || c.text[0] != '"' || !isNull(c.finishReason) || !isNull(c.logprobs) || !isNull(c.tokenIDs) {
		return
	}
	t.prefix = append(t.prefix, body[:c.textAt]...)
	t.suffix = append(t.suffix, body[c.textAt+len(c.text):]...)
	t.index = c.index
}
