package validate

import (
	apierr "basegate/errors"
	"basegate/internal/suggest"
)

// refusedFields are the fields of a completion that some version of vLLM has and this gateway does not take, each with
// the field to use in its place, if there is one of the same meaning.
var refusedFields = map[string]string{
	"ec_transfer_params":          "",
	"guided_choice":               "structured_outputs",
	"guided_decoding_backend":     "",
	"guided_grammar":              "structured_outputs",
	"guided_json":                 "structured_outputs",
	"guided_regex":                "structured_outputs",
	"guided_whitespace_pattern":   "",
	"kv_transfer_params":          "",
	"length_penalty":              "",
	"logits_processors":           "",
	"logprob_token_ids":           "",
	"mm_payload":                  "",
	"priority":                    "",
	"prompt_embeds":               "",
	"repetition_detection":        "",
	"request_id":                  "",
	"return_mm_kwargs":            "",
	"return_token_offsets":        "",
	"routed_experts_prompt_start": "",
	"session_id":                  "",
	"stream_interval":             "",
	"suffix":                      "",
	"thinking_token_budget":       "",
	"truncation_side":             "",
	"use_beam_search":             "",
	"vllm_xargs":                  "",
	"watermarking":                "",
}

// foreignFields are fields of other servers that are one typo from a field of another meaning.
var foreignFields = map[string]bool{"top_a": true}

// unknownField returns the error for a name that is not a field of the schema.
func (s *schema) unknownField(name []byte) error {
	if advice, refused := s.advice[string(name)]; refused {
		return apierr.InvalidField(string(name), string(name)+": "+advice)
	}
	if instead, refused := s.refused[string(name)]; refused {
		return apierr.UnsupportedField(string(name), instead)
	}
	return apierr.UnknownField(string(name), s.suggestField(name))
}

// maxMisspelt limits the names for which a suggestion is looked for, in bytes. No field's name is nearly as long.
const maxMisspelt = 40

// suggestField returns the field that an unknown name probably means, or "" if none is within one or two typos.
func (s *schema) suggestField(name []byte) string {
	if len(name) > maxMisspelt || foreignFields[string(name)] {
		return ""
	}
	return suggest.Nearest(string(name), s.fieldNames, func(field string) int { return min(2, len(field)/3) })
}

// fieldNames iterates over the names of the schema's fields.
func (s *schema) fieldNames(yield func(string) bool) {
	for _, id := range s.fields {
		if !yield(s.table[id].name) {
			return
		}
	}
}
