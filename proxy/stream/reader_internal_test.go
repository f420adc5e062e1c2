package stream

import (
	"bytes"
	"errors"
	"io"
	"strings"
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

// readAll returns all events of a source, without comments, and the error that ended it.
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
			if one = withoutComments(one); len(one) > 0 {
				events = append(events, string(one))
			}
		}
	}
}

// dataLines returns the lines of a stream that are neither blank nor comments.
func dataLines(text []byte) string {
	var kept strings.Builder
	for line := range bytes.Lines(text) {
		if lineBreak(line) == 0 && line[0] != ':' {
			kept.Write(line)
		}
	}
	return kept.String()
}

// The events are the same however the network splits a stream, and only an incomplete event at the end is lost.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"data: {}\n\ndata: [DONE]\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", ": c\n\n\n\ndata:\n\n", "data: a\n\ndata: unfinished",
		"\n", "\r\n\r\n", ": c\n: d\r\ndata: a\n: e\n\n\r\n:", "data: a\n\n: c\n\n: d\n", "a\nb\n\r\nc\n\n", string(bytes.Repeat([]byte("x"), 9000)) + "\n\n",
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
		for i, event := range whole {
			if i >= len(pieces) || i >= len(single) || pieces[i] != event || single[i] != event {
				t.Fatalf("event %d differs: %q, %q, %q", i, whole, pieces, single)
			}
		}
		if len(pieces) != len(whole) || len(single) != len(whole) {
			t.Fatalf("got %d, %d and %d events", len(whole), len(pieces), len(single))
		}
		sent, got := dataLines(text), dataLines([]byte(strings.Join(whole, "")))
		if !strings.HasPrefix(sent, got) || (errors.Is(end, io.EOF) && got != sent) {
			t.Fatalf("%q: the events are %q, %v", text, whole, end)
		}
	})
}
