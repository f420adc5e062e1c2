package mockvllm

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// completionRequest is the body of a completion. A field that is absent or null has vLLM's default.
type completionRequest struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt"`
	Suffix    *string         `json:"suffix"`
	User      string          `json:"user"`
	RequestID string          `json:"request_id"`
	Priority  int             `json:"priority"`
	CacheSalt string          `json:"cache_salt"`
	sampling

	N              int          `json:"n"`
	BestOf         int          `json:"best_of"`
	MaxTokens      int          `json:"max_tokens"`
	MinTokens      int          `json:"min_tokens"`
	Stop           stringOrList `json:"stop"`
	StopTokens     []int        `json:"stop_token_ids"`
	IncludeStop    bool         `json:"include_stop_str_in_output"`
	IgnoreEOS      bool         `json:"ignore_eos"`
	BadWords       []string     `json:"bad_words"`
	SkipSpecial    bool         `json:"skip_special_tokens"`
	AddSpecial     bool         `json:"add_special_tokens"`
	Truncate       *int         `json:"truncate_prompt_tokens"` // -1 keeps what leaves room for max_tokens
	TruncationSide string       `json:"truncation_side"`        // right keeps the first tokens, otherwise the last are kept

	Echo                 bool  `json:"echo"`
	Logprobs             *int  `json:"logprobs"`
	PromptLogprobs       *int  `json:"prompt_logprobs"`
	LogprobIDs           []int `json:"logprob_token_ids"`
	ReturnTokenIDs       bool  `json:"return_token_ids"`
	TokensAsIDs          bool  `json:"return_tokens_as_token_ids"`
	ReturnWeightVersions bool  `json:"return_weight_versions"`
	Stream               bool  `json:"stream"`
	StreamInterval       int   `json:"stream_interval"` // tokens per event, but for the first and the last; 0 means 1
	StreamOptions        struct {
		IncludeUsage bool `json:"include_usage"`
		Continuous   bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`

	prompts    []prompt
	constraint *constraint  // nil without one
	chat       *chatRequest // nil for a completion
}

// prompt is a text or a list of token ids, as the client sent it.
type prompt struct {
	text   string
	tokens []int
	isText bool
}

func newRequest() *completionRequest {
	return &completionRequest{
		N: 1, MaxTokens: 16, AddSpecial: true, SkipSpecial: true, sampling: sampling{Temperature: 1, TopP: 1, Repetition: 1},
	}
}

// scoresOnly reports whether the request wants its prompt's log-probabilities and no output.
func (r *completionRequest) scoresOnly() bool { return r.Echo && r.MaxTokens == 0 }

// continuousUsage reports whether each event has the usage so far.
func (r *completionRequest) continuousUsage() bool {
	return r.StreamOptions.IncludeUsage && r.StreamOptions.Continuous
}

// stringOrList is a list of strings, or a string that stands for a list of one.
type stringOrList []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *stringOrList) UnmarshalJSON(data []byte) error {
	if text := gjson.ParseBytes(data); text.Type == gjson.String {
		*l = stringOrList{text.Str}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}

// known returns the members of a request that have one of the names, and are not null.
func known(body gjson.Result, names []string) gjson.Result {
	dst := []byte{'{'}
	body.ForEach(func(name, v gjson.Result) bool {
		if v.Type != gjson.Null && slices.Contains(names, name.Str) {
			if len(dst) > 1 {
				dst = append(dst, ',')
			}
			dst = append(append(appendString(dst, name.Str), ':'), v.Raw...)
		}
		return true
	})
	return gjson.ParseBytes(append(dst, '}'))
}

// decode stores the fields of a request into a struct. Of the fields with a wrong type it reports one.
func (s *versionSpec) decode(fields, body gjson.Result, into any) *failure {
	if !body.IsObject() {
		return s.schemaFailure("model_attributes_type", "", "Input should be a valid dictionary or object to extract fields from", body, "")
	}
	err := json.Unmarshal([]byte(fields.Raw), into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		path := slices.DeleteFunc(strings.Split(wrong.Field, "."), func(step string) bool {
			return step == "completionRequest" || step == "sampling" || step == "conversation" // embedded structs
		})
		field := strings.Join(path, ".")
		return s.wrongType(wrong.Type.Kind(), field, body.Get(field))
	case err != nil:
		return badRequest("%s", err.Error())
	}
	return nil
}

// typeNames are pydantic's names for the types of fields: that of the error, and that in its message.
var typeNames = map[reflect.Kind][2]string{
	reflect.Int: {"int_type", "integer"}, reflect.Int64: {"int_type", "integer"}, reflect.Float64: {"float_type", "number"},
	reflect.Bool: {"bool_type", "boolean"}, reflect.String: {"string_type", "string"}, reflect.Slice: {"list_type", "list"},
	reflect.Struct: {"dict_type", "dictionary"}, reflect.Map: {"dict_type", "dictionary"},
}

// wrongType is pydantic's error about a value that is not of a type.
func (s *versionSpec) wrongType(expected reflect.Kind, field string, input gjson.Result) *failure {
	names := typeNames[expected]
	return s.schemaFailure(names[0], field, "Input should be a valid "+names[1], input, "")
}

// parseCompletion decodes a completion, and checks what needs neither the model nor the engine.
func (s *versionSpec) parseCompletion(body gjson.Result) (*completionRequest, *failure) {
	r := newRequest()
	fields := known(body, s.completionFields)
	if failure := s.decode(fields, body, r); failure != nil {
		return nil, failure
	}
	if n := body.Get("n"); n.Exists() && n.Type == gjson.Null && !s.Rust {
		return nil, s.wrongType(reflect.Int, "n", n)
	}
	r.constraint = constraintOf(fields)
	prompt := fields.Get("prompt")
	prompts, ok := s.readPrompts(prompt)
	switch {
	case !prompt.Exists() && (s.PromptRequired || s.Rust):
		return nil, s.schemaFailure("missing", "prompt", "Field required", body, "")
	case !prompt.Exists(), prompt.Type == gjson.String && prompt.Str == "" && !s.PromptRequired && !s.Rust:
		return nil, invalidParam("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case prompt.Raw == "[]":
		f := badRequest("%s", s.NoPrompt)
		f.param, f.invalid = s.NoPromptParam, s.NoPromptParam != ""
		return nil, f
	case !ok && s.Rust:
		return nil, s.rustSchemaFailure("", "prompt")
	case !ok:
		return nil, s.invalidBody(s.WrongPrompt, "body.prompt.0")
	case r.StreamOptions.IncludeUsage && !r.Stream:
		return nil, invalidParam("stream_options", "Stream options can only be defined when `stream=True`.")
	case r.Stream && r.PromptLogprobs != nil && *r.PromptLogprobs != 0:
		return nil, invalidParam("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
	}
	r.prompts = prompts
	return r, nil
}

// readPrompts reads "text", [1,2], and, unless by the Rust frontend, ["text","text"] and [[1],[2]].
func (s *versionSpec) readPrompts(v gjson.Result) ([]prompt, bool) {
	var texts []string
	var tokens []int
	var lists [][]int
	switch raw := []byte(v.Raw); {
	case v.Type == gjson.String:
		texts = []string{v.Str}
	case json.Unmarshal(raw, &tokens) == nil:
		lists = [][]int{tokens}
	case s.Rust:
		return nil, false
	case json.Unmarshal(raw, &lists) == nil:
	case json.Unmarshal(raw, &texts) == nil:
		lists = nil // it has what the attempt before could read
	default:
		return nil, false
	}
	var prompts []prompt
	for _, text := range texts {
		prompts = append(prompts, prompt{text: text, isText: true})
	}
	for _, tokens := range lists {
		prompts = append(prompts, prompt{tokens: tokens})
	}
	return prompts, len(prompts) > 0
}
