package stream

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"basegate/internal/ssetest"
)

func BenchmarkAddEvent(b *testing.B) {
	streams := ssetest.Streams()
	recorded := slices.IndexFunc(streams, func(s ssetest.Stream) bool { return s.Name == "vllm-0.6.sse" })
	event := []byte(streams[recorded].Events[0])
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	s := NewState(Limits{Choices: 1}, false, nil)
	s.choices.get(0)
	for b.Loop() {
		s.choices.all[0].text = s.choices.all[0].text[:0]
		s.addEvent(event)
	}
}

// The choices alternate, so the template of the previous chunk never matches.
func BenchmarkAddEventOfAnotherChoice(b *testing.B) {
	event := []byte(`data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":null}]}` + "\n\n")
	other := bytes.Replace(event, []byte(`"index":0`), []byte(`"index":1`), 1)
	b.ReportAllocs()
	s := NewState(Limits{Choices: 2}, false, nil)
	s.choices.get(0)
	s.choices.get(1)
	for b.Loop() {
		for i := range s.choices.all {
			s.choices.all[i].text = s.choices.all[i].text[:0]
		}
		s.addEvent(event)
		s.addEvent(other)
	}
}

func BenchmarkParsePlain(b *testing.B) {
	body := []byte(`{"choices":[{"index":0,"text":"` + strings.Repeat(`some words\n`, 10_000) + `","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var object Object
	for b.Loop() {
		if err := object.Parse(body); err != nil {
			b.Fatal(err)
		}
	}
}
