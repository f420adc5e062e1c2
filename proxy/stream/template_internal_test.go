package stream

import (
	"bytes"
	"strings"
	"testing"
)

// A chunk is parsed to the same object with and without a template of the previous chunk.
func FuzzChunkTemplate(f *testing.F) {
	const prefix, suffix = `{"id":"cmpl-1","choices":[{"index":0,"text":`, `,"logprobs":null,"finish_reason":null}],"usage":null}`
	first := prefix + `" Paris"` + suffix
	for _, second := range []string{
		first, prefix + `""` + suffix, prefix + `" \"x\u00e9"` + suffix, prefix + `"a","text":"b"` + suffix, prefix + `null` + suffix,
		prefix + `"a\"` + suffix, prefix + ` "a"` + suffix, prefix + `"a" ` + suffix, prefix + suffix, prefix + `"` + suffix, suffix, prefix,
		strings.Replace(first, `"finish_reason":null`, `"finish_reason":"stop"`, 1), strings.Replace(first, `"index":0`, `"index":1`, 1),
		strings.Replace(first, `"usage":null`, `"usage":{"prompt_tokens":1}`, 1), `{"error":{"message":"x"}}`, first + "x", "\"" + first,
	} {
		f.Add([]byte(first), []byte(second))
		f.Add([]byte(second), []byte(first))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var fresh Object
		var template chunkTemplate
		_ = template.Parse(first)
		for range 2 {
			err, want := template.Parse(second), fresh.Parse(second)
			if (err == nil) != (want == nil) {
				t.Fatalf("%q after %q: %v, want %v", second, first, err, want)
			}
			if err != nil {
				return
			}
			if template.IsError() != fresh.IsError() || template.Usage() != fresh.Usage() || len(template.choices) != len(fresh.choices) {
				t.Fatalf("%q after %q: %+v, want %+v", second, first, template.Object, fresh)
			}
			for i := range fresh.choices {
				got, want := &template.choices[i], &fresh.choices[i]
				sameLogprobs := bytes.Equal(got.logprobs, want.logprobs) || isNull(got.logprobs) && isNull(want.logprobs)
				if got.index != want.index || !bytes.Equal(got.text, want.text) || got.finished() != want.finished() || got.aborted() != want.aborted() || !sameLogprobs {
					t.Fatalf("%q after %q: %+v, want %+v", second, first, *got, *want)
				}
			}
			first = second
		}
	})
}
