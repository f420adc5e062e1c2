package validate

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"
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

// adviceOfChat are fields of other servers, or of completions, with what this gateway serves in their place.
var adviceOfChat = map[string]string{
	"functions":              "the older form of function calling is not served; send the functions as tools",
	"function_call":          "the older form of function calling is not served; send tool_choice",
	"audio":                  "audio is not served, only text; remove it",
	"metadata":               "nothing is stored with a request; send your own tag as user",
	"prompt":                 "a chat completion has messages; a prompt goes to POST /v1/completions",
	"suffix":                 "a chat completion does not have it; remove it",
	"prompt_logprobs":        "log-probabilities of a prompt are served by POST /v1/completions; remove it",
	"echo":                   "it is served by POST /v1/completions; remove it",
	"best_of":                "a chat completion does not have it; ask for n and choose among them",
	"truncate_prompt_tokens": "a conversation is not truncated; leave messages out",
	"truncation_side":        "a conversation is not truncated; leave messages out",
	"add_special_tokens":     "the model's chat template adds them; remove it",
	"chat_template":          "the model's own template is used; its arguments are sent as chat_template_kwargs",
}

// Chat parses the body of POST /v1/chat/completions. Its errors are those of Completion.
func Chat(body []byte, limits Limits) (*Request, error) {
	return parse(chat, body, limits)
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
func (r *Request) ToolBytes() int64 { return int64(len(r.valueOf(fieldTools))) }

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
		arguments = r.valueOf(fieldChatTemplateKwargs)
	}
	if r.has(fieldReasoningEffort) && !gjson.GetBytes(arguments, "reasoning_effort").Exists() {
		effort = slices.Concat([]byte(`"reasoning_effort":`), r.valueOf(fieldReasoningEffort))
		if len(bytes.TrimSpace(arguments[1:len(arguments)-1])) > 0 {
			effort = append(effort, ',')
		}
	}
	if effort == nil && !r.has(fieldChatTemplateKwargs) {
		return nil
	}
	return slices.Concat([]byte(`,"chat_template_kwargs":{`), effort, arguments[1:])
}
