package stream

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// shortReader reads from source at most sizes[i]+1 bytes in its i-th read; the sizes repeat.
type shortReader struct {
	source io.Reader
	sizes  []byte
	reads  int
}

func (s *shortReader) Read(p []byte) (int, error) {
	size := 1
	if len(s.sizes) > 0 {
		size = 1 + int(s.sizes[s.reads%len(s.sizes)])
		s.reads++
	}
	return s.source.Read(p[:min(size, len(p))])
}

// readAll returns all events of a source, and the error that ended it.
func readAll(source io.Reader) (events []string, end error) {
	r := NewReader(source, Limits{})
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

// The events are the same however the network splits a stream, and only an incomplete event at the end is lost.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"data: {}\n\ndata: [DONE]\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", ": c\n\n\n\ndata:\n\n", "data: a\n\ndata: unfinished",
		"\n", "\r\n\r\n", "a\nb\n\r\nc\n\n", string(bytes.Repeat([]byte("x"), 9000)) + "\n\n",
	} {
		f.Add([]byte(text), []byte{0, 3, 200})
	}
	f.Fuzz(func(t *testing.T, text, sizes []byte) {
		whole, end := readAll(bytes.NewReader(text))
		pieces, pieceEnd := readAll(&shortReader{source: bytes.NewReader(text), sizes: sizes})
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
			t.Fatalf("got %d, %d and %d events", len(whole), len(pieces), len(single))
		}
		if !bytes.HasPrefix(text, []byte(joined)) || (errors.Is(end, io.EOF) && joined != string(text)) {
			t.Fatalf("%q: the events joined are %q, %v", text, joined, end)
		}
	})
}
