package proxy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// depth is how deep a JSON text nests.
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

// What is JSON here is JSON to encoding/json, and each value is taken as it stands.
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
		text = slices.Clip(text) // nothing behind it that could be read by mistake
		var read told
		err := read.read(text)
		want := json.Valid(text) && len(bytes.TrimSpace(text)) > 0 && bytes.TrimSpace(text)[0] == '{'
		if want && depth(text) > deepest {
			want = false
		}
		if (err == nil) != want {
			t.Fatalf("%q: %v, but encoding/json says %t", text, err, want)
		}
		for _, c := range read.choices {
			for _, value := range [][]byte{c.text, c.logprobs, c.finish, read.usage, read.failure, read.object} {
				if err == nil && value != nil && !json.Valid(value) {
					t.Fatalf("%q: took %q", text, value)
				}
			}
		}
	})
}

// An event says the same whatever was read before it.
func FuzzRecurring(f *testing.F) {
	const before, behind = `{"id":"cmpl-1","choices":[{"index":0,"text":`, `,"logprobs":null,"finish_reason":null}],"usage":null}`
	first := before + `" Paris"` + behind
	for _, second := range []string{
		first, before + `""` + behind, before + `" \"x\u00e9"` + behind, before + `"a","text":"b"` + behind, before + `null` + behind,
		before + `"a\"` + behind, before + ` "a"` + behind, before + `"a" ` + behind, before + behind, before + `"` + behind, behind, before,
		strings.Replace(first, `"finish_reason":null`, `"finish_reason":"stop"`, 1), strings.Replace(first, `"index":0`, `"index":1`, 1),
		strings.Replace(first, `"usage":null`, `"usage":{"prompt_tokens":1}`, 1), `{"error":{"message":"x"}}`, first + "x", "\"" + first,
	} {
		f.Add([]byte(first), []byte(second))
		f.Add([]byte(second), []byte(first))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var fresh told
		var r recurring
		_ = r.read(first)
		for range 2 {
			err, want := r.read(second), fresh.read(second)
			if (err == nil) != (want == nil) {
				t.Fatalf("%q behind %q: %v, want %v", second, first, err, want)
			}
			if err != nil {
				return
			}
			if r.failed() != fresh.failed() || r.cost() != fresh.cost() || len(r.choices) != len(fresh.choices) {
				t.Fatalf("%q behind %q: %+v, want %+v", second, first, r.told, fresh)
			}
			for i := range fresh.choices {
				got, want := &r.choices[i], &fresh.choices[i]
				scored := bytes.Equal(got.logprobs, want.logprobs) || absent(got.logprobs) && absent(want.logprobs)
				if got.index != want.index || !bytes.Equal(got.text, want.text) || got.finished() != want.finished() || got.aborted() != want.aborted() || !scored {
					t.Fatalf("%q behind %q: %+v, want %+v", second, first, *got, *want)
				}
			}
			first = second
		}
	})
}

func TestATextIsReadWhereverItsWordsLie(t *testing.T) {
	for padding := range 20 {
		for _, inside := range []string{``, `\"`, `\\`, `\u00e9`, `é`, strings.Repeat("x", 17) + `\n`} {
			var read told
			text := strings.Repeat(" ", padding) + `{"choices":[{"index":12,"text":"` + inside + `","finish_reason":null}]}`
			if err := read.read([]byte(text)); err != nil || len(read.choices) != 1 || string(read.choices[0].text) != `"`+inside+`"` || read.choices[0].index != 12 {
				t.Errorf("%s: %v %+v", text, err, read)
			}
		}
		for _, bad := range []string{"\n", "\x1f", `\`, `\x`, `\u12g4`} {
			var read told
			if read.read([]byte(`{"a":"`+strings.Repeat("x", padding)+bad+`"}`)) == nil {
				t.Errorf("%q at %d is taken", bad, padding)
			}
		}
	}
}

func BenchmarkReadEvent(b *testing.B) {
	files, err := filepath.Glob("testdata/sse/*.sse")
	if err != nil || len(files) == 0 {
		b.Fatalf("no transcripts: %v", err)
	}
	transcript, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		b.Fatal(err)
	}
	event, _ := cut(transcript)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	t := newTranscript(1, false)
	t.choice(0)
	for b.Loop() {
		t.choices[0].text = t.choices[0].text[:0]
		t.read(event)
	}
}

func BenchmarkReadOtherEvent(b *testing.B) { // than the one before
	event := []byte(`data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":null}]}` + "\n\n")
	other := bytes.Replace(event, []byte(`"index":0`), []byte(`"index":1`), 1)
	b.ReportAllocs()
	t := newTranscript(2, false)
	t.choice(1)
	for b.Loop() {
		t.choices[0].text, t.choices[1].text = t.choices[0].text[:0], t.choices[1].text[:0]
		t.read(event)
		t.read(other)
	}
}

func BenchmarkReadPlain(b *testing.B) {
	body := []byte(`{"choices":[{"index":0,"text":"` + strings.Repeat(`some words\n`, 10_000) + `","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var read told
	for b.Loop() {
		if err := read.read(body); err != nil {
			b.Fatal(err)
		}
	}
}
