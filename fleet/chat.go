package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"basegate/validate"
)

// template is what a model's chat template adds to the content of messages.
type template struct {
	known   bool // it has been measured
	missing bool // the backend has none
	// tokens of an empty message of each role, with everything around a conversation; 0 if the template refuses a
	// conversation of that message alone.
	tokens [validate.Roles]int64
}

// margin is added to the measured tokens of each message: beside a text, the template's own text may be split into more
// tokens than beside nothing.
const margin = 4

// measuredRoles are the roles whose messages are measured. A message of a tool needs a call before it, and such conversations
// are always counted.
var measuredRoles = []validate.Role{validate.System, validate.Developer, validate.User, validate.Assistant}

// measureTemplate counts the tokens of an empty message of each role. A backend that has no /tokenize, or no template, leaves
// it unknown.
func (b *Backend) measureTemplate(ctx context.Context) template {
	t := template{}
	for _, role := range measuredRoles {
		body := fmt.Appendf(nil, `{"model":%q,"messages":[{"role":%q,"content":""}]}`, b.checkpoint, role)
		switch tokens, err := b.CountMessages(ctx, body); {
		case err == nil:
			t.known, t.tokens[role] = true, tokens
		case errors.Is(err, ErrNoTemplate):
			return template{missing: true}
		}
	}
	return t
}

const templateAdvice = "start vLLM with --chat-template, or with a checkpoint that has one"

// logTemplate logs that a backend of a model that chats has no template, or has one again.
func (b *Backend) logTemplate(before, now template) {
	switch {
	case now.missing && !before.missing:
		b.log.Error("the backend has no chat template, but the model has chat: true: "+templateAdvice, zap.String("checkpoint", b.checkpoint))
	case before.missing && now.known:
		b.log.Info("the backend has a chat template again")
	}
}

// LacksTemplate reports whether the backend of a model that chats had no chat template when it was last probed.
func (b *Backend) LacksTemplate() bool { return b.info.Load().template.missing }

// ChatFindings returns what is wrong with the chat template of a ready backend.
func (b *Backend) ChatFindings() []Finding {
	if !b.LacksTemplate() {
		return nil
	}
	return []Finding{{true, "has no chat template, but the model has chat: true, so its chat completions are refused: " + templateAdvice}}
}

// CountMessages returns the number of tokens of a conversation, as the body of a request to /tokenize holds it. The error is
// ErrNoTokenizer if the backend does not have the endpoint, and a RefusedError if the template refuses the messages.
func (b *Backend) CountMessages(ctx context.Context, body []byte) (int64, error) {
	return countOf(b.postBody(ctx, "/tokenize", body, maxResponseBody))
}

// Chat reports whether the model serves chat completions: it is configured to, and not all its backends lack a template.
func (m *Model) Chat() bool {
	return m.config.Chat && slices.ContainsFunc(m.backends, func(b *Backend) bool { return !b.LacksTemplate() })
}

// Completions reports whether the model serves completions.
func (m *Model) Completions() bool { return m.config.Completions || !m.config.Chat }

// ChatDefaultMaxTokens returns the max_tokens of a chat completion without one.
func (m *Model) ChatDefaultMaxTokens() int64 {
	if m.config.ChatDefaultMaxTokens > 0 {
		return m.config.ChatDefaultMaxTokens
	}
	return validate.DefaultChatMaxTokens
}

// TemplateTokens returns an upper bound of what the model's template adds to messages of these roles, and false if it is
// not known of every backend.
func (m *Model) TemplateTokens(roles [validate.Roles]int) (tokens int64, known bool) {
	for _, b := range m.backends {
		t := &b.info.Load().template
		sum := int64(0)
		for role, n := range roles {
			if n > 0 && t.tokens[role] == 0 {
				return 0, false
			}
			sum += int64(n) * (t.tokens[role] + margin)
		}
		tokens = max(tokens, sum)
	}
	return tokens, true
}
