package validate_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	apierr "basegate/errors"
	"basegate/validate"
)

// minimal is a valid body with the required fields only.
const minimal = `{"model": "m", "prompt": "a"}`

func TestInvalidJSONIsReportedWithItsByteOffset(t *testing.T) {
	for _, c := range []struct {
		name, body string
		offset     int64
	}{
		{"empty", "", 0},
		{"only spaces", " \r\n\t", 0},
		{"null", "null", 0},
		{"a string", ` "abc"`, 1},
		{"a number", "12", 0},
		{"an array", "\n[1]", 1},
		{"not JSON at all", "model=m", 0},
		{"a NUL", "\x00", 0},
		{"a byte-order mark", "\xef\xbb\xbf" + minimal, 0},
		{"UTF-16", "{\x00\"\x00m\x00", 1},
		{"a second object", minimal + "{}", 29},
		{"a second object after spaces", minimal + "\n {}", 31},
		{"a comma after the object", minimal + ",", 29},
		{"a bracket after the object", minimal + "]", 29},
		{"a NUL after the object", minimal + "\x00", 29},
		{"a comment after the object", minimal + " // x", 30},
		{"a trailing comma", `{"model": "m",}`, 13},
		{"two commas", `{"model": "m",, "prompt": "a"}`, 14},
		{"a leading comma", `{, "model": "m"}`, 1},
		{"no comma", `{"model": "m" "prompt": "a"}`, 14},
		{"no colon", `{"model" "m"}`, 9},
		{"a name that is a number", `{1: 2}`, 1},
		{"a name that is an array", `{[]: 2}`, 1},
		{"a name in single quotes", `{'model': 'm'}`, 1},
		{"a bare name", `{model: "m"}`, 1},
		{"a comment", `{/* x */"model": "m"}`, 1},
		{"the wrong bracket", `{"model": "m"]`, 13},
		{"invalid UTF-8 in a value", "{\"model\": \"m\xff\"}", 12},
		{"invalid UTF-8 in a name", "{\"mo\xffdel\": \"m\"}", 4},
		{"an overlong encoding", "{\"model\": \"\xc0\xaf\"}", 11},
		{"a surrogate in UTF-8", "{\"model\": \"\xed\xa0\x80\"}", 11},
		{"a lone high surrogate", `{"model": "\ud800"}`, 11},
		{"a lone low surrogate", `{"model": "\udc00"}`, 11},
		{"a high surrogate before another escape", `{"model": "\ud800\n"}`, 11},
		{"surrogates in reverse order", `{"model": "\ude00\ud83d"}`, 11},
		{"a lone surrogate in a name", `{"\ud800": 1}`, 2},
		{"a raw newline in a string", "{\"model\": \"a\nb\"}", 12},
		{"a raw tab in a string", "{\"model\": \"a\tb\"}", 12},
		{"a raw NUL in a string", "{\"model\": \"a\x00b\"}", 12},
		{"an unknown escape", `{"model": "a\x"}`, 12},
		{"NaN", `{"temperature": NaN}`, 16},
		{"Infinity", `{"temperature": Infinity}`, 16},
		{"minus Infinity", `{"temperature": -Infinity}`, 17},
		{"NaN in an unknown field", `{"x": [NaN]}`, 7},
		{"undefined", `{"temperature": undefined}`, 16},
		{"True", `{"echo": True}`, 9},
		{"tru", `{"echo": tru}`, 12},
		{"a leading zero", `{"n": 01}`, 7},
		{"a plus sign", `{"n": +1}`, 6},
		{"hexadecimal", `{"n": 0x10}`, 7},
		{"a fraction without digits", `{"n": 1.}`, 8},
		{"a number without an integer part", `{"n": .5}`, 6},
		{"an exponent without digits", `{"n": 1e}`, 8},
		{"a lone minus", `{"n": -}`, 7},
	} {
		_, err := validate.Completion([]byte(c.body), defaultLimits)
		e := apierr.From(err)
		if err == nil || e.Code != apierr.BadJSON {
			t.Errorf("%s: %s", c.name, result(err))
			continue
		}
		if got := e.Extras[0]; got.Name != "offset" || got.Value != c.offset {
			t.Errorf("%s: %s, want offset %d", c.name, result(err), c.offset)
		}
	}
}

func TestWhiteSpaceAroundTheObjectIsAccepted(t *testing.T) {
	if _, err := validate.Completion([]byte(" \t\r\n"+minimal+" \t\r\n"), defaultLimits); err != nil {
		t.Error(result(err))
	}
}

// allKinds contains every kind of JSON value, so that a cut can fall inside each.
const allKinds = `{"model": "m\u0041\ud83d\ude00ž😀", "prompt": [[1, 20], [300]], "temperature": -0.5e-1, "stop": ["a", "\n"], "logit_bias": {"17": -3.5}, ` +
	`"echo": true, "stream": false, "n": null, "x": {"y": [1, {"z": []}]}, "temperature": 1 }`

func TestTruncatedBodyIsBadJSONAtItsEnd(t *testing.T) {
	for n := 1; n < len(allKinds); n++ {
		_, err := validate.Completion([]byte(allKinds[:n]), defaultLimits)
		e := apierr.From(err)
		if err == nil || e.Code != apierr.BadJSON {
			t.Errorf("%q: %s", allKinds[:n], result(err))
			continue
		}
		if e.Extras[0].Value != int64(n) {
			t.Errorf("%q: %s, want offset %d", allKinds[:n], result(err), n)
		}
	}
}

func TestNestingDepthIsLimitedEverywhere(t *testing.T) {
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	objects := func(levels int) string { return strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels) }
	for _, c := range []struct {
		name, before, after string
		outside             int // levels around the value
	}{
		{"unknown field", `{"x": `, `}`, 1},
		{"unknown field after an error", `{"n": 99, "x": `, `}`, 1},
		{"after a duplicate name", `{"n": 1, "n": 1, "x": `, `}`, 1},
		{"known field", `{"temperature": `, `}`, 1},
		{"prompt", `{"prompt": `, `}`, 1},
		{"after a text prompt", `{"prompt": ["a", `, `]}`, 2},
		{"after a token id", `{"prompt": [1, `, `]}`, 2},
		{"stop", `{"stop": [`, `]}`, 2},
		{"stream_options", `{"stream_options": {"x": `, `}}`, 2},
		{"include_usage", `{"stream_options": {"include_usage": `, `}}`, 2},
		{"logit_bias", `{"logit_bias": {"1": `, `}}`, 2},
	} {
		for kind, value := range map[string]func(int) string{"arrays": nested, "objects": objects} {
			if _, err := validate.Completion([]byte(c.before+value(32-c.outside)+c.after), defaultLimits); apierr.From(err).Code != apierr.InvalidRequest {
				t.Errorf("%s, %s, 32 levels: %s", c.name, kind, result(err))
			}
			_, err := validate.Completion([]byte(c.before+value(33-c.outside)+c.after), defaultLimits)
			if e := apierr.From(err); e.Code != apierr.BadJSON || !strings.Contains(e.Message, "32") {
				t.Errorf("%s, %s, 33 levels: %s", c.name, kind, result(err))
			}
		}
	}
}

// A body of opening brackets overflows the stack of a recursive parser.
func TestBodyOfOpeningBracketsIsRefused(t *testing.T) {
	for _, before := range []string{"", `{"x": `, `{"prompt": `, `{"x": 1, "x": `, `{`} {
		for _, bracket := range []string{"[", `{"a":`} {
			_, err := validate.Completion([]byte(before+strings.Repeat(bracket, 1<<20)), defaultLimits)
			if apierr.From(err).Code != apierr.BadJSON {
				t.Errorf("%s%s…: %s", before, bracket, result(err))
			}
		}
	}
}

func TestDuplicateNameIsRefusedAtEveryDepth(t *testing.T) {
	for _, c := range []struct{ body, name string }{
		{`{"model": "m", "prompt": "a", "model": "m"}`, "model"},
		{`{"model": "m", "prompt": "a", "prompt": "a"}`, "prompt"},
		{`{"max_tokens": 1, "max_tok\u0065ns": 2, "model": "m", "prompt": "a"}`, "max_tokens"},
		{`{"max_tok\u0065ns": 1, "max_tokens": 2, "model": "m", "prompt": "a"}`, "max_tokens"},
		{`{"max_tok\u0065ns": 1, "max_tok\u0065ns": 2}`, "max_tokens"},
		{`{"max_tokens": null, "max_tokens": null}`, "max_tokens"},
		{`{"us\u0065r": "a", "u\u0073er": "b"}`, "user"},
		{`{"stream": true, "stream_options": {"include_usage": true, "include_usage": false}}`, "include_usage"},
		{`{"stream": true, "stream_options": {"include_usage": true, "include\u005fusage": true}}`, "include_usage"},
		{`{"logit_bias": {"17": 1, "18": 2, "17": 3}}`, "17"},
		{`{"logit_bias": {"17": 1, "\u0031\u0037": 3}}`, "17"},
		{`{"logit_bias": {"17": 1, "17": "x", "y": 1}}`, "17"},
	} {
		_, err := validate.Completion([]byte(c.body), defaultLimits)
		e := apierr.From(err)
		if e.Code != apierr.InvalidRequest || e.Param != c.name || e.Message != fmt.Sprintf("the name %q stands twice in one object; send it once", c.name) {
			t.Errorf("%s: %s", c.body, result(err))
		}
	}
	// An unknown field is reported before anything in its value; otherwise the first error in the order of the body
	// counts.
	for body, param := range map[string]string{
		`{"x": {"a": 1, "a": 2}}`:                  "x",
		`{"x": [{"b": {"a": 1, "\u0061": 2}}]}`:    "x",
		`{"x": 1, "x": 2}`:                         "x",
		`{"stop": [{"a": 1, "a": 2}]}`:             "a",
		`{"stop": [1, {"a": 1, "a": 2}]}`:          "stop",
		`{"n": 0, "user": "a", "user": "b"}`:       "n",
		`{"logit_bias": {"1": 0, "x": 0, "1": 0}}`: "logit_bias",
		`{"stream_options": {"x": 0, "x": 0}}`:     "stream_options",
		`{"user": "a", "user": "b", "n": 0}`:       "user",
		`{"user": "a", "user": "b", "user": ""}`:   "user",
	} {
		_, err := validate.Completion([]byte(body), defaultLimits)
		if e := apierr.From(err); e.Code != apierr.InvalidRequest || e.Param != param {
			t.Errorf("%s: %s", body, result(err))
		}
	}
}

// The error response carries the user tag, wherever it stands.
func TestUserTagBehindAnInvalidFieldIsRead(t *testing.T) {
	for _, body := range []string{
		`{"x": {"user": "not this"}, "user": "ada"}`, `{"n": 99, "user": "ada"}`, `{"stop": [1, ["user"], {"user": "no"}], "user": "ada"}`,
		`{"logit_bias": {"user": "no"}, "us\u0065r": "ada"}`, `{"user": "ada", "n": 1, "n": 1, "user": "no"}`, `{"prompt": [[1, {"user": "no"}]], "user": "ada"}`,
	} {
		r, err := validate.Completion([]byte(body), defaultLimits)
		if apierr.From(err).Code != apierr.InvalidRequest || r == nil || r.User != "ada" {
			t.Errorf("%s: got %+v, %s, want the user tag ada", body, r, result(err))
		}
	}
}

// Behind an invalid field, the model is read for the log as the user tag is: the first valid one counts.
func TestModelBehindAnInvalidFieldIsRead(t *testing.T) {
	for body, want := range map[string]string{
		`{"n": 99, "model": "b"}`:                           "b",
		`{"n": 99, "model": 3, "mod\u0065l": "b"}`:          "b",
		`{"n": 99, "x": {"model": "a"}, "model": "b"}`:      "b",
		`{"model": "a", "n": 99, "model": "b"}`:             "a",
		`{"n": 99, "model": ["a"], "stop": {"model": "b"}}`: "",
	} {
		r, err := validate.Completion([]byte(body), defaultLimits)
		if apierr.From(err).Param != "n" || r == nil || r.Model != want {
			t.Errorf("%s: got %+v, %s, want model %q", body, r, result(err), want)
		}
	}
}

func TestSameNameInTwoObjectsIsAccepted(t *testing.T) {
	if _, err := validate.Completion([]byte(`{"model": "m", "prompt": "a", "stream": true, "stream_options": {"include_usage": true}, "logit_bias": {"1": 1, "11": 1}}`), defaultLimits); err != nil {
		t.Error(result(err))
	}
}

// Names are compared after unescaping, byte for byte.
func TestNamesAreUnescaped(t *testing.T) {
	r, err := validate.Completion([]byte(`{"\u006dodel": "m", "pr\u006Fmpt": "a", "max_tok\u0065ns": 7, "\u006e": 2}`), defaultLimits)
	if err != nil {
		t.Fatal(result(err))
	}
	if r.Model != "m" || r.MaxTokens != 7 || r.N != 2 {
		t.Errorf("%+v", r)
	}
	_, err = validate.Completion([]byte(`{"model": "m", "prompt": "a", "max_tok\u0065ns": 0}`), defaultLimits)
	if e := apierr.From(err); e.Param != "max_tokens" {
		t.Error(result(err))
	}
}

func TestPooledParserKeepsNothingOfThePreviousBody(t *testing.T) {
	for _, before := range []string{`{"x": 1}`, `{"n": 1, "n": 1}`, `{"n": 1, "n": 1, [`, "\xef\xbb\xbf", `{"logprobs": 30}`, `{"us\u0065r": "abc", "stream": true`} {
		if _, err := validate.Completion([]byte(before), defaultLimits); err == nil {
			t.Fatalf("%s: accepted", before)
		}
		r, err := validate.Completion([]byte(minimal), defaultLimits)
		if err != nil {
			t.Fatalf("after %s: %s", before, result(err))
		}
		if _, err := validate.Completion([]byte(`{"n": 1, "n": 1}`), defaultLimits); apierr.From(err).Param != "n" {
			t.Errorf("after %s: %s", before, result(err))
		}
		if r.HasUser || r.Stream || r.N != 1 || r.Logprobs != validate.Absent {
			t.Errorf("after %s: %+v", before, r)
		}
	}
}

// limitByModel allows more logprobs for the model "generous" and fewer for "strict".
func limitByModel(model string) validate.Model {
	m := validate.Model{MaxLogprobs: 20}
	switch model {
	case "generous":
		m.MaxLogprobs = 100
	case "strict":
		m.MaxLogprobs = 5
	}
	return m
}

// Each case of the archive has two files: NAME.json is the body, NAME.result the result of Completion.
func TestErrorPrecedence(t *testing.T) {
	data, err := os.ReadFile("testdata/precedence.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := txtar.Parse(data).Files
	if len(files) < 40 || len(files)%2 != 0 {
		t.Fatalf("%d files", len(files))
	}
	for ; len(files) > 0; files = files[2:] {
		name, isBody := strings.CutSuffix(files[0].Name, ".json")
		if files[1].Name != name+".result" || !isBody {
			t.Fatalf("%s is followed by %s", files[0].Name, files[1].Name)
		}
		t.Run(name, func(t *testing.T) {
			_, err := validate.Completion(files[0].Data, validate.Limits{Model: limitByModel})
			if diff := cmp.Diff(strings.TrimSpace(string(files[1].Data)), result(err)); diff != "" {
				t.Errorf("%s(-want +got):\n%s", files[0].Data, diff)
			}
		})
	}
}
