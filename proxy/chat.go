package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"basegate/budget/admission"
	"basegate/fleet"
	"basegate/validate"
)

// ChatPath is the path of chat completions.
const ChatPath = "/v1/chat/completions"

// chatModels returns the ids of the models that chat and that the key may use.
func (s *Server) chatModels(x *exchange) []string {
	return idsOf(slices.DeleteFunc(s.models(x), func(m *fleet.Model) bool { return !m.Chat() }))
}

func (x *exchange) isChat() bool { return x.request.Kind == validate.Messages }

// lowerDefault lowers a default max_tokens to what the context leaves beside a prompt.
func (x *exchange) lowerDefault(promptTokens int64) {
	r := x.request
	if left := x.prompt.context - promptTokens; r.HasDefaultMaxTokens() && x.prompt.context > 0 && left >= max(1, r.MinTokens) {
		r.MaxTokens = min(r.MaxTokens, left)
	}
}

// checkChatLength is checkLength for a conversation: it is bounded by its content and what the template adds, and counted by
// a backend, template included, if the bound is not known or does not fit.
func (x *exchange) checkChatLength(limits lengthLimits) error {
	ctx := x.r.Context()
	bound, known := x.chatBound(ctx)
	if x.cancelled() {
		return x.cancelErr()
	}
	x.prompt.tokens = bound
	if known && bound <= limits.prompt {
		return nil
	}
	var tokens int64
	err := x.inTurn(ctx, func(ctx context.Context) (err error) {
		tokens, err = x.countMessages(ctx)
		return err
	})
	switch {
	case err == nil:
		x.prompt.tokens, x.prompt.exact = tokens, true
		x.lowerDefault(tokens)
		return lengthLimitsOf(x.model, x.request).check(tokens, true)
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(err, fleet.ErrNoTokenizer) && !errors.Is(err, errToolsUncounted):
		x.lowerDefault(bound)
		return lengthLimitsOf(x.model, x.request).check(bound, false)
	case errors.Is(err, admission.ErrFull):
		return bufferFull(err)
	default: // the template may refuse the messages, or the tools are not counted; vLLM checks them and the context itself
		x.lowerDefault(bound)
		return nil
	}
}

const (
	// unknownTemplate is what a template is taken to add to each message while that is not known, in tokens.
	unknownTemplate = 64
	// toolGrowth is by how much a template is taken to lengthen the tools, which it may indent.
	toolGrowth = 3
)

// chatBound returns an upper bound of the tokens of a conversation, and whether it is certain to be one.
func (x *exchange) chatBound(ctx context.Context) (bound int64, known bool) {
	r := x.request
	raw := r.PromptJSON()
	bound = r.ContentBytes() + textBound(ctx, raw) - int64(len(raw)) // NFC lengthens the content alone
	roles, plain := r.MessagesOf()
	template, known := x.model.TemplateTokens(roles)
	if plain && known {
		return bound + template, true
	}
	for _, n := range roles {
		bound += unknownTemplate * int64(n)
	}
	return bound + toolGrowth*r.ToolBytes() + max(template, unknownTemplate), false
}

// sinceToolsCounted is the first version of vLLM whose /tokenize renders tools. Those before ignore them, so that the count is
// too low to reserve.
var sinceToolsCounted = validate.Version{Minor: 9}

// errToolsUncounted is the error of a backend whose /tokenize ignores the tools: the upper bound decides on caps.
var errToolsUncounted = fmt.Errorf("%w that counts tools", fleet.ErrNoTokenizer)

// countMessages counts the tokens of the conversation with the template of a ready backend.
func (x *exchange) countMessages(ctx context.Context) (tokens int64, err error) {
	body := x.request.TokenizeBody(x.model.Checkpoint())
	held := memoryPerCount + copiesPerText*body.Size()
	if err := x.memory.Grow(held); err != nil {
		return 0, err
	}
	defer x.memory.Shrink(held)
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	text := body.Append(make([]byte, 0, body.Size()))
	err = x.model.QueryReady(func(b *fleet.Backend) error {
		if x.request.ToolBytes() > 0 && b.VLLM().Before(sinceToolsCounted) {
			return errToolsUncounted
		}
		tokens, err = b.CountMessages(ctx, text)
		return err
	})
	return tokens, err
}
