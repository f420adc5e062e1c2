package mockvllm

import (
	"fmt"
	"slices"
	"strings"
)

// Chat templates. Without one, chat completions are refused, as by vLLM with a base model.
const (
	TemplateNone   = ""
	TemplateChatML = "chatml" // as of Qwen: a default system prompt, reasoning, tools in the system message
	TemplateLlama  = "llama"  // as of Llama 3: begin-of-text, tools in the first user message, one tool call per message
)

var templates = map[string]func(*conversation) (string, *failure){
	TemplateChatML: (*conversation).renderChatML, TemplateLlama: (*conversation).renderLlama,
}

// conversation is what a chat template renders.
type conversation struct {
	messages           []chatMessage
	tools              []value
	noGenerationPrompt bool
	continuesMessage   bool
	disablesThinking   bool // enable_thinking is false in chat_template_kwargs
}

type chatMessage struct {
	role, content string
	calls         []calledFunction
}

// calledFunction is a tool call in a message.
type calledFunction struct{ name, arguments string }

// render returns the prompt of a conversation, or the error of vLLM if the template refuses it.
func (s *Server) render(c *conversation) (string, *failure) {
	template := templates[s.options.ChatTemplate]
	if template == nil {
		return "", badRequest("As of transformers v4.44, default chat template is no longer allowed, so you must provide a " +
			"chat template if the tokenizer does not define one.")
	}
	if c.continuesMessage && !c.noGenerationPrompt {
		return "", badRequest("continue_final_message and add_generation_prompt are not compatible. Use continue_final_message " +
			"when you want the model to continue the final message, and add_generation_prompt when you want to add a header that will " +
			"prompt it to start a new assistant message instead.")
	}
	return template(c)
}

func (c *conversation) renderChatML() (string, *failure) {
	var out strings.Builder
	messages, system := c.messages, "You are a helpful assistant."
	if len(messages) > 0 && messages[0].role == "system" {
		system, messages = messages[0].content, messages[1:]
	}
	if tools := c.renderedTools(); tools != "" {
		system += "\n\n# Tools\n\nYou may call one or more functions. Their signatures are within <tools></tools>:\n<tools>" + tools +
			"\n</tools>\n\nReturn each call as JSON within <tool_call></tool_call>."
	}
	out.WriteString("<|im_start|>system\n" + system + "<|im_end|>\n")
	for i, m := range messages {
		role, content := m.role, m.content
		if role == "tool" {
			role, content = "user", "<tool_response>\n"+content+"\n</tool_response>"
		}
		for _, call := range m.calls {
			content += fmt.Sprintf("\n<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", call.name, call.arguments)
		}
		out.WriteString("<|im_start|>" + role + "\n" + content)
		if i < len(messages)-1 || !c.continuesMessage {
			out.WriteString("<|im_end|>\n")
		}
	}
	if !c.noGenerationPrompt {
		out.WriteString("<|im_start|>assistant\n")
		if c.disablesThinking {
			out.WriteString("<think>\n\n</think>\n\n")
		}
	}
	return out.String(), nil
}

func (c *conversation) renderLlama() (string, *failure) {
	var out strings.Builder
	out.WriteString(beginOfText)
	tools := c.renderedTools()
	if tools != "" && !slices.ContainsFunc(c.messages, func(m chatMessage) bool { return m.role == "user" }) {
		return "", badRequest("Cannot put tools in the first user message when there's no first user message!")
	}
	for i, m := range c.messages {
		role, content := m.role, strings.TrimSpace(m.content)
		switch {
		case len(m.calls) > 1:
			return "", badRequest("This model only supports single tool-calls at once!")
		case len(m.calls) == 1:
			content = fmt.Sprintf("{\"name\": %q, \"parameters\": %s}", m.calls[0].name, m.calls[0].arguments)
		case role == "tool":
			role = "ipython"
		case role == "user" && tools != "":
			content = "Given the following functions, please respond with a JSON for a function call with its proper arguments.\n" +
				tools + "\n\n" + content
			tools = ""
		}
		out.WriteString("<|start_header_id|>" + role + "<|end_header_id|>\n\n" + content)
		if i < len(c.messages)-1 || !c.continuesMessage {
			out.WriteString("<|eot_id|>")
		}
	}
	if !c.noGenerationPrompt {
		out.WriteString("<|start_header_id|>assistant<|end_header_id|>\n\n")
	}
	return out.String(), nil
}

func (c *conversation) renderedTools() string {
	var out strings.Builder
	for _, tool := range c.tools {
		out.WriteString("\n" + string(tool.appendJSON(nil)))
	}
	return out.String()
}

// conversation reads the fields of a chat completion, or of /tokenize, that the template renders.
func (*versionSpec) conversation(f *fieldReader) *conversation {
	c := &conversation{}
	addPrompt := true
	f.boolean("add_generation_prompt", false, &addPrompt)
	c.noGenerationPrompt = !addPrompt
	f.boolean("continue_final_message", false, &c.continuesMessage)
	if arguments, _ := f.body.member("chat_template_kwargs"); arguments.kind == objectKind {
		thinking, present := arguments.member("enable_thinking")
		c.disablesThinking = present && thinking.kind == boolKind && !thinking.boolean
	}
	if tools, present := f.body.member("tools"); present && tools.kind != nullKind {
		if tools.kind != listKind {
			f.addError(listType, tools, "tools")
		}
		c.tools = tools.items
	}
	messages, present := f.body.member("messages")
	switch {
	case !present:
		f.require("messages")
	case messages.kind != listKind:
		f.addError(listType, messages, "messages")
	}
	for i, m := range messages.items {
		c.messages = append(c.messages, readMessage(f, m, decimal(i)))
	}
	return c
}

// readMessage reads a message. Text parts are joined by line feeds, as vLLM does for templates that take strings.
func readMessage(f *fieldReader, m value, index string) chatMessage {
	if m.kind != objectKind {
		f.addError(dictType, m, "messages", index)
		return chatMessage{}
	}
	role, present := m.member("role")
	if !present || role.kind != stringKind {
		f.addError(typeError{"missing", "Field required"}, m, "messages", index, "role")
	}
	out := chatMessage{role: role.text}
	content, _ := m.member("content")
	switch content.kind {
	case stringKind:
		out.content = content.text
	case listKind:
		var parts []string
		for _, part := range content.items {
			text, _ := part.member("text")
			parts = append(parts, text.text)
		}
		out.content = strings.Join(parts, "\n")
	case nullKind:
	case boolKind, numberKind, objectKind:
		f.addError(stringType, content, "messages", index, "content")
	}
	calls, _ := m.member("tool_calls")
	for _, call := range calls.items {
		function, _ := call.member("function")
		name, _ := function.member("name")
		arguments, _ := function.member("arguments")
		out.calls = append(out.calls, calledFunction{name.text, arguments.text})
	}
	return out
}
