package mockvllm

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// useRust changes the version's format to that of its Rust frontend, in front of the same engine.
func (s *versionSpec) useRust() {
	s.rust, s.listsAliases, s.varyOrigin, s.fingerprint, s.randomBytes = true, false, false, false, 4
}

// rustParams are the parameters that the Rust frontend names in "param".
var rustParams = []string{"n", "suffix", "return_weight_versions", "truncate_prompt_tokens", "model", "input_tokens", "tools"}

// rustNoTemplate is in the Rust frontend's error about messages to a model without a chat template.
const rustNoTemplate = "chat template is required but none was configured"

// rustMessages turn messages of the Python frontend into those of the Rust frontend.
var rustMessages = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^suffix is .*`), "suffix is not supported."},
	{regexp.MustCompile(`^Requested (?:sample|prompt) logprobs`), "requested logprobs"},
	{regexp.MustCompile(`^Token id (\d+) is out`), "token_id(s) [$1] in prompt are out"},
	{regexp.MustCompile(`contain out-of-vocab token ids`), "are out of vocabulary"},
	{regexp.MustCompile(`(must be .*, got .*?)(?:\.0)?\.$`), "$1"},
	{regexp.MustCompile(`^You must pass at least one prompt`), "text request `cmpl-0` must contain at least one prompt token ID"},
	{regexp.MustCompile(`^As of transformers v4\.44, .*`), "failed to submit chat request: " + rustNoTemplate},
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
	if strings.HasSuffix(worded.message, rustNoTemplate) {
		worded.status, worded.errorType = http.StatusInternalServerError, internalServerError
	}
	if !slices.Contains(rustParams, f.param) {
		worded.param = ""
	}
	return &worded
}

// rustSyntaxFailure is the Rust frontend's error about a body that it cannot read. Its position is not the true one.
func (s *versionSpec) rustSyntaxFailure(problem string) *failure {
	return &failure{
		status: http.StatusBadRequest, errorType: s.validationType, message: "Failed to " + problem + " at line 1 column 1",
	}
}

// rustSchemaFailure is the Rust frontend's error about the first field that does not fit.
func (s *versionSpec) rustSchemaFailure(p schemaError) *failure {
	const target = "deserialize the JSON body into the target type: "
	switch {
	case len(p.loc) == 0 || p.kind == "json_invalid":
		return s.rustSyntaxFailure("parse the request body as JSON: EOF while parsing a value")
	case p.kind == "missing":
		return s.rustSyntaxFailure(target + "missing field `" + p.loc[0] + "`")
	case p.loc[0] == "prompt":
		return s.rustSyntaxFailure(target + "prompt: data did not match any variant of untagged enum Prompt")
	}
	return s.rustSyntaxFailure(target + p.loc[0] + ": invalid type")
}

// rustLimit rejects what the Rust frontend does not do.
func (s *versionSpec) rustLimit(r *completionRequest) *failure {
	switch {
	case !s.rust:
		return nil
	case r.n > 1:
		return invalidParam("n", "Only n=1 is supported.")
	case r.weightVersions:
		return invalidParam("return_weight_versions", "return_weight_versions is not supported.")
	case r.echo && r.truncate != nil:
		return invalidParam("truncate_prompt_tokens", "truncate_prompt_tokens is not supported with echo.")
	}
	return nil
}

// The members of the Rust frontend's responses in their order, by kind of object. An event has no null members.
const (
	rustCompletion       = "id object created model choices usage metrics system_fingerprint kv_transfer_params ec_transfer_params"
	rustCompletionChoice = "index text logprobs finish_reason stop_reason prompt_logprobs token_ids prompt_token_ids"
	rustChat             = "id object created model choices service_tier usage metrics system_fingerprint prompt_logprobs prompt_token_ids " +
		"prompt_text kv_transfer_params ec_transfer_params"
	rustChatChoice  = "index message logprobs finish_reason stop_reason token_ids routed_experts weight_versions"
	rustEvent       = "id object created model choices usage prompt_token_ids"
	rustLogprobs    = "tokens token_logprobs top_logprobs text_offset content"
	rustEventChoice = "index text delta logprobs finish_reason stop_reason token_ids prompt_token_ids"
)

// rustBody turns a plain response of the Python frontend into one of the Rust frontend.
func rustBody(body []byte, chat bool) []byte {
	object, choice := rustCompletion, rustCompletionChoice
	if chat {
		object, choice = rustChat, rustChatChoice
	}
	return rustObject(gjson.ParseBytes(body), object, choice, false)
}

// rustObject encodes the named members of an object, and those of its choices.
func rustObject(object gjson.Result, names, ofChoice string, dropNull bool) []byte {
	dst := []byte{'{'}
	for name := range strings.FieldsSeq(names) {
		v := object.Get(name)
		if !v.Exists() || dropNull && v.Type == gjson.Null {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		switch {
		case name == "choices":
			dst = append(dst, '[')
			for i, choice := range v.Array() {
				dst = append(appendComma(dst, i), rustObject(choice, ofChoice, "", dropNull)...)
			}
			dst = append(dst, ']')
		case name == "usage":
			dst = fmt.Appendf(dst, `{"prompt_tokens":%s,"total_tokens":%s,"completion_tokens":%s,"prompt_tokens_details":null,`+
				`"completion_tokens_details":{"reasoning_tokens":0}}`,
				v.Get("prompt_tokens").Raw, v.Get("total_tokens").Raw, v.Get("completion_tokens").Raw)
		case name == "logprobs" && v.IsObject():
			dst = append(dst, rustObject(v, rustLogprobs, "", dropNull)...)
		default:
			dst = append(dst, v.Raw...)
		}
	}
	return append(dst, '}')
}
