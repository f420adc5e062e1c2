package stream

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// depth returns how deep a JSON text nests.
func depth(text []byte) (deepest int) {
	d := json.NewDecoder(bytes.NewReader(text))
	for current := 0; ; {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			current++
			deepest = max(deepest, current)
		case json.Delim('}'), json.Delim(']'):
			current--
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
			for _, value := range [][]byte{c.text, c.logprobs, c.finishReason, object.details.Usage, object.failure, object.object} {
				if err == nil && value != nil && !json.Valid(value) {
					t.Fatalf("%q: the scanner returned the invalid value %q", text, value)
				}
			}
		}
	})
}

func TestStringsAreScannedAtEveryAlignment(t *testing.T) {
	for padding := range 20 {
		for _, inside := range []string{``, `\"`, `\\`, `\u00e9`, `é`, strings.Repeat("x", 17) + `\n`} {
			var object Object
			text := strings.Repeat(" ", padding) + `{"choices":[{"index":12,"text":"` + inside + `","finish_reason":null}]}`
			if err := object.Parse([]byte(text)); err != nil || len(object.choices) != 1 || string(object.choices[0].text) != `"`+inside+`"` || object.choices[0].index != 12 {
				t.Errorf("%s: got %+v, %v", text, object, err)
			}
		}
		for _, bad := range []string{"\n", "\x1f", `\`, `\x`, `\u12g4`} {
			var object Object
			if object.Parse([]byte(`{"a":"`+strings.Repeat("x", padding)+bad+`"}`)) == nil {
				t.Errorf("%q at offset %d of a string was accepted", bad, padding)
			}
		}
	}
}
