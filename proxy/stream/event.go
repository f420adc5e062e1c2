package stream

import (
	"bytes"
	"iter"
	"slices"
)

// eventEnd returns the offset after the first blank line, which ends an event, or -1 if there is none.
func eventEnd(text []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(text[from:], '\n')
		if i < 0 {
			return -1
		}
		from += i + 1
		if n := lineBreak(text[from:]); n > 0 {
			return from + n
		}
	}
}

// lineBreak returns the length of the line break at the beginning of text, or 0 if there is none.
func lineBreak(text []byte) int {
	switch {
	case len(text) > 0 && text[0] == '\n':
		return 1
	case len(text) > 1 && text[0] == '\r' && text[1] == '\n':
		return 2
	default:
		return 0
	}
}

func splitEvent(batch []byte) (event, rest []byte) {
	if end := eventEnd(batch); end >= 0 {
		return batch[:end], batch[end:]
	}
	return batch, nil
}

// commentLength returns the length of the comments and blank lines that text begins with. They are no part of an event, and
// clients fail at what they take for an event without data.
func commentLength(text []byte) (n int) {
	for n < len(text) {
		line := lineBreak(text[n:])
		if text[n] == ':' {
			line = bytes.IndexByte(text[n:], '\n') + 1
		}
		if line == 0 {
			break
		}
		n += line
	}
	return n
}

// withoutComments removes the comments of an event, and blank lines before it, in place.
func withoutComments(event []byte) []byte {
	kept := event[:0]
	for line := range bytes.Lines(event[commentLength(event):]) {
		if line[0] != ':' {
			kept = append(kept, line...)
		}
	}
	return kept
}

// hasOnlySSEFields reports whether every line of an event without payload is a field of server-sent events.
func hasOnlySSEFields(event []byte) bool {
	for line := range bytes.Lines(event) {
		name, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		switch string(name) {
		case "", "data", "event", "id", "retry":
		default:
			return false
		}
	}
	return true
}

// payload returns the value of an event's data field, several lines joined by a line feed; empty if it has none.
func payload(event []byte) []byte {
	var joined []byte
	for line := range bytes.Lines(event) {
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		value = bytes.TrimRight(bytes.TrimPrefix(value, []byte(" ")), "\r\n")
		if joined == nil {
			joined = value
			continue
		}
		joined = append(append(slices.Clip(joined), '\n'), value...)
	}
	return joined
}

// Payloads calls yield with the payload of each event that has one, in the order of the text, until yield returns false. An
// event that is not terminated counts.
func Payloads(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			if data, rest, ok := cutSimple(text); ok {
				if text = rest; !yield(data) {
					return
				}
				continue
			}
			var event []byte
			event, text = splitEvent(text)
			if data := payload(event); len(data) > 0 && !yield(data) {
				return
			}
		}
	}
}

// cutSimple splits the first event from text if it is one line of data and ends with \n\n, as vLLM writes every event. It
// takes less than half of the time of splitEvent and payload.
func cutSimple(text []byte) (data, rest []byte, ok bool) {
	value, ok := bytes.CutPrefix(text, []byte("data: "))
	if !ok {
		return nil, nil, false
	}
	end := bytes.IndexByte(value, '\n')
	if end <= 0 || end+1 == len(value) || value[end+1] != '\n' || value[end-1] == '\r' {
		return nil, nil, false
	}
	return value[:end], value[end+2:], true
}
