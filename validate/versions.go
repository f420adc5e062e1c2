package validate

import (
	"fmt"
	"strings"
)

// Version is a version of vLLM. The zero value is one that is not known.
type Version struct{ Major, Minor, Patch int }

// ParseVersion parses what vLLM reports at /version. A suffix (rc1, .post1, +cpu) is ignored. The zero Version is
// returned for text that is not a version, and for 0.1.dev, which a build without tags reports whatever its age.
func ParseVersion(text string) Version {
	var v Version
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch); n < 2 || strings.HasPrefix(text, "0.1.dev") {
		return Version{}
	}
	return v
}

// Known reports whether the version is known.
func (v Version) Known() bool { return v != Version{} }

// Before reports whether v is known and older than w.
func (v Version) Before(w Version) bool {
	if !v.Known() {
		return false
	}
	if v.Major != w.Major {
		return v.Major < w.Major
	}
	if v.Minor != w.Minor {
		return v.Minor < w.Minor
	}
	return v.Patch < w.Patch
}

// String returns the version without a patch of 0.
func (v Version) String() string {
	if v.Patch == 0 {
		return fmt.Sprintf("%d.%d", v.Major, v.Minor)
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}

// SinceStructuredOutputs is the first version with structured_outputs, and the first whose completions follow a
// response_format of type json_schema.
var SinceStructuredOutputs = Version{Minor: 11}

// laterField is a field, or a use of a field, that not every version of vLLM has.
type laterField struct {
	field fieldID
	name  string // what the error message calls it
	since Version
	used  func(*Request) bool // nil: whenever the field is present
}

// laterFields are in the order in which they are looked for. Those that are older than the oldest version supported, 0.6,
// are not listed, nor is structured output, which is respelled.
var laterFields = []laterField{
	{fieldBadWords, "bad_words", Version{Minor: 26}, func(r *Request) bool { return r.Kind != Messages }},
	{fieldBadWords, "bad_words", Version{Minor: 11}, func(r *Request) bool { return r.Kind == Messages }},
	{fieldMaxCompletionTokens, "max_completion_tokens", Version{Minor: 6, Patch: 4}, nil},
	{fieldTruncatePromptTokens, "truncate_prompt_tokens -1", Version{Minor: 20}, func(r *Request) bool { return r.Truncate == TruncateToFit }},
	{fieldTruncationSide, "truncation_side", Version{Minor: 24}, nil},
	{fieldReturnTokenIDs, "return_token_ids", Version{Minor: 10, Patch: 1}, nil},
	{fieldCacheSalt, "cache_salt", Version{Minor: 10}, nil},
	{fieldStreamInterval, "stream_interval", Version{Minor: 27}, nil},
	{fieldRepetitionDetection, "repetition_detection", Version{Minor: 32}, nil},
	{fieldReturnWeightVersions, "return_weight_versions", Version{Minor: 33}, nil},
	{fieldXArgs, "vllm_xargs", Version{Minor: 10}, nil},
	{fieldReasoningEffort, "reasoning_effort", Version{Minor: 10, Patch: 1}, nil},
	{fieldIncludeReasoning, "include_reasoning", Version{Minor: 10, Patch: 1}, nil},
	{fieldReturnTokenStrs, "return_token_strs", Version{Minor: 9}, func(r *Request) bool { return r.returnTokenStrs }},
	{fieldStructuredOutputs, "structured_outputs.disable_any_whitespace", SinceStructuredOutputs, func(r *Request) bool { return r.structured.disablesWhitespace }},
}
