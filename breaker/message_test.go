package breaker_test

import (
	"fmt"
	"strings"
	"testing"

	"basegate/breaker"
	apierr "basegate/errors"
)

// The messages of xgrammar begin with a path of the machine that it was built on.
func TestMessagesForClientsNameNoSourceFiles(t *testing.T) {
	for message, want := range map[string]string{
		"Invalid grammar: [05:12:33] /project/cpp/grammar_parser.cc:12: EBNF lexer error at line 1": "Invalid grammar: EBNF lexer error at line 1",
		"[05:12:33] /project/cpp/json_schema_converter.cc:795: Check failed: (a) is false: b":       "Check failed: (a) is false: b",
		"/usr/lib/python3.12/site-packages/vllm/x.py:7: bad regex":                                  "bad regex",
		"/workspace/csrc/a.cu:12 failed":                                                            "failed",
		"the path /v1/completions:12 is not a source":                                               "the path /v1/completions:12 is not a source",
		"expected one of a/b, c/d.cc: got e":                                                        "expected one of a/b, c/d.cc: got e",
		"at most 12:30:45 /x":                                                                       "at most 12:30:45 /x",
		"two /a/b.cc:1: of /c/d.h:22: them":                                                         "two of them",
	} {
		body := fmt.Appendf(nil, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":400}}`, message)
		if got := breaker.Classify(400, body); got.Message != want || got.Class != breaker.ClientError {
			t.Errorf("%q: got %s %q, want %q", message, got.Class, got.Message, want)
		}
	}
}

func TestMessagesForClientsNameNoPathsOrAddresses(t *testing.T) {
	for message, want := range map[string]string{
		"OSError: /models/llama-3/tokenizer.json not found":                       "OSError: [path] not found",
		`File "/usr/local/lib/python3.12/site-packages/vllm/x.py", line 12`:       `File "[path]", line 12`,
		"at http://10.0.0.5:8000/v1 and tcp://gpu9.internal:29500, rank 1":        "at [address] and [address], rank 1",
		`no file "/x y/z" or '/a b/c d/e.json': stop`:                             `no file "[path]" or '[path]': stop`,
		"loading ./adapters/foo from file:///srv/models (root=/srv/models/llama)": "loading [path] from [address] (root=[path])",
		"This model's maximum context length is 8 (see /srv/models/config.json)":  "(it said: This model's maximum context length is 8 (see [path]))",

		"top_p and/or top_k, 1/2, a / b, /x alone, a//b, 'it's /fine'": "top_p and/or top_k, 1/2, a / b, /x alone, a//b, 'it's /fine'",
		"use POST /v1/chat/completions or '/v1/completions'":           "use POST /v1/chat/completions or '/v1/completions'",
		"#/$defs/name is no schema, grammar [a-z]/[0-9]/x":             "#/$defs/name is no schema, grammar [a-z]/[0-9]/x",
	} {
		body := fmt.Appendf(nil, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":400}}`, message)
		if got := apierr.From(breaker.Classify(400, body).Err("m", 1)).Message; !strings.HasSuffix(got, want) {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}
