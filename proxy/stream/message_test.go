package stream_test

import (
	"slices"
	"testing"

	"basegate/proxy/stream"
)

// chatEvent returns an event with a delta and a finish reason.
func chatEvent(delta, finish string) string {
	return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta +
		`,"logprobs":null,"finish_reason":` + finish + `}]}` + "\n\n"
}

func TestChatStreamCountsEveryKindOfText(t *testing.T) {
	s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
	defer s.Release()
	for _, event := range []string{
		chatEvent(`{"role":"assistant","content":""}`, "null"),
		chatEvent(`{"reasoning":"so"}`, "null"),
		chatEvent(`{"reasoning":" it is"}`, "null"),
		chatEvent(`{"reasoning_content":"old"}`, "null"),
		chatEvent(`{"content":"a"}`, "null"),
		chatEvent(`{"content":"b\"c"}`, "null"),
		chatEvent(`{"content":null,"tool_calls":[{"id":"c","type":"function","index":0,"function":{"name":"f","arguments":"{"}}]}`, "null"),
		chatEvent(`{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}`, "null"),
		chatEvent(`{"content":""}`, `"tool_calls"`),
	} {
		if pass, status := s.Add([]byte(event)); status != stream.Open || string(pass) != event {
			t.Fatalf("%s: status %d, passed on %q", event, status, pass)
		}
	}
	if _, status := s.Add([]byte("data: [DONE]\n\n")); status != stream.Complete {
		t.Fatalf("status %d, want complete: %v", status, s.Failure())
	}
	choices := s.Choices()
	if s.Tokens() != 7 || len(choices) != 1 {
		t.Fatalf("%d tokens of %d choices, want 7 of 1", s.Tokens(), len(choices))
	}
	want := []string{"so", " it is", "old", "a", `b"c`, "f{", "}"}
	if got := slices.Collect(choices[0].Texts("")); !slices.Equal(got, want) {
		t.Errorf("texts %q, want %q", got, want)
	}
}

func TestChatStreamCountsLogprobs(t *testing.T) {
	s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
	defer s.Release()
	s.Add([]byte(`data: {"choices":[{"index":0,"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-1},{"token":"b","logprob":-1}]},"finish_reason":null}]}` + "\n\n"))
	if s.Tokens() != 2 {
		t.Errorf("%d tokens, want the 2 that logprobs list", s.Tokens())
	}
}

func TestChatStreamEndsWithAnErrorAndWithoutAFinish(t *testing.T) {
	for event, kind := range map[string]stream.FailureKind{
		`data: {"error":{"message":"x","code":500}}` + "\n\n": stream.ErrorEvent,
		chatEvent(`{"content":""}`, `"abort"`):                stream.Aborted,
		"data: [DONE]\n\n":                                    stream.Truncated,
	} {
		s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
		s.Add([]byte(chatEvent(`{"content":"a"}`, "null")))
		if _, status := s.Add([]byte(event)); status != stream.Failed || s.Failure().Kind != kind {
			t.Errorf("%s: status %d, failure %v", event, status, s.Failure())
		}
		s.Release()
	}
}

func TestChatResponseWithoutUsageIsCountedByItsMessage(t *testing.T) {
	o := stream.NewObject(stream.Limits{})
	defer o.Release()
	err := o.Parse([]byte(`{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a","reasoning":"b","tool_calls":
		[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},"finish_reason":"stop"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(o.ChoiceUsage()[0].Texts("")); !slices.Equal(got, []string{`abf{"x":1}`}) {
		t.Errorf("texts %q", got)
	}
}
