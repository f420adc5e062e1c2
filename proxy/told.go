package proxy

import (
	"github.com/tidwall/gjson"

	"basegate/breaker"
)

// told is what the gateway looks at in vLLM's JSON, in a plain answer and in an event alike: values as they stand in the
// bytes that were read, nil where they are not there.
type told struct {
	failure, object, usage []byte
	choices                []choice
}

// choice is one of an answer's, or of an event's.
type choice struct {
	index                  int // -1 where it is none
	text, logprobs, finish []byte
	textAt                 int // where in the object the text begins
}

// read takes one object, in place of what was read before.
func (t *told) read(body []byte) error {
	*t = told{choices: t.choices[:0]}
	s := scanner{data: body}
	s.members(func(name []byte) {
		switch string(name) {
		case "error":
			t.failure = s.value()
		case "object":
			t.object = s.value()
		case "usage":
			t.usage = s.value()
		case "choices":
			if s.next() == '[' {
				s.elements(func() { t.choices = append(t.choices, readChoice(&s)) })
				return
			}
			s.value()
		default:
			s.value()
		}
	})
	return s.end()
}

func readChoice(s *scanner) choice {
	c := choice{index: -1}
	if s.next() != '{' {
		s.value()
		return c
	}
	s.members(func(name []byte) {
		value := s.value()
		switch string(name) {
		case "index":
			c.index = small(value)
		case "text":
			c.text, c.textAt = value, s.at-len(value)
		case "logprobs":
			c.logprobs = value
		case "finish_reason":
			c.finish = value
		}
	})
	return c
}

// small reads an index, or a count of tokens; -1 where it is none.
func small[T string | []byte](raw T) int {
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

// failed tells whether it is one of vLLM's errors.
func (t *told) failed() bool { return breaker.IsErrorObject(t.failure, t.object) }

// cost is what vLLM says that it has cost. What are no counts of tokens is not believed: the ledger adds them up.
func (t *told) cost() usage {
	if len(t.usage) == 0 || t.usage[0] != '{' {
		return usage{}
	}
	u := gjson.ParseBytes(t.usage)
	prompt, completion := countOf(u, "prompt_tokens"), countOf(u, "completion_tokens")
	if prompt < 0 || completion < 0 {
		return usage{}
	}
	return usage{prompt: prompt, completion: completion, known: true}
}

// countOf is a count among others, 0 where it is not there; -1 where it is none.
func countOf(u gjson.Result, name string) int64 {
	count := u.Get(name)
	if !count.Exists() {
		return 0
	}
	return int64(small(count.Raw))
}

// finished tells whether vLLM is done with the choice; it aborted one that it gave up, under 200.
func (c *choice) finished() bool { return len(c.finish) > 0 && c.finish[0] == '"' }
func (c *choice) aborted() bool  { return string(c.finish) == `"abort"` }

// hasText tells whether the choice brings text.
func (c *choice) hasText() bool { return len(c.text) > len(`""`) && c.text[0] == '"' }
