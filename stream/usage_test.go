package stream_test

import (
	"slices"
	"testing"

	"basegate/stream"
)

// What an event lists is preferred to the number of events with text.
func TestEventsSayHowManyTokensTheyHold(t *testing.T) {
	chunk := func(members string) string {
		return `data: {"object":"text_completion",` + members + "}\n\n"
	}
	for name, c := range map[string]struct {
		events  string
		tokens  int64
		counted bool
	}{
		"text alone":                    {chunk(`"choices":[{"index":0,"text":"a b"}]`) + chunk(`"choices":[{"index":0,"text":""}]`), 1, false},
		"token_ids":                     {chunk(`"choices":[{"index":0,"text":"a b","token_ids":[1,2]}]`) + chunk(`"choices":[{"index":0,"text":"","token_ids":[3]}]`), 3, true},
		"null token_ids":                {chunk(`"choices":[{"index":0,"text":"a","token_ids":null}]`) + chunk(`"choices":[{"index":0,"text":"b","token_ids":null}]`), 2, false},
		"empty token_ids":               {chunk(`"choices":[{"index":0,"text":"a","token_ids":[]}]`), 1, false},
		"token_ids twice":               {chunk(`"choices":[{"index":0,"text":"a","token_ids":[1,2]}]`) + chunk(`"choices":[{"index":0,"text":"b","token_ids":[1,2]}]`), 4, true},
		"token_ids after a plain event": {chunk(`"choices":[{"index":0,"text":"a"}]`) + chunk(`"choices":[{"index":0,"text":"b","token_ids":[1,2]}]`), 2, true},
		"usage so far":                  {chunk(`"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":4,"completion_tokens":3}`) + chunk(`"choices":[{"index":0,"text":"b"}],"usage":{"prompt_tokens":4,"completion_tokens":7}`), 7, true},
		"null usage":                    {chunk(`"choices":[{"index":0,"text":"a"}],"usage":null`), 1, false},
		"usage of several":              {chunk(`"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}],"usage":{"prompt_tokens":4,"completion_tokens":9}`), 2, false},
		"malformed members":             {chunk(`"choices":[{"index":0,"text":"a","token_ids":"x"}],"usage":{"completion_tokens":-9}`), 1, false},
		"usage before the first text":   {chunk(`"choices":[{"index":0,"text":"","logprobs":null}],"usage":{"prompt_tokens":4,"completion_tokens":2}`), 2, true},
	} {
		s := stream.NewState(stream.Limits{Choices: 2}, true, nil)
		if _, status := s.Add([]byte(c.events)); status != stream.Open {
			t.Errorf("%s: got status %v, %v", name, status, s.Failure().Err)
		}
		if got := s.Tokens(); got != c.tokens {
			t.Errorf("%s: got %d tokens, want %d", name, got, c.tokens)
		}
		if first := s.Choices()[0]; first.IsCounted() != c.counted {
			t.Errorf("%s: got IsCounted %v, want %v", name, first.IsCounted(), c.counted)
		}
		s.Release()
	}
}

func TestTextsAreThoseOfTheEvents(t *testing.T) {
	var events []byte
	for _, text := range []string{`to \"b`, `e\" or`, ``, ` not\u0020`, "š�", `\ud800`} {
		events = append(events, `data: {"choices":[{"index":0,"text":"`+text+"\"}]}\n\n"...)
	}
	s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
	defer s.Release()
	s.Add(events)
	c := s.Choices()[0]
	for prompt, want := range map[string][]string{
		"":                 {`to "b`, `e" or`, " not ", "š\ufffd", `\ud800`},
		"to":               {` "b`, `e" or`, " not ", "š\ufffd", `\ud800`},
		`to "be"`:          {``, ` or`, " not ", "š\ufffd", `\ud800`},
		`to "be" or not š`: {``, ``, "", "\ufffd", `\ud800`},
		"something else":   {`to "b`, `e" or`, " not ", "š\ufffd", `\ud800`},
	} {
		if got := slices.Collect(c.Texts(prompt)); !slices.Equal(got, want) {
			t.Errorf("prompt %q: got %q, want %q", prompt, got, want)
		}
	}
	if c.Events != 5 {
		t.Errorf("got %d events with text, want 5", c.Events)
	}
}
