package stream

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzPayloads compares the fast path for vLLM's form of an event with the general one.
func FuzzPayloads(f *testing.F) {
	for _, text := range []string{"data: a\n\ndata: b\n\n", "data: a\r\n\r\ndata:b\n\n", ": c\n\ndata: a\ndata: b\n\n", "data: \n\n", "data: a", "data: a\n", "data: a\r\n\n", "data:  a\n\nid: 1\n\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want [][]byte
		for rest := text; len(rest) > 0; {
			var event []byte
			event, rest = splitEvent(rest)
			if data := payload(event); len(data) > 0 {
				want = append(want, data)
			}
		}
		if got := slices.Collect(Payloads(text)); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	})
}
