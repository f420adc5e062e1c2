package proxy

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// sliced reads source in pieces whose sizes are the bytes of plan, over and over.
type sliced struct {
	source io.Reader
	plan   []byte
	turn   int
}

func (s *sliced) Read(p []byte) (int, error) {
	size := 1
	if len(s.plan) > 0 {
		size = 1 + int(s.plan[s.turn%len(s.plan)])
		s.turn++
	}
	return s.source.Read(p[:min(size, len(p))])
}

// all reads a source to its end: the events, and the error that ended them.
func all(source io.Reader) (list []string, end error) {
	e := newEvents(source)
	defer e.release()
	for {
		batch, err := e.batch()
		if err != nil {
			return list, err
		}
		for len(batch) > 0 {
			var one []byte
			one, batch = cut(batch)
			list = append(list, string(one))
		}
	}
}

// However a stream is split on its way, it is the same events; and nothing of it is lost but a part of an event at
// its end.
func FuzzEvents(f *testing.F) {
	for _, text := range []string{
		"data: {}\n\ndata: [DONE]\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", ": c\n\n\n\ndata:\n\n", "data: a\n\ndata: unfinished",
		"\n", "\r\n\r\n", "a\nb\n\r\nc\n\n", string(bytes.Repeat([]byte("x"), 9000)) + "\n\n",
	} {
		f.Add([]byte(text), []byte{0, 3, 200})
	}
	f.Fuzz(func(t *testing.T, text, plan []byte) {
		whole, end := all(bytes.NewReader(text))
		pieces, pieceEnd := all(&sliced{source: bytes.NewReader(text), plan: plan})
		single, singleEnd := all(iotest.OneByteReader(bytes.NewReader(text)))
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
			t.Fatalf("of %q came %q, %v", text, joined, end)
		}
	})
}

func TestThePayloadStandsBehindData(t *testing.T) {
	for event, want := range map[string]string{
		"data: x\n\n": "x", "data:x\n\n": "x", "data: x\r\n\r\n": "x", "data: x\r\n\n": "x", "data: x": "x", "data: x\n": "x", "data: \n\n": "", "data: ": "",
		"data: a\ndata: b\n\n": "a\nb", "id: 1\ndata: x\n\n": "x", ": x\n\n": "", "\n\n": "",
	} {
		if got := string(data([]byte(event))); got != want {
			t.Errorf("%q: got %q, want %q", event, got, want)
		}
	}
}
