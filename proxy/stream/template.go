package stream

import "bytes"

// chunkTemplate parses the chunks of one stream. Nearly all differ from the previous one only in their text, so it
// compares the bytes before and after the text with those of the last chunk it parsed, and parses the text alone if they
// are equal. That saves a third of the time.
type chunkTemplate struct {
	Object
	prefix, suffix []byte // around the text of the last parsed chunk; an empty suffix matches nothing
	index          int    // of its choice
}

// Parse parses a chunk and replaces what was parsed before.
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
	t.failure, t.object, t.detail, t.usage, t.listed = nil, nil, nil, nil, true
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
