package stream

import (
	"bytes"
	"iter"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"
)

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
	reason   uint8  // why it has finished: an index of State.reasons
	final    Usage  // of the event that finished it
	text     []byte // of the events with text, with a separator between two: the escaped text, as in the JSON
}

// separator ends the text of each event of a stream. It is no byte of an escaped text.
const separator = 0

// count counts a choice of an event or of a plain response.
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

// unescape returns the text of a JSON string without its quotes.
func unescape(escaped []byte) []byte {
	quoted := make([]byte, 0, len(escaped)+2)
	quoted = append(append(append(quoted, '"'), escaped...), '"')
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return escaped // vLLM has sent a lone surrogate
	}
	return text
}
