package breaker_test

import (
	"fmt"
	"testing"

	"basegate/breaker"
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
