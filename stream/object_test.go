package stream_test

import (
	"testing"

	"basegate/stream"
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
