package mockvllm

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/tidwall/gjson"
)

// FuzzConstraints checks that no constraint, however odd, crashes or occupies the mock, and that regex and json conform.
func FuzzConstraints(f *testing.F) {
	for _, text := range []string{
		`[a-z]{2,}|\d?`, `((((a*)*)*)*)*`, `(((((()*)*)*)*)*)*`, `^\bx$`, `[^\x00-\x{10FFFF}]`,
		"root ::= \"a\" root | (\"b\"* [c-e]+)*", "start: A | B\nA: /x+/i\nB: 'y\\''", `root ::= ((((("a"*)*)*)*)*)*`,
		`{"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a","b"]}`,
		`{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}`, `{"type":"array","minItems":1e9,"items":{"type":"string","minLength":1e9}}`,
		`{"type":"number","minimum":1.5,"maximum":1.7}`, `{"type":"integer","multipleOf":0}`,
		`{"allOf":[{"properties":{"a":{"enum":[1]}}},{"required":["a"]}]}`, `{"$ref":"#/a~1b"}`, `{"type":"string","pattern":"("}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []string{"regex", "grammar", "json"} {
			c := constraint{kind, gjson.Result{Type: gjson.String, Str: text}}
			got, failure := c.generate()
			if failure == nil && kind == "json" && json.Valid([]byte(text)) && !json.Valid([]byte(got)) {
				t.Errorf("%q: generated %q, which is not JSON", text, got)
			}
		}
	})
}

func TestGeneratedTextMatchesItsPattern(t *testing.T) {
	for _, pattern := range []string{
		`[a-f]+`, `(ab|c)?d{2,4}`, `\d{3}-\d{4}`, `[^a]x*`, `.(?:y|z)+`, `\p{Greek}{2}`, `(?i)yes`, `a{3,}`, `^start$`,
		`(x[^ -~]|y)+`, `(a{9}){9}`,
	} {
		whole := regexp.MustCompile(`^(?:` + pattern + `)$`)
		g := new(generator)
		if err := g.regex(pattern); err != nil || !whole.MatchString(g.out.String()) {
			t.Errorf("%s: generated %q, error %v", pattern, g.out.String(), err)
		}
	}
}
