package stream

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"
)

// ChoiceUsage counts the part of one choice that has been received. vLLM reports the usage of a stream only at its end,
// so a stream that is cut off is charged by these counts. An event may contain several tokens; their number follows from
// its text or logprobs only.
type ChoiceUsage struct {
	Index  int
	Scored int64 // tokens listed by logprobs, those of an echoed prompt included
	Echoed int64 // tokens of the prompt, which an echo repeats first

	finished bool
	events   int64  // events with text
	text     []byte // the escaped text, as in the JSON
}

// count counts a choice of an event or of a plain response.
func (u *ChoiceUsage) count(c *choice) {
	if c.hasText() {
		u.events++
	}
	if len(c.logprobs) > 0 && c.logprobs[0] == '{' {
		u.Scored += gjson.GetBytes(c.logprobs, "tokens.#").Int()
	}
}

// MinTokens returns a lower bound of the completion tokens: one for each event with text, or what logprobs list.
func (u *ChoiceUsage) MinTokens() int64 { return max(u.events, u.Scored-u.Echoed) }

// TextBytes returns an upper bound of the length of the text received, in bytes.
func (u *ChoiceUsage) TextBytes() int { return len(u.text) }

// Text returns the text received, without prompt if it begins with it.
func (u *ChoiceUsage) Text(prompt string) string {
	quoted := make([]byte, 0, len(u.text)+2)
	quoted = append(append(append(quoted, '"'), u.text...), '"')
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return string(u.text) // vLLM has sent a lone surrogate
	}
	return strings.TrimPrefix(string(text), prompt)
}
