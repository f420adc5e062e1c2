package validate

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// DefaultChatMaxTokens is the max_tokens of a chat completion without one, unless a model has another default: vLLM's own
// is what the context leaves, and reserving that would make the requests of a key with caps wait for each other.
const DefaultChatMaxTokens = 4096

// maxTopLogprobs is the largest top_logprobs of a chat completion.
const maxTopLogprobs = 20

// conversation holds what only a chat completion has.
type conversation struct {
	contentBytes int64      // of all content, as JSON: an upper bound of its length as text
	roles        [Roles]int // messages of each role
	uncountable  bool       // the template may add text to the content that is not known beforehand
	functions    []string   // names of the tools
	choice       string     // the tool that tool_choice names; empty if it names none
	noTool       bool       // tool_choice is "none"
	topLogprobs  int        // Absent, or at least 0
	logprobs     bool       // asked for

	defaultMaxTokens   bool // the client sent none
	noGenerationPrompt bool // add_generation_prompt is false
	continuesMessage   bool
}

// chatFields are the fields of a chat completion: its own, and those of a completion but for the ones that concern a prompt.
var chatFields = []fieldID{
	fieldModel, fieldMessages, fieldMaxCompletionTokens, fieldMaxTokens, fieldTemperature, fieldTopP, fieldTopK, fieldMinP,
	fieldPresencePenalty, fieldFrequencyPenalty, fieldRepetitionPenalty, fieldSeed, fieldN, fieldStop, fieldChatLogprobs,
	fieldTopLogprobs, fieldStream, fieldStreamOptions, fieldLogitBias, fieldUser, fieldMinTokens, fieldIgnoreEOS,
	fieldIncludeStop, fieldSkipSpecialTokens, fieldSpacesBetweenSpecialTokens, fieldStopTokenIDs, fieldAllowedTokenIDs,
	fieldBadWords, fieldReturnTokensAsTokenIDs, fieldReturnTokenIDs, fieldCacheSalt, fieldResponseFormat,
	fieldStructuredOutputs, fieldTools, fieldToolChoice, fieldParallelToolCalls, fieldAddGenerationPrompt,
	fieldContinueFinalMessage, fieldChatTemplateKwargs, fieldReasoningEffort, fieldIncludeReasoning, fieldStreamInterval,
	fieldRepetitionDetection, fieldReturnWeightVersions, fieldXArgs, fieldPromptCacheKey, fieldSafetyIdentifier, fieldStore,
	fieldServiceTier, fieldModalities,
}

// adviceOfChat are fields of other servers, or of completions, with what this gateway serves in their place.
var adviceOfChat = map[string]string{
	"functions":              "the older form of function calling is not served; send the functions as tools",
	"function_call":          "the older form of function calling is not served; send tool_choice",
	"audio":                  "audio is not served, only text; leave it out",
	"metadata":               "nothing is stored with a request; send your own tag as user",
	"prompt":                 "a chat completion has messages; a prompt goes to POST /v1/completions",
	"suffix":                 "a chat completion does not have it; leave it out",
	"prompt_logprobs":        "log-probabilities of a prompt are served by POST /v1/completions; leave it out",
	"echo":                   "it is served by POST /v1/completions; leave it out",
	"best_of":                "a chat completion does not have it; ask for n and choose among them",
	"truncate_prompt_tokens": "a conversation is not truncated; leave messages out",
	"truncation_side":        "a conversation is not truncated; leave messages out",
	"add_special_tokens":     "the model's chat template adds them; leave it out",
	"chat_template":          "the model's own template is used; its arguments are sent as chat_template_kwargs",
}

// chatConflicts are those of a chat completion, in the order in which they are reported.
var chatConflicts = []Conflict{
	{
		"max_tokens",
		func(r *Request) bool { return r.has(fieldMaxTokens) && r.has(fieldMaxCompletionTokens) },
		func(*Request) string {
			return "max_tokens and max_completion_tokens mean the same; send one of them"
		},
	},
	streamOptionsConflict,
	streamIntervalConflict,
	{
		"min_tokens",
		func(r *Request) bool { return r.MinTokens > r.MaxTokens },
		func(r *Request) string {
			limit := "which is " + fields[r.maxTokensField()].name
			if r.chat.defaultMaxTokens {
				limit = "the model's default max_completion_tokens"
			}
			return fmt.Sprintf("min_tokens: got %d; expected an integer from 0 to %d, %s", r.MinTokens, r.MaxTokens, limit)
		},
	},
	{
		"top_logprobs",
		func(r *Request) bool { return r.chat.topLogprobs != Absent && !r.chat.logprobs },
		func(*Request) string { return "top_logprobs has a meaning only with logprobs: true" },
	},
	structuredConflict,
	{
		"tool_choice",
		func(r *Request) bool { return r.has(fieldToolChoice) && !r.chat.noTool && !r.has(fieldTools) },
		func(*Request) string { return `tool_choice other than "none" has a meaning only with tools` },
	},
	{
		"tool_choice",
		func(r *Request) bool { return r.chat.choice != "" && !slices.Contains(r.chat.functions, r.chat.choice) },
		func(r *Request) string {
			return "tool_choice: got the function " + strconv.Quote(apierr.Clip(r.chat.choice)) + ", which is not among the tools"
		},
	},
	{
		"continue_final_message",
		func(r *Request) bool { return r.chat.continuesMessage && !r.chat.noGenerationPrompt },
		func(*Request) string {
			return "continue_final_message continues the last message, so it needs add_generation_prompt: false"
		},
	},
}

// Chat parses the body of POST /v1/chat/completions. Its errors are those of Completion.
func Chat(body []byte, limits Limits) (*Request, error) {
	return generationRequest(chat, body, limits)
}

// setDefaultMaxTokens sets the max_tokens of a chat completion without one.
func (r *Request) setDefaultMaxTokens(tokens int64) {
	if r.schema != chat || r.has(fieldMaxTokens) || r.has(fieldMaxCompletionTokens) {
		return
	}
	r.chat.defaultMaxTokens, r.MaxTokens = true, tokens
}

// HasDefaultMaxTokens reports whether MaxTokens is a default that must be lowered to what the context leaves, and sent to
// the backend, whose own default is another one.
func (r *Request) HasDefaultMaxTokens() bool { return r.chat.defaultMaxTokens || r.hasTotal }

// maxTokensField returns the field that holds MaxTokens, or to which it is written.
func (r *Request) maxTokensField() fieldID {
	if r.has(fieldMaxCompletionTokens) {
		return fieldMaxCompletionTokens
	}
	return fieldMaxTokens // every version has it
}

// ContentBytes returns the length of all content of Messages as JSON, which is at least its length as text.
func (r *Request) ContentBytes() int64 { return r.chat.contentBytes }

// MessagesOf returns the number of messages of each role, and whether the template adds to them only what it adds to empty
// messages. With tools, names, reasoning or arguments of the template it may add more.
func (r *Request) MessagesOf() (roles [Roles]int, plain bool) {
	return r.chat.roles, !r.chat.uncountable && !r.has(fieldTools) && !r.has(fieldChatTemplateKwargs) && !r.has(fieldReasoningEffort)
}

// ToolBytes returns the length of the tools as JSON.
func (r *Request) ToolBytes() int64 {
	m := r.find(fieldTools)
	if m == nil || m.null {
		return 0
	}
	return int64(m.end - m.value)
}

// TokenizeBody returns the body of a request to a backend's /tokenize that counts the tokens of the conversation: what the
// template makes of the messages, the tools and its arguments.
func (r *Request) TokenizeBody(model string) Body {
	s := splicer{request: r}
	s.out.add([]byte(`{"model":`), quoted(model))
	for _, id := range []fieldID{fieldMessages, fieldTools, fieldAddGenerationPrompt, fieldContinueFinalMessage} {
		m := r.find(id)
		if m == nil || m.null {
			continue
		}
		s.out.add([]byte(`,"` + fields[id].name + `":`))
		s.copied = m.value
		s.dropMembers(m)
		s.copyUntil(m.end)
	}
	s.out.add(r.templateArguments(), []byte("}"))
	return s.out
}

// templateArguments returns the member that gives /tokenize the arguments of the template. The template has reasoning_effort
// too, which /tokenize takes only among them.
func (r *Request) templateArguments() []byte {
	arguments, effort := []byte("{}"), []byte(nil)
	if r.has(fieldChatTemplateKwargs) {
		arguments = r.Value(fields[fieldChatTemplateKwargs].name)
	}
	if r.has(fieldReasoningEffort) && !gjson.GetBytes(arguments, "reasoning_effort").Exists() {
		effort = slices.Concat([]byte(`"reasoning_effort":`), r.Value(fields[fieldReasoningEffort].name))
		if len(bytes.TrimSpace(arguments[1:len(arguments)-1])) > 0 {
			effort = append(effort, ',')
		}
	}
	if effort == nil && !r.has(fieldChatTemplateKwargs) {
		return nil
	}
	return slices.Concat([]byte(`,"chat_template_kwargs":{`), effort, arguments[1:])
}

// add appends segments.
func (b *Body) add(segments ...[]byte) {
	for _, s := range segments {
		b.segments = append(b.segments, s)
		b.size += int64(len(s))
	}
}
