package stream

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// slicedReader reads source in pieces whose sizes are the bytes of plan, repeated.
type slicedReader struct {
	source io.Reader
	plan   []byte
	reads  int
}

func (s *slicedReader) Read(p []byte) (int, error) {
	size := 1
	if len(s.plan) > 0 {
		size = 1 + int(s.plan[s.reads%len(s.plan)])
		s.reads++
	}
	return s.source.Read(p[:min(size, len(p))])
}

// readAll returns all events of a source, and the error that ended it.
func readAll(source io.Reader) (events []string, end error) {
	r := NewReader(source)
	defer r.Release()
	for {
		batch, err := r.Next()
		if err != nil {
			return events, err
		}
		for len(batch) > 0 {
			var one []byte
			one, batch = splitEvent(batch)
			events = append(events, string(one))
		}
	}
}

// However the network splits a stream, the events are the same, and only an incomplete event at the end is lost.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"data: {}\n\ndata: [DONE]\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", ": c\n\n\n\ndata:\n\n", "data: a\n\ndata: unfinished",
		"\n", "\r\n\r\n", "a\nb\n\r\nc\n\n", string(bytes.Repeat([]byte("x"), 9000)) + "\n\n",
	} {
		f.Add([]byte(text), []byte{0, 3, 200})
	}
	f.Fuzz(func(t *testing.T, text, plan []byte) {
		whole, end := readAll(bytes.NewReader(text))
		pieces, pieceEnd := readAll(&slicedReader{source: bytes.NewReader(text), plan: plan})
		single, singleEnd := readAll(iotest.OneByteReader(bytes.NewReader(text)))
		if !errors.Is(pieceEnd, end) || !errors.Is(singleEnd, end) {
			t.Fatalf("ends differ: %v, %v, %v", end, pieceEnd, singleEnd)
		}
		joined := ""
		for i, event := range whole {
			if i >= len(pieces) || i >= len(single) || pieces[i] != event || single[i] != event {
				t.Fatalf("event %d differs: %q, %q, %q", i, whole, pieces, single)
			}
			joined += event
		}
		if len(pieces) != len(whole) || len(single) != len(whole) {
			t.Fatalf("%d, %d and %d events", len(whole), len(pieces), len(single))
		}
		if !bytes.HasPrefix(text, []byte(joined)) || (errors.Is(end, io.EOF) && joined != string(text)) {
			t.Fatalf("%q was read as %q, %v", text, joined, end)
		}
	})
}

func TestPayloadIsTheValueOfTheDataField(t *testing.T) {
	for event, want := range map[string]string{
		"data: x\n\n": "x", "data:x\n\n": "x", "data: x\r\n\r\n": "x", "data: x\r\n\n": "x", "data: x": "x", "data: x\n": "x", "data: \n\n": "", "data: ": "",
		"data: a\ndata: b\n\n": "a\nb", "id: 1\ndata: x\n\n": "x", ": x\n\n": "", "\n\n": "",
	} {
		if got := string(payload([]byte(event))); got != want {
			t.Errorf("%q: got %q, want %q", event, got, want)
		}
	}
}
