package stream

import (
	"testing"
)

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
