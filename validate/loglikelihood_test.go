package validate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apierr "basegate/errors"
	"basegate/proxy/loglikelihood"
	"basegate/validate"
)

// pairsBodies are members of a log-likelihood beside the model; accepted ones have no param.
var pairsBodies = []struct{ members, param, message string }{
	{`"continuations":["a"]`, "", ""},
	{`"context":"","continuations":[" a"," b"],"boundary":"joint","add_special_tokens":true,"tokens":false,"top":0`, "", ""},
	{`"context":"x","continuations":[[1],[2,3]],"bound\u0061ry":"separ\u0061te","tokens":true,"top":20,"user":"u","cache_salt":"s","prompt_cache_key":"k"`, "", ""},
	{`"context":[1,2],"continuations":["a"],"boundary":null,"add_special_tokens":null,"tokens":null,"top":null,"user":null,"cache_salt":null`, "", ""},
	{`"context":null,"continuations":["a","a"]`, "", ""},
	{`"continuations":` + arrayOf(`"a"`, 256), "", ""},

	{`"context":"x"`, "continuations", "continuations is missing; expected an array of 1 to 256 strings"},
	{`"continuations":null`, "continuations", "got null"},
	{`"continuations":"a"`, "continuations", "got the string"},
	{`"continuations":[]`, "continuations", "got an array of 0 elements"},
	{`"continuations":` + arrayOf(`"a"`, 257), "continuations", "got an array of 257 elements"},
	{`"continuations":["a",""]`, "continuations", "an empty string as element 1"},
	{`"continuations":[[1],[]]`, "continuations", "an empty array as element 1"},
	{`"continuations":["a",[1]]`, "continuations", "an array as element 1, where a string, like the ones before it, was expected"},
	{`"continuations":[[1],"a"]`, "continuations", "as element 1, where an array of token ids"},
	{`"continuations":[1,2]`, "continuations", "1 as element 0, where a string or an array of token ids was expected"},
	{`"continuations":[[1,-2]]`, "continuations", "-2 as element 1 of continuations 0"},
	{`"continuations":[[2147483648]]`, "continuations", "2147483648"},
	{`"context":[],"continuations":["a"]`, "context", "got an empty array"},
	{`"context":[1.0],"continuations":["a"]`, "context", "1.0 as element 0"},
	{`"context":["x"],"continuations":["a"]`, "context", "where a token id was expected"},
	{`"context":7,"continuations":["a"]`, "context", "got 7; expected a string"},
	{`"boundary":"both","continuations":["a"]`, "boundary", `expected "joint" or "separate"`},
	{`"add_special_tokens":1,"continuations":["a"]`, "add_special_tokens", "expected true or false"},
	{`"tokens":1,"continuations":["a"]`, "tokens", "expected true or false"},
	{`"tokens":true,"top":21,"continuations":["a"]`, "top", "expected an integer from 0 to 20"},
	{`"tokens":true,"top":-1,"continuations":["a"]`, "top", "got -1"},
	{`"tokens":true,"top":1.0,"continuations":["a"]`, "top", "not written as an integer"},
	{`"top":2,"continuations":["a"]`, "top", "only with tokens: true"},
	{`"cache_salt":"a/b","continuations":["a"]`, "cache_salt", ""},
	{`"prompt":"x","continuations":["a"]`, "prompt", "context and continuations"},
	{`"temperature":1,"continuations":["a"]`, "temperature", "nothing is sampled"},
	{`"stream":true,"continuations":["a"]`, "stream", "streamed"},
	{`"logprobs":1,"continuations":["a"]`, "logprobs", "tokens and top"},
	{`"endpoint":"/v1/loglikelihood","continuations":["a"]`, "endpoint", "unknown field"},
	{`"priority":1,"continuations":["a"]`, "priority", "vLLM has it"},
	{`"continuation":["a"]`, "continuation", `did you mean "continuations"?`},
	{`"contex":"x","continuations":["a"]`, "contex", `did you mean "context"?`},
	{`"context":"x","context":"y","continuations":["a"]`, "context", "stands twice"},
}

func parsePairs(members string) (*validate.Request, error) {
	return validate.Loglikelihood([]byte(`{"model":"m",`+members+`}`), defaultLimits)
}

func TestLoglikelihoodsAreValidatedStrictly(t *testing.T) {
	for _, c := range pairsBodies {
		name := c.members[:min(len(c.members), 100)]
		r, err := parsePairs(c.members)
		if c.param == "" {
			if err != nil || r.Model != "m" || r.Kind != validate.Pairs || r.MaxTokens != 1 {
				t.Errorf("%s: %+v, %s", name, r, result(err))
			}
			continue
		}
		if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != c.param || !strings.Contains(e.Message, c.message) {
			t.Errorf("%s: %s; want %s with %q", name, result(err), c.param, c.message)
		}
	}
	for body, code := range map[string]apierr.Code{
		``: apierr.BadJSON, `[]`: apierr.BadJSON, `{"model":"m","continuations":["a"]}x`: apierr.BadJSON, `{"continuations":["a"]}`: apierr.InvalidRequest,
		`{"model":"m","continuations":["\ud800"]}`: apierr.BadJSON,
	} {
		if _, err := validate.Loglikelihood([]byte(body), defaultLimits); err == nil || apierr.From(err).Code != code {
			t.Errorf("%s: %s", body, result(err))
		}
	}
	limits := defaultLimits
	limits.MaxSequences = 2
	_, err := validate.Loglikelihood([]byte(`{"model":"m","continuations":["a","b","c"]}`), limits)
	if e := apierr.From(err); err == nil || e.Param != "continuations" || !strings.Contains(e.Message, "expected at most 2") {
		t.Errorf("too many sequences: %s", result(err))
	}
}

func TestQuestions(t *testing.T) {
	for members, want := range map[string]loglikelihood.Question{
		`"continuations":["a\u0020","\n"]`: {Continuations: []loglikelihood.Piece{{Text: "a "}, {Text: "\n"}}},
		`"context":"caf\u00e9","continuations":["a"],"boundary":"separate","add_special_tokens":false,"tokens":true,"top":3`: {
			Context: loglikelihood.Piece{Text: "café"}, Continuations: []loglikelihood.Piece{{Text: "a"}}, Separate: true, NoSpecial: true, Tokens: true, Top: 3,
		},
		`"context":[1,2147483647],"continuations":[[3],[4,5]]`: {
			Context: loglikelihood.Piece{IDs: []int64{1, 2147483647}}, Continuations: []loglikelihood.Piece{{IDs: []int64{3}}, {IDs: []int64{4, 5}}},
		},
	} {
		r, err := parsePairs(members)
		if err != nil {
			t.Fatal(result(err))
		}
		got, err := r.Question()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", members, diff)
		}
	}
}

// The completion has the members that it was given, and what the client sent of the payer's and the cache's.
func TestAnswerIsACompletionOfTokens(t *testing.T) {
	r, err := parsePairs(`"user":"caf\u00e9","context":[1],"cache_salt":"s","continuations":[[2],[3]],"prompt_cache_key":"k"`)
	if err != nil {
		t.Fatal(result(err))
	}
	if context, continuation := r.KnownTokens(); context != 1 || continuation != 1 || !r.Scored() {
		t.Errorf("known are %d and %d tokens", context, continuation)
	}
	answer, err := r.Completion([]byte(`,"prompt":[[1,2],[1,3]],"max_tokens":1,"prompt_logprobs":1`), "context", nil)
	if err != nil {
		t.Fatal(result(err))
	}
	got := string(answer.Upstream(validate.Edits{Model: "org/M"}).Append(nil))
	want := `{"model":"org/M","prompt":[[1,2],[1,3]],"max_tokens":1,"prompt_logprobs":1,"user":"caf\u00e9","cache_salt":"s"}`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if answer.Kind != validate.Tokens || answer.Prompts != 2 || answer.PromptTokens != 4 || answer.User != "café" || answer.PromptCacheKey != "k" ||
		answer.Subject() != "context" || !answer.Scored() {
		t.Errorf("%+v", answer)
	}
	for field, want := range map[string]string{
		"prompt": "continuations", "prompt_logprobs": "top", "logprob_token_ids": "continuations", "cache_salt": "cache_salt", "max_tokens": "", "model": "model", "echo": "",
	} {
		if got := answer.SentAs(field); got != want {
			t.Errorf("vLLM's %s is the client's %q, want %q", field, got, want)
		}
	}
	rust := &validate.Server{Version: validate.ParseVersion("0.33.0"), Rust: true}
	if u, unserved := answer.Unserved(rust); !unserved || u.Field != "continuations" || u.Name != "continuations" {
		t.Errorf("the Rust frontend: %+v", u)
	}

	if answer, err = r.Completion([]byte(`,"prompt":[1],"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":20`), "context", nil); err != nil {
		t.Fatal(result(err))
	}
	got = string(answer.Upstream(validate.Edits{Model: "org/M", NextIDs: []byte("[2,3]")}).Append(nil))
	want = `{"model":"org/M","prompt":[1],"max_tokens":1,"temperature":0,"return_tokens_as_token_ids":true,"logprobs":1,"user":"caf\u00e9","cache_salt":"s","logprob_token_ids":[2,3]}`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, unserved := answer.Unserved(rust); unserved || answer.Scored() {
		t.Error("one prompt cannot be served by the Rust frontend, or counts as scored")
	}
}

func TestServersThatTakeLogprobTokenIDs(t *testing.T) {
	described := serverOf("0.25.0")
	described.Describe(openAPI("model prompt logprob_token_ids", ""))
	lacking := serverOf("0.33.0")
	lacking.Describe(openAPI("model prompt", ""))
	for name, c := range map[string]struct {
		server *validate.Server
		want   bool
	}{
		"unknown": {serverOf(""), true}, "0.25": {serverOf("0.25.1"), false}, "0.26": {serverOf("0.26.0"), true},
		"rust": {&validate.Server{Version: validate.ParseVersion("0.33.0"), Rust: true}, false}, "described": {described, true}, "lacking": {lacking, false},
	} {
		if got := c.server.TakesLogprobTokenIDs(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzLoglikelihood(f *testing.F) {
	for _, c := range pairsBodies {
		f.Add(fmt.Sprintf(`{"model":"m",%s}`, c.members[:min(len(c.members), 1000)]))
	}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := validate.Loglikelihood([]byte(body), defaultLimits)
		if err != nil {
			return
		}
		q, err := r.Question()
		if err != nil || len(q.Continuations) != r.Prompts {
			t.Fatalf("%d continuations, %v", len(q.Continuations), err)
		}
		for _, c := range q.Continuations {
			if (len(c.IDs) == 0) == (c.Text == "") {
				t.Fatalf("a continuation is %+v", c)
			}
		}
		if _, err := r.Completion([]byte(`,"prompt":[1],"max_tokens":1`), "context", nil); err != nil {
			t.Fatal(result(err))
		}
	})
}
