package mockvllm

import (
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"text/template"

	"github.com/tidwall/gjson"
)

// Chat templates. Without one, chat completions are refused, as by vLLM with a base model.
const (
	TemplateNone   = ""
	TemplateChatML = "chatml" // as of Qwen
	TemplateLlama  = "llama"  // as of Llama 3
)

//go:embed templates
var templateFiles embed.FS

var templates = template.Must(template.ParseFS(templateFiles, "templates/*.tmpl"))

// conversation is what a chat template renders.
type conversation struct {
	Messages            []chatMessage     `json:"messages"`
	Tools               []json.RawMessage `json:"tools"`
	AddGenerationPrompt bool              `json:"add_generation_prompt"`
	ContinuesMessage    bool              `json:"continue_final_message"`
	Arguments           struct {
		EnableThinking *bool `json:"enable_thinking"`
	} `json:"chat_template_kwargs"`

	System string `json:"-"` // without the message that it is from
}

func newConversation() conversation { return conversation{AddGenerationPrompt: true} }

// DisablesThinking reports whether the model shall not reason.
func (c *conversation) DisablesThinking() bool {
	return c.Arguments.EnableThinking != nil && !*c.Arguments.EnableThinking
}

// FirstUser returns the index of the first message of a user, or -1.
func (c *conversation) FirstUser() int {
	return slices.IndexFunc(c.Messages, func(m chatMessage) bool { return m.Role == "user" })
}

// Ends reports whether a message is to be closed: all are, unless the output continues the last.
func (c *conversation) Ends(message int) bool {
	return message < len(c.Messages)-1 || !c.ContinuesMessage
}

// Refuse ends the rendering with an error.
func (*conversation) Refuse(message string) (string, error) { return "", badRequest("%s", message) }

type chatMessage struct {
	Role    string      `json:"role"`
	Content messageText `json:"content"`
	Calls   []struct {
		Function struct{ Name, Arguments string } `json:"function"`
	} `json:"tool_calls"`
}

// messageText is a text, or text parts, which vLLM joins by line feeds for templates that take strings.
type messageText string

// Trimmed returns the text without the space around it.
func (m messageText) Trimmed() string { return strings.TrimSpace(string(m)) }

// UnmarshalJSON implements json.Unmarshaler.
func (m *messageText) UnmarshalJSON(data []byte) error {
	content := gjson.ParseBytes(data)
	parts := []string{content.Str}
	if content.IsArray() {
		parts = nil
		for _, part := range content.Array() {
			parts = append(parts, part.Get("text").Str)
		}
	}
	*m = messageText(strings.Join(parts, "\n"))
	return nil
}

// render returns the prompt of a conversation, or the error of vLLM if the template refuses it.
func (s *Server) render(c conversation) (string, *failure) {
	named := templates.Lookup(s.options.ChatTemplate + ".tmpl")
	switch {
	case named == nil && s.spec.Rust:
		return "", internalError("failed to submit chat request: chat template is required but none was configured")
	case named == nil:
		return "", badRequest("As of transformers v4.44, default chat template is no longer allowed, so you must provide a " +
			"chat template if the tokenizer does not define one.")
	case c.ContinuesMessage && c.AddGenerationPrompt:
		return "", badRequest("continue_final_message and add_generation_prompt are not compatible.")
	}
	if s.options.ChatTemplate == TemplateChatML {
		c.System = "You are a helpful assistant."
		if len(c.Messages) > 0 && c.Messages[0].Role == "system" {
			c.System, c.Messages = string(c.Messages[0].Content), c.Messages[1:]
		}
	}
	var out strings.Builder
	err := named.Execute(&out, &c)
	var refused *failure
	if err != nil && !errors.As(err, &refused) {
		refused = internalError(err.Error())
	}
	return out.String(), refused
}
