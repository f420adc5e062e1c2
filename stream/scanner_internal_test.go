package stream

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// depth returns how deep a JSON text nests.
func depth(text []byte) (deepest int) {
	d := json.NewDecoder(bytes.NewReader(text))
	for now := 0; ; {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			now++
			deepest = max(deepest, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
	}
}

// The scanner accepts what encoding/json accepts, and returns values that are JSON by themselves.
func FuzzScan(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"a":1}`, ` { "a" : [ 1 , -0.5e+10 , "x\"\\\u00e9\n" , null , true , false , {} , [] ] } `, `{"a":1,}`, `{"a" 1}`, `{"a":01}`,
		`{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a":"\x"}`, `{"a":"\u12"}`, "{\"a\":\"\t\"}", `{"a":"`, `{"a":tru}`, `{,}`, `[1]`, `"x"`, ``, `{} {}`,
		`{"choices":[{"index":0,"text":"` + strings.Repeat("é\\n", 50) + `","finish_reason":"stop"}]}`, "{\"a\":\"\x80\xff\"}",
		strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), `{"choices":[{"logprobs":{"tokens":["\u`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = slices.Clip(text) // so that a read past its end fails
		var object Object
		err := object.Parse(text)
		want := json.Valid(text) && len(bytes.TrimSpace(text)) > 0 && bytes.TrimSpace(text)[0] == '{'
		if want && depth(text) > maxDepth {
			want = false
		}
		if (err == nil) != want {
			t.Fatalf("%q: %v, but encoding/json says %t", text, err, want)
		}
		for _, c := range object.choices {
			for _, value := range [][]byte{c.text, c.logprobs, c.finishReason, object.usage, object.failure, object.object} {
				if err == nil && value != nil && !json.Valid(value) {
					t.Fatalf("%q: returned the value %q", text, value)
				}
			}
		}
	})
}

// A chunk parses to the same object whatever was parsed before it.
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
				scored := bytes.Equal(got.logprobs, want.logprobs) || isNull(got.logprobs) && isNull(want.logprobs)
				if got.index != want.index || !bytes.Equal(got.text, want.text) || got.finished() != want.finished() || got.aborted() != want.aborted() || !scored {
					t.Fatalf("%q after %q: %+v, want %+v", second, first, *got, *want)
				}
			}
			first = second
		}
	})
}

func TestStringsAreScannedAtEveryAlignment(t *testing.T) {
	for padding := range 20 {
		for _, inside := range []string{``, `\"`, `\\`, `\u00e9`, `é`, strings.Repeat("x", 17) + `\n`} {
			var object Object
			text := strings.Repeat(" ", padding) + `{"choices":[{"index":12,"text":"` + inside + `","finish_reason":null}]}`
			if err := object.Parse([]byte(text)); err != nil || len(object.choices) != 1 || string(object.choices[0].text) != `"`+inside+`"` || object.choices[0].index != 12 {
				t.Errorf("%s: %v %+v", text, err, object)
			}
		}
		for _, bad := range []string{"\n", "\x1f", `\`, `\x`, `\u12g4`} {
			var object Object
			if object.Parse([]byte(`{"a":"`+strings.Repeat("x", padding)+bad+`"}`)) == nil {
				t.Errorf("%q at %d was accepted", bad, padding)
			}
		}
	}
}

func BenchmarkAddEvent(b *testing.B) {
	files, err := filepath.Glob("testdata/sse/*.sse")
	if err != nil || len(files) == 0 {
		b.Fatalf("no recorded streams: %v", err)
	}
	recorded, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		b.Fatal(err)
	}
	event, _ := splitEvent(recorded)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	s := NewState(1, false, nil)
	s.choice(0)
	for b.Loop() {
		s.choices[0].text = s.choices[0].text[:0]
		s.addEvent(event)
	}
}

// Alternating choices: the template of the previous chunk does not match.
func BenchmarkAddEventOfAnotherChoice(b *testing.B) {
	event := []byte(`data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":null}]}` + "\n\n")
	other := bytes.Replace(event, []byte(`"index":0`), []byte(`"index":1`), 1)
	b.ReportAllocs()
	s := NewState(2, false, nil)
	s.choice(1)
	for b.Loop() {
		s.choices[0].text, s.choices[1].text = s.choices[0].text[:0], s.choices[1].text[:0]
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
