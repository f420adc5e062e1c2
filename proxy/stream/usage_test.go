package stream_test

import (
	"slices"
	"testing"

	"basegate/proxy/stream"
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

// llama.cpp has no event for the usage: the event that finishes a choice has it, with the counts of this choice.
func TestUsageOfFinishingEvents(t *testing.T) {
	chunk := func(index, finish, usage string) string {
		return `data: {"choices":[{"index":` + index + `,"text":"a","finish_reason":` + finish + `}]` + usage + "}\n\n"
	}
	usage := func(prompt, completion string) string {
		return `,"usage":{"prompt_tokens":` + prompt + `,"completion_tokens":` + completion + `}`
	}
	const stop = `"stop"`
	for name, c := range map[string]struct {
		choices, perPrompt int
		events             string
		want               stream.Usage
	}{
		"one choice":               {1, 1, chunk("0", "null", "") + chunk("0", stop, usage("6", "3")), stream.Usage{Prompt: 6, Completion: 3, Known: true}},
		"n choices of a prompt":    {2, 2, chunk("1", stop, usage("6", "3")) + chunk("0", stop, usage("6", "5")), stream.Usage{Prompt: 6, Completion: 8, Known: true}},
		"two prompts":              {2, 1, chunk("0", stop, usage("6", "3")) + chunk("1", stop, usage("2", "5")), stream.Usage{Prompt: 8, Completion: 8, Known: true}},
		"the whole at the end":     {2, 2, chunk("0", stop, "") + chunk("1", stop, usage("6", "9")), stream.Usage{Prompt: 6, Completion: 9, Known: true}},
		"an event of its own wins": {1, 1, chunk("0", stop, usage("6", "3")) + `data: {"choices":[]` + usage("7", "4") + "}\n\n", stream.Usage{Prompt: 7, Completion: 4, Known: true}},
		"empty usage":              {1, 1, chunk("0", stop, `,"usage":{}`), stream.Usage{}},
		"no usage":                 {1, 1, chunk("0", stop, ""), stream.Usage{}},
		"not on the last":          {2, 2, chunk("0", stop, usage("6", "3")) + chunk("1", stop, ""), stream.Usage{}},
		"on two of three":          {3, 3, chunk("0", stop, "") + chunk("1", stop, usage("6", "3")) + chunk("2", stop, usage("6", "3")), stream.Usage{}},
		"not finished":             {1, 1, chunk("0", "null", usage("6", "3")), stream.Usage{}},
	} {
		s := stream.NewState(stream.Limits{Choices: c.choices}, true, nil)
		s.Add([]byte(c.events))
		if got := s.Usage(c.perPrompt); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		s.Release()
	}
}
