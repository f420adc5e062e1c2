package validate_test

import (
	"bytes"
	"encoding/json"
	"testing"

	apierr "basegate/errors"
	"basegate/validate"
)

// tokenizerBodies are bodies of the tokenizer's endpoints; accepted ones have the code "".
var tokenizerBodies = []struct {
	name       string
	detokenize bool
	body       string
	code       apierr.Code
	param      string
	message    string // a part of it
}{
	{"only what is required", false, `{"model":"m","prompt":"a"}`, "", "", ""},
	{"an empty prompt", false, `{"model":"m","prompt":""}`, "", "", ""},
	{"all fields", false, `{"prompt":"a","add_special_tokens":false,"return_token_strs":true,"model":"m"}`, "", "", ""},
	{"null for optional fields", false, `{"model":"m","prompt":"a","add_special_tokens":null,"return_token_strs":null}`, "", "", ""},
	{"an escaped name", false, `{"mod\u0065l":"m","prompt":"a"}`, "", "", ""},
	{"tokens", true, `{"model":"m","tokens":[0,2147483647]}`, "", "", ""},
	{"no tokens", true, `{"model":"m","tokens":[]}`, "", "", ""},

	{"no prompt", false, `{"model":"m"}`, apierr.InvalidRequest, "prompt", "prompt is missing; expected a string"},
	{"no model", false, `{"prompt":"a"}`, apierr.InvalidRequest, "model", "model is missing"},
	{"no tokens member", true, `{"model":"m"}`, apierr.InvalidRequest, "tokens", "tokens is missing"},
	{"null for the prompt", false, `{"model":"m","prompt":null}`, apierr.InvalidRequest, "prompt", "got null"},
	{"null for the model", true, `{"model":null,"tokens":[1]}`, apierr.InvalidRequest, "model", "got null"},
	{"null for tokens", true, `{"model":"m","tokens":null}`, apierr.InvalidRequest, "tokens", "got null"},
	{"several prompts", false, `{"model":"m","prompt":["a","b"]}`, apierr.InvalidRequest, "prompt", "got an array; expected a string"},
	{"a prompt of tokens", false, `{"model":"m","prompt":[1]}`, apierr.InvalidRequest, "prompt", "got an array"},
	{"a word for a boolean", false, `{"model":"m","prompt":"a","add_special_tokens":"yes"}`, apierr.InvalidRequest, "add_special_tokens", "expected true or false"},
	{"a number for a boolean", false, `{"model":"m","prompt":"a","return_token_strs":1}`, apierr.InvalidRequest, "return_token_strs", "expected true or false"},
	{"a string for tokens", true, `{"model":"m","tokens":"1"}`, apierr.InvalidRequest, "tokens", "an array of token ids"},
	{"a negative token", true, `{"model":"m","tokens":[1,-1]}`, apierr.InvalidRequest, "tokens", "-1 as element 1"},
	{"a token past 31 bits", true, `{"model":"m","tokens":[2147483648]}`, apierr.InvalidRequest, "tokens", "2147483648 as element 0"},
	{"a fraction for a token", true, `{"model":"m","tokens":[1.0]}`, apierr.InvalidRequest, "tokens", "1.0 as element 0"},
	{"nested tokens", true, `{"model":"m","tokens":[[1]]}`, apierr.InvalidRequest, "tokens", "an array as element 0"},
	{"a misspelt field", false, `{"model":"m","promt":"a"}`, apierr.InvalidRequest, "promt", `did you mean "prompt"?`},
	{"a misspelt field of detokenize", true, `{"model":"m","token":[1]}`, apierr.InvalidRequest, "token", `did you mean "tokens"?`},
	{"a field of a completion", false, `{"model":"m","prompt":"a","max_tokens":1}`, apierr.InvalidRequest, "max_tokens", "unknown field"},
	{"the other endpoint's field", true, `{"model":"m","prompt":"a"}`, apierr.InvalidRequest, "prompt", "unknown field"},
	{"a field of vLLM's", false, `{"model":"m","messages":[]}`, apierr.InvalidRequest, "messages", "vLLM has it, but this gateway does not support it; use prompt in its place"},
	{"a name twice", false, `{"model":"m","prompt":"a","prompt":"b"}`, apierr.InvalidRequest, "prompt", "stands twice"},
	{"the first of two errors", true, `{"x":1,"tokens":"a"}`, apierr.InvalidRequest, "x", "unknown field"},

	{"bad JSON after an invalid field", false, `{"x":1,"model":"m",}`, apierr.BadJSON, "", ""},
	{"an array", true, `[1]`, apierr.BadJSON, "", `send {"model": …, "tokens": …}`},
	{"two objects", false, `{"model":"m","prompt":"a"}{}`, apierr.BadJSON, "", ""},
	{"a lone surrogate", false, `{"model":"m","prompt":"\ud800"}`, apierr.BadJSON, "", ""},
	{"a byte-order mark", true, "\xef\xbb\xbf" + `{"model":"m","tokens":[1]}`, apierr.BadJSON, "", ""},
	{"an empty body", false, ``, apierr.BadJSON, "", ""},
}

func parseTokenizerBody(detokenize bool, body []byte) (*validate.Request, error) {
	if detokenize {
		return validate.Detokenize(body, false, nil)
	}
	return validate.Tokenize(body, false, nil)
}

func TestTokenizerBodiesAreValidatedStrictly(t *testing.T) {
	for _, c := range tokenizerBodies {
		t.Run(c.name, func(t *testing.T) {
			r, err := parseTokenizerBody(c.detokenize, []byte(c.body))
			if c.code == "" {
				if err != nil || r.Model != "m" {
					t.Fatalf("got %+v and %v, want the request", r, err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			e := apierr.From(err)
			if e.Code != c.code || e.Param != c.param || !bytes.Contains([]byte(e.Message), []byte(c.message)) {
				t.Errorf("got %s, param %q: %s; want %s, param %q: %q", e.Code, e.Param, e.Message, c.code, c.param, c.message)
			}
		})
	}
}

func TestTokenizerBodiesKeepTheirBytesButTheModelAndNulls(t *testing.T) {
	for _, c := range []struct {
		detokenize bool
		body, want string
	}{
		{false, `{ "model" : "m", "prompt":"\u0061\n", "add_special_tokens":false }`, `{ "model" : "org/M", "prompt":"\u0061\n", "add_special_tokens":false }`},
		{false, `{"return_token_strs":null,"prompt":"a","model":"m","add_special_tokens":null}`, `{"prompt":"a","model":"org/M"}`},
		{true, `{"tokens":[1, 2],"model":"m"}`, `{"tokens":[1, 2],"model":"org/M"}`},
	} {
		r, err := parseTokenizerBody(c.detokenize, []byte(c.body))
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		if got := string(r.Upstream(validate.Edits{Model: "org/M"}).Append(nil)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.body, got, c.want)
		}
	}
}

func FuzzTokenizerBodies(f *testing.F) {
	for _, c := range tokenizerBodies {
		f.Add([]byte(c.body), c.detokenize)
	}
	f.Fuzz(func(t *testing.T, body []byte, detokenize bool) {
		original := bytes.Clone(body)
		r, err := parseTokenizerBody(detokenize, body)
		if !bytes.Equal(original, body) {
			t.Fatal("the body was modified")
		}
		if err != nil {
			if e := apierr.From(err); e.Code != apierr.InvalidRequest && e.Code != apierr.BadJSON {
				t.Fatalf("got %v: %v", e.Code, err)
			}
			return
		}
		var sent struct {
			Model  string  `json:"model"`
			Prompt *string `json:"prompt"`
			Tokens []int32 `json:"tokens"`
		}
		decoder := json.NewDecoder(bytes.NewReader(r.Upstream(validate.Edits{Model: "org/M"}).Append(nil)))
		if err := decoder.Decode(&sent); err != nil || sent.Model != "org/M" || (sent.Tokens != nil) != detokenize || (sent.Prompt != nil) == detokenize {
			t.Fatalf("%q: got %+v and %v", body, sent, err)
		}
	})
}
