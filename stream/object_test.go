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
		`{"error": {}}`:                                               true,
		`{"error": "text"}`:                                           true,
		`{"error": ""}`:                                               true,
		`{"error": false}`:                                            true,
		`{"object": "error"}`:                                         true,
		`{"error": null, "object": "error"}`:                          true,
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
