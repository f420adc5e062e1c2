package stream_test

import (
	"testing"

	"basegate/proxy/stream"
)

func TestIsErrorLooksAtTheTopLevelMembersOnly(t *testing.T) {
	for body, want := range map[string]bool{
		`{"error": null, "object": "text_completion", "choices": []}`: false,
		`{"object": "text_completion"}`:                               false,
		`{}`:                                                          false,
		`{"choices": [{"error": {"message": "inside"}}]}`:             false,
		`{"choices": [{"text": "\"error\": {}", "object": "error"}]}`: false,
		`{"object": 1}`:                                               false,
		`{"object": "Error"}`:                                         false,
		`{"choices": [], "detail": "text"}`:                           false,
		`{"detail": null}`:                                            false,
		`{"error": {}}`:                                               true,
		`{"error": "text"}`:                                           true,
		`{"error": ""}`:                                               true,
		`{"error": false}`:                                            true,
		`{"object": "error"}`:                                         true,
		`{"error": null, "object": "error"}`:                          true,
		`{"detail": "Not Found"}`:                                     true,
		`{"detail": [{"loc": ["body", "prompt"]}]}`:                   true,
	} {
		var object stream.Object
		if err := object.Parse([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if got := object.IsError(); got != want {
			t.Errorf("%s: got %t, want %t", body, got, want)
		}
	}
}

// An absent count is not zero: a request whose usage is incomplete would be charged nothing.
func TestUsageIsKnownOnlyWithBothCounts(t *testing.T) {
	for usage, want := range map[string]stream.Usage{
		`{"prompt_tokens": 5, "completion_tokens": 0}`: {Prompt: 5, Known: true},
		`{"prompt_tokens": 5, "completion_tokens": 3}`: {Prompt: 5, Completion: 3, Known: true},
		`{}`:                       {},
		`{"prompt_tokens": 5}`:     {},
		`{"completion_tokens": 3}`: {},
		`{"prompt_tokens": 5, "completion_tokens": null}`: {},
		`{"prompt_tokens": "5", "completion_tokens": 3}`:  {},
		`null`: {},
		`[]`:   {},
	} {
		var object stream.Object
		if err := object.Parse([]byte(`{"choices": [{"index": 0}], "usage": ` + usage + `}`)); err != nil {
			t.Errorf("%s: %v", usage, err)
		}
		if got := object.Usage(); got != want {
			t.Errorf("%s: got %+v, want %+v", usage, got, want)
		}
	}
}

// Zeros beside text would be free. A prompt has a token at least.
func TestUsageOfZeroBesideTextIsNotKnown(t *testing.T) {
	const none = `{"prompt_tokens": 5, "completion_tokens": 0}`
	for body, known := range map[string]bool{
		`{"choices": [{"text": ""}], "usage": ` + none + `}`:                                                                  true,
		`{"choices": [{"text": "a"}], "usage": ` + none + `}`:                                                                 false,
		`{"choices": [{"text": ""}, {"index": 1, "text": "a"}], "usage": ` + none + `}`:                                       false,
		`{"choices": [{"message": {"content": "a"}}], "usage": ` + none + `}`:                                                 false,
		`{"choices": [{"message": {"tool_calls": [{"function": {"name": "f"}}]}}], "usage": ` + none + `}`:                    false,
		`{"choices": [{"text": "", "token_ids": [7]}], "usage": ` + none + `}`:                                                false,
		`{"choices": [{"text": "", "logprobs": {"tokens": ["a"]}}], "usage": ` + none + `}`:                                   false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 0, "completion_tokens": 3}}`:                                 false,
		`{"choices": [{"text": ""}], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}`:                                  false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": -5, "completion_tokens": 3}}`:                                false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": -3}}`:                                false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": 3.5}}`:                               false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": 3e0}}`:                               false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": true}}`:                              false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 99999999999999999999999999, "completion_tokens": 3}}`:        false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": 9223372036854775808}, "detail": ""}`: false,
		`{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": 99999}}`:                             true,
	} {
		var object stream.Object
		if err := object.Parse([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if got := object.Usage(); got.Known != known {
			t.Errorf("%s: got %+v, want Known %t", body, got, known)
		}
	}
}

func TestObjectIsCompleteWithEveryChoiceOnceAndFinished(t *testing.T) {
	const zero, one = `{"index": 0, "text": "a", "finish_reason": "stop"}`, `{"index": 1, "message": {"content": "b"}, "finish_reason": "length"}`
	for choices, want := range map[string]bool{
		zero + "," + one: true,
		one + "," + zero: true,
		`{"text": "a", "finish_reason": "stop"},` + one: true, // some encoders leave out a zero
		"":                false,
		zero:              false,
		zero + "," + zero: false,
		one + "," + one:   false,
		zero + `,{"index": 2, "finish_reason": "stop"}`:     false,
		zero + `,{"index": -1, "finish_reason": "stop"}`:    false,
		zero + `,{"index": "1", "finish_reason": "stop"}`:   false,
		zero + `,{"index": 1.0, "finish_reason": "stop"}`:   false,
		zero + `,{"index": 1e10, "finish_reason": "stop"}`:  false,
		zero + `,{"index": null, "finish_reason": "stop"}`:  false,
		zero + `,{"finish_reason": "stop"}`:                 false,
		zero + `,{"index": 1}`:                              false,
		zero + `,{"index": 1, "finish_reason": null}`:       false,
		zero + `,{"index": 1, "finish_reason": ""}`:         false,
		zero + `,{"index": 1, "finish_reason": false}`:      false,
		zero + `,{"index": 1, "finish_reason": {"a": "b"}}`: false,
		zero + `,null`: false,
		zero + `,7`:    false,
	} {
		var object stream.Object
		if err := object.Parse([]byte(`{"choices": [` + choices + `]}`)); err != nil {
			t.Errorf("%s: %v", choices, err)
		}
		if got := object.IsComplete(2); got != want {
			t.Errorf("%s: got %t, want %t", choices, got, want)
		}
	}
}
