package validate_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/validate"
)

// mustParse parses a valid body.
func mustParse(tb testing.TB, body string) *validate.Request {
	tb.Helper()
	r, err := validate.Completion([]byte(body), defaultLimits)
	if err != nil {
		tb.Fatalf("%s: %s", body, result(err))
	}
	return r
}

func TestDefaults(t *testing.T) {
	for _, body := range []string{
		minimal,
		`{"model": "m", "prompt": "a", "max_tokens": null, "n": null, "best_of": null, "logprobs": null, "prompt_logprobs": null, "user": null, "stream": null}`,
	} {
		r := mustParse(t, body)
		if r.Model != "m" || r.MaxTokens != 16 || r.N != 1 || r.BestOf != 0 || r.Logprobs != -1 || r.PromptLogprobs != -1 ||
			r.Echo || r.Stream || r.IncludeUsage || r.HasUser || r.User != "" || r.RawUser() != nil || r.Scored() {
			t.Errorf("%s: %+v", body, r)
		}
	}
}

func TestValuesAreParsed(t *testing.T) {
	r := mustParse(t, `{"model": "ll\u0061ma", "prompt": "a", "max_tokens": 9223372036854775807, "n": 3, "best_of": 5, "logprobs": 0, "prompt_logprobs": 20,
		"echo": true, "user": "x\u00e9"}`)
	if r.Model != "llama" || r.MaxTokens != 9223372036854775807 || r.N != 3 || r.BestOf != 5 || r.Logprobs != 0 || r.PromptLogprobs != 20 ||
		!r.Echo || r.Stream || r.User != "xé" || !r.HasUser || string(r.RawUser()) != `"x\u00e9"` {
		t.Errorf("%+v", r)
	}
	if r.Candidates() != 5 || r.Choices() != 3 {
		t.Errorf("got %d candidates and %d choices, want 5 and 3", r.Candidates(), r.Choices())
	}
	if !mustParse(t, `{"model": "m", "prompt": "a", "stream": true, "stream_options": {"include_usage": true}}`).IncludeUsage {
		t.Error("include_usage true was parsed as false")
	}
	if mustParse(t, `{"model": "m", "prompt": "a", "stream": true, "stream_options": {"include_usage": false}}`).IncludeUsage {
		t.Error("include_usage false was parsed as true")
	}
}

func TestPromptsAreCountedInAllFourForms(t *testing.T) {
	for _, c := range []struct {
		prompt          string
		kind            validate.PromptKind
		prompts         int
		tokens, longest int64
	}{
		{`""`, validate.Text, 1, 0, 0},
		{`"a \" [1, 2] b"`, validate.Text, 1, 0, 0},
		{`["a"]`, validate.Text, 1, 0, 0},
		{`["a", "", "c"]`, validate.Text, 3, 0, 0},
		{`[7]`, validate.Tokens, 1, 1, 1},
		{`[1, 2, 3]`, validate.Tokens, 1, 3, 3},
		{`[[1, 2, 3]]`, validate.Tokens, 1, 3, 3},
		{`[[1], [2, 3, 4], [5, 6]]`, validate.Tokens, 3, 6, 3},
	} {
		r := mustParse(t, `{"model": "m", "n": 2, "prompt": `+c.prompt+`}`)
		if r.Kind != c.kind || r.Prompts != c.prompts || r.PromptTokens != c.tokens || r.LongestPrompt != c.longest || r.Choices() != 2*c.prompts {
			t.Errorf("%s: kind %d, %d prompts, %d tokens, longest %d, %d choices", c.prompt, r.Kind, r.Prompts, r.PromptTokens, r.LongestPrompt, r.Choices())
		}
	}
}

// texts returns the text prompts.
func texts(r *validate.Request) []string {
	var all []string
	for text := range r.EachText {
		all = append(all, string(text))
	}
	return all
}

func TestEachTextYieldsUnescapedPrompts(t *testing.T) {
	for prompt, want := range map[string][]string{
		`""`:                                   {""},
		`"a\"b\\"`:                             {`a"b\`},
		`"\u0041\ud83d\ude00\n\/é"`:            {"A😀\n/é"},
		`["one", "", "t\u0077o\\", "\"]"]`:     {"one", "", `two\`, `"]`},
		"[\n \"a\" ,\r\t\"b\"\n]":              {"a", "b"},
		`"` + strings.Repeat(`\\`, 1000) + `"`: {strings.Repeat(`\`, 1000)},
		`[1, 2]`:                               nil,
		`[[1], [2]]`:                           nil,
	} {
		r := mustParse(t, `{"user": "not \"this\"", "model": "m", "prompt": `+prompt+`, "stop": ["nor this"]}`)
		if diff := cmp.Diff(want, texts(r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", prompt, diff)
		}
	}
}

func TestEachTextStopsWhenYieldReturnsFalse(t *testing.T) {
	r := mustParse(t, `{"model": "m", "prompt": ["a", "b", "c"]}`)
	var got []string
	for text := range r.EachText {
		got = append(got, string(text))
		if len(got) == 2 {
			break
		}
	}
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestScoredReportsWhetherPromptLogprobsAreRequested(t *testing.T) {
	for members, want := range map[string]bool{
		``:                                 false,
		`, "logprobs": 0`:                  false,
		`, "echo": true`:                   false,
		`, "echo": true, "logprobs": null`: false,
		`, "echo": false, "logprobs": 1`:   false,
		`, "logprobs": 0, "echo": true`:    true,
		`, "prompt_logprobs": 0`:           true,
		`, "prompt_logprobs": null`:        false,
	} {
		r := mustParse(t, `{"model": "m", "prompt": "a"`+members+`}`)
		if r.Scored() != want {
			t.Errorf("%s: Scored is %t, want %t", members, r.Scored(), want)
		}
	}
}

func TestUserTagIsPrintableASCII(t *testing.T) {
	for user, want := range map[string]string{
		`"run-17/sample 3"`: "run-17/sample 3",
		`" ~"`:              " ~",
		`"\u0041"`:          "A",
		`""`:                "",
		`"a\nb"`:            "",
		`"a\r\nX-Evil: 1"`:  "",
		`"\u007f"`:          "",
		`"ž"`:               "",
		`"\u0000"`:          "",
		`null`:              "",
	} {
		r := mustParse(t, `{"model": "m", "prompt": "a", "user": `+user+`}`)
		if got, ok := r.UserTag(); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %t, want %q", user, got, ok, want)
		}
		if r.HasUser != (user != "null") {
			t.Errorf("%s: HasUser is %t", user, r.HasUser)
		}
	}
}

// raceEnabled reports whether the race detector is on. It makes sync.Pool drop items at random.
var raceEnabled bool

// Only the prompt can be long, and parsing it allocates nothing.
func TestMemoryDoesNotGrowWithTheBody(t *testing.T) {
	if raceEnabled {
		t.Skip("the number of allocations is random under the race detector")
	}
	for _, body := range []func(int) []byte{
		bodyOfSize,
		func(size int) []byte {
			return []byte(`{"model": "m", "user": "abc", "prompt": [` + strings.Repeat("128000, ", size/8) + `1]}`)
		},
		func(size int) []byte {
			return []byte(`{"model": "m", "user": "abc", "prompt": [` + strings.Repeat(`"a\n\u0041", `, size/12) + `""]}`)
		},
	} {
		allocs := func(size int) float64 {
			b := body(size)
			return testing.AllocsPerRun(20, func() {
				if _, err := validate.Completion(b, defaultLimits); err != nil {
					t.Fatal(result(err))
				}
			})
		}
		if small, large := allocs(1<<10), allocs(1<<20); small != large || large > 5 {
			t.Errorf("%v allocations for 1 KB, %v for 1 MB", small, large)
		}
	}
}
