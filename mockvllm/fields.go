package mockvllm

import (
	"fmt"
	"slices"
	"strings"
)

// fieldChange is what a release did to the fields of requests. Names are separated by spaces.
type fieldChange struct {
	since                        release
	both, completion, chat, gone string
}

// fieldChanges holds the fields of each version, oldest first. A field that a version does not have is ignored.
var fieldChanges = []fieldChange{
	{
		since: specs[0].since,
		both: "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options temperature " +
			"top_p user use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output " +
			"ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs " +
			"allowed_token_ids add_special_tokens response_format guided_json guided_regex guided_choice guided_grammar " +
			"guided_decoding_backend guided_whitespace_pattern best_of echo priority request_id logits_processors " +
			"return_tokens_as_token_ids",
		completion: "prompt suffix",
		chat: "messages top_logprobs tools tool_choice parallel_tool_calls add_generation_prompt continue_final_message documents " +
			"chat_template chat_template_kwargs bad_words",
	},
	{since: release{0, 6, 4}, chat: "max_completion_tokens"},
	{since: release{0, 9, 0}, both: "kv_transfer_params", completion: "prompt_embeds", chat: "mm_processor_kwargs"},
	{since: release{0, 10, 0}, both: "cache_salt vllm_xargs", chat: "include_reasoning reasoning_effort"},
	{since: release{0, 10, 1}, both: "return_token_ids"},
	{since: release{0, 11, 0}, both: "structured_outputs"},
	{
		since: release{0, 12, 0},
		gone:  "best_of guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern",
	},
	{since: release{0, 17, 0}, gone: "logits_processors"},
	{since: release{0, 20, 0}, both: "repetition_detection"},
	{since: release{0, 24, 0}, both: "truncation_side thinking_token_budget"},
	{since: release{0, 26, 0}, both: "logprob_token_ids", completion: "bad_words"},
	{
		since: release{0, 27, 0},
		both:  "stream_interval ec_transfer_params mm_payload return_mm_kwargs return_token_offsets routed_experts_prompt_start",
	},
	{since: release{0, 28, 0}, both: "session_id"},
	{since: release{0, 30, 0}, both: "watermarking"},
	{since: release{0, 32, 0}, chat: "media_io_kwargs return_prompt_text"},
	{since: release{0, 33, 0}, both: "return_weight_versions"},
}

// fieldsOf returns the names of a version's fields of a completion or chat completion.
func fieldsOf(version release, chat bool) []string {
	var names []string
	for _, change := range fieldChanges {
		if version.before(change.since) {
			break
		}
		own := change.completion
		if chat {
			own = change.chat
		}
		gone := strings.Fields(change.gone)
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(gone, name) })
		names = append(names, strings.Fields(change.both+" "+own)...)
	}
	return names
}

// known returns the request without the members that the version ignores.
func known(body value, fields []string) value {
	body.members = slices.DeleteFunc(slices.Clone(body.members), func(m member) bool { return !slices.Contains(fields, m.name) })
	return body
}

// serveOpenAPI handles GET /openapi.json: the names of the fields, without their types and the other paths.
func (s *Server) serveOpenAPI(x *exchange) {
	dst := []byte(`{"openapi":"3.1.0","info":{"title":"FastAPI","version":"0.1.0"},"paths":{},"components":{"schemas":{`)
	for i, schema := range []struct {
		name   string
		fields []string
	}{{"CompletionRequest", s.spec.completionFields}, {"ChatCompletionRequest", s.spec.chatFields}} {
		dst = fmt.Appendf(appendComma(dst, i), `"%s":{"properties":{`, schema.name)
		for j, field := range schema.fields {
			dst = fmt.Appendf(appendComma(dst, j), `"%s":{"title":"%[1]s"}`, field)
		}
		dst = fmt.Appendf(dst, `},"additionalProperties":true,"type":"object","title":"%s"}`, schema.name)
	}
	x.writeJSON(append(dst, "}}}"...))
}
