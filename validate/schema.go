package validate

import (
	apierr "basegate/errors"
	"basegate/internal/suggest"
)

// schema is what the body of one endpoint may contain.
type schema struct {
	fields   []fieldID
	table    []field // the rows of the fields
	byName   map[string]fieldID
	required []fieldID
	refused  map[string]string // see refusedFields
	advice   map[string]string // fields that are refused with a sentence that says what is served in their place
	example  string            // of a body, for the message about one that is no object

	conflict func(*Request) (param, message string) // of a Form, before Request.conflict; nil: none
	prompt   fieldID                                // what the backend reads
}

var (
	completion = &schema{
		required: []fieldID{fieldModel, fieldPrompt}, refused: refusedFields, example: `{"model": …, "prompt": …}`,
		advice: adviceOfCompletion, prompt: fieldPrompt,
	}
	chat = &schema{
		required: []fieldID{fieldModel, fieldMessages}, refused: refusedFields, advice: adviceOfChat,
		example: `{"model": …, "messages": […]}`, prompt: fieldMessages,
	}
	tokenize = &schema{
		fields:   []fieldID{fieldModel, fieldText, fieldAddSpecialTokens, fieldReturnTokenStrs},
		required: []fieldID{fieldModel, fieldText}, refused: refusedOfTokenize, example: `{"model": …, "prompt": …}`, prompt: fieldText,
	}
	detokenize = &schema{
		fields:   []fieldID{fieldModel, fieldTokens},
		required: []fieldID{fieldModel, fieldTokens}, example: `{"model": …, "tokens": …}`, prompt: fieldTokens,
	}
)

// The same at the root, where the model may be told elsewhere.
var (
	rootTokenize   = tokenize.withoutModel(`{"prompt": …}`)
	rootDetokenize = detokenize.withoutModel(`{"tokens": …}`)
)

func (s schema) withoutModel(example string) *schema {
	s.required, s.example = s.required[1:], example
	return &s
}

// refusedOfTokenize are the fields of vLLM's /tokenize that this gateway does not take: base models have no chat template.
var refusedOfTokenize = byName(map[string][]string{
	"prompt": {"messages"},
	"": {
		"add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message", "mm_processor_kwargs", "tools",
	},
})

// byName returns what is said of each name from the names of which it is said.
func byName(names map[string][]string) map[string]string {
	all := map[string]string{}
	for said, of := range names {
		for _, name := range of {
			all[name] = said
		}
	}
	return all
}

// Tokenize parses the body of POST /v1/tokenize, or at the root of POST /tokenize, which needs no model. Its errors are those of
// Completion. memory may be nil.
func Tokenize(body []byte, root bool, memory Memory) (*Request, error) {
	if root {
		return parse(rootTokenize, body, Limits{Memory: memory})
	}
	return parse(tokenize, body, Limits{Memory: memory})
}

// Detokenize is Tokenize for POST /v1/detokenize and POST /detokenize.
func Detokenize(body []byte, root bool, memory Memory) (*Request, error) {
	if root {
		return parse(rootDetokenize, body, Limits{Memory: memory})
	}
	return parse(detokenize, body, Limits{Memory: memory})
}

// refusedFields are the fields of completions and of chat completions that some version of vLLM has and this gateway does
// not take, by the field to use in their place, if there is one of the same meaning.
var refusedFields = byName(map[string][]string{
	"structured_outputs": {
		"guided_choice", "guided_grammar", "guided_json", "guided_regex", "structural_tag",
	},
	"": {
		"documents", "ec_transfer_params", "guided_decoding_backend", "guided_whitespace_pattern", "kv_transfer_params",
		"length_penalty", "logits_processors", "media_io_kwargs", "mm_payload", "mm_processor_kwargs",
		"priority", "prompt_embeds", "request_id", "return_mm_kwargs", "return_prompt_text", "return_token_offsets",
		"routed_experts_prompt_start", "session_id", "suffix", "thinking_token_budget", "use_beam_search", "watermarking",
	},
})

// adviceOfCompletion are fields of chat completions, with what a completion has in their place.
var adviceOfCompletion = byName(map[string][]string{
	"a completion has max_tokens; send that in its place":                                    {"max_completion_tokens"},
	"a completion has logprobs, which is the number of alternatives; send that in its place": {"top_logprobs"},
	"a completion has a prompt; messages go to POST /v1/chat/completions":                    {"messages"},
	"a completion has user; send that in its place":                                          {"safety_identifier"},
	"tools are served by POST /v1/chat/completions; a completion has structured_outputs": {
		"function_call", "functions", "parallel_tool_calls", "tool_choice", "tools",
	},
	"no chat template is applied to a prompt; POST /v1/chat/completions has it": {
		"add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message", "include_reasoning",
		"reasoning_effort",
	},
	"it is no field of a completion; remove it": {"audio", "metadata", "modalities", "service_tier", "store"},
})

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

// suggestField returns the field that an unknown name probably means, or "" if none is within one or two typos.
func (s *schema) suggestField(name []byte) string {
	if foreignFields[string(name)] {
		return ""
	}
	return suggest.Field(string(name), s.fieldNames)
}

func (s *schema) fieldNames(yield func(string) bool) {
	for _, id := range s.fields {
		if !yield(s.table[id].name) {
			return
		}
	}
}
