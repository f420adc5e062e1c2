package mockvllm

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// rustParams are the parameters that the Rust frontend names in "param".
var rustParams = []string{"n", "suffix", "return_weight_versions", "truncate_prompt_tokens", "model", "input_tokens", "tools"}

// rustMessages turn messages of the Python frontend into those of the Rust frontend.
var rustMessages = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^Requested (?:sample|prompt) logprobs`), "requested logprobs"},
	{regexp.MustCompile(`^Token id (\d+) is out`), "token_id(s) [$1] in prompt are out"},
	{regexp.MustCompile(`contain out-of-vocab token ids`), "are out of vocabulary"},
	{regexp.MustCompile(`(must be .*, got .*?)(?:\.0)?\.$`), "$1"},
	{regexp.MustCompile("^when using `top_logprobs`.*"), "__all__: top_logprobs is only allowed when logprobs is enabled"},
}

// rustFailure words a failure as the Rust frontend does.
func (s *Server) rustFailure(f *failure) *failure {
	switch {
	case f.raw != nil && f.status == http.StatusBadRequest: // FastAPI's error about a body that is not UTF-8
		return s.spec.rustSyntaxFailure("parse the request body as JSON: prompt: invalid unicode code point")
	case f.raw != nil && f.status != http.StatusUnauthorized: // no such path, or another method
		return &failure{status: f.status, raw: new(string)}
	}
	worded := *f
	for _, message := range rustMessages {
		worded.message = message.from.ReplaceAllString(worded.message, message.to)
	}
	if strings.HasSuffix(worded.message, "out of vocabulary") {
		worded.message += fmt.Sprintf(". Vocabulary size: %d", s.model.size())
	}
	if !slices.Contains(rustParams, f.param) {
		worded.param = ""
	}
	return &worded
}

// rustSyntaxFailure is the Rust frontend's error about a body that it cannot read. Its position is not the true one.
func (s *versionSpec) rustSyntaxFailure(problem string) *failure {
	return s.invalidBody("Failed to "+problem+" at line 1 column 1", "")
}

// rustSchemaFailure is the Rust frontend's error about the first field that does not fit.
func (s *versionSpec) rustSchemaFailure(kind, field string) *failure {
	const target = "deserialize the JSON body into the target type: "
	switch {
	case field == "" || kind == "json_invalid":
		return s.rustSyntaxFailure("parse the request body as JSON: EOF while parsing a value")
	case kind == "missing":
		return s.rustSyntaxFailure(target + "missing field `" + field + "`")
	case field == "prompt":
		return s.rustSyntaxFailure(target + "prompt: data did not match any variant of untagged enum Prompt")
	}
	return s.rustSyntaxFailure(target + field + ": invalid type")
}
