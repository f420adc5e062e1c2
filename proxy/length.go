package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// prompt is what is known about the number of tokens of the prompts.
type prompt struct {
	tokens int64   // of all prompts, as truncated: the exact number, or an upper bound
	exact  bool    // whether tokens and each are exact
	final  bool    // no backend has a tokenizer, so an upper bound is taken for the exact number
	each   []int64 // of each prompt before truncation; nil unless prompts are truncated or have been counted

	context int64 // of the model, when the prompts were first counted; 0 if it is not known
	largest int64 // context of a backend, then: one that truncates to it is charged for more than fits the model's

	counter promptCounter // counts while the request runs
}

func (x *exchange) setContext() {
	x.prompt.context, x.prompt.largest = x.model.MaxModelLen(), x.model.LargestMaxModelLen()
}

// maxTokens returns the max_tokens that applies: after the reservation, the one that it allows.
func (x *exchange) maxTokens() int64 {
	if x.reservation != nil {
		return x.reservation.MaxTokens()
	}
	return x.request.MaxTokens
}

// truncated returns what truncate_prompt_tokens leaves of a prompt in the model's context, or of one to be scored at any
// backend, which the limit of such prompts protects.
func (x *exchange) truncated(tokens, maxTokens int64) int64 {
	context := x.prompt.context
	if x.request.Scored() && x.model.MaxScoredPromptTokens() > 0 {
		context = x.prompt.largest
	}
	return x.truncatedIn(context, tokens, maxTokens)
}

// servedContext returns the context of the backend that has served the request, or the largest if that is not known.
func (x *exchange) servedContext() int64 {
	if b := x.attempts.backend; b != nil && b.MaxModelLen() > 0 {
		return b.MaxModelLen()
	}
	return x.prompt.largest
}

func (x *exchange) truncatedIn(context, tokens, maxTokens int64) int64 {
	switch limit := x.request.Truncate; {
	case limit == 0:
		return tokens
	case limit != validate.TruncateToFit:
		return min(tokens, limit)
	case context > 0:
		return min(tokens, max(context-maxTokens, 0))
	default:
		return tokens
	}
}

// promptTokens returns the tokens of all prompts, as truncated in a context beside a max_tokens.
func (x *exchange) promptTokens(context, maxTokens int64) int64 {
	var sum int64
	for _, n := range x.prompt.each {
		sum += x.truncatedIn(context, n, maxTokens)
	}
	return sum
}

// servedPrompt returns the tokens of all prompts at the backend that has served the request.
func (x *exchange) servedPrompt() int64 {
	if x.request.Truncate != validate.TruncateToFit || x.prompt.each == nil {
		return x.prompt.tokens
	}
	return x.promptTokens(x.servedContext(), x.maxTokens())
}

func (x *exchange) setPrompt(each []int64, exact bool) {
	x.prompt.exact, x.prompt.each = exact, each
	x.prompt.tokens = x.promptTokens(x.prompt.largest, x.maxTokens())
}

// checkKnownLength refuses a request whose length is wrong whatever the tokenizer says: for the context, if it is known, and
// for the limit of prompts to be scored. Of text, nothing is known.
func (x *exchange) checkKnownLength() error {
	r := x.request
	x.setContext()
	x.lowerDefault(1)
	if err := x.checkTotal(); err != nil {
		return err
	}
	limits := lengthLimitsOf(x.model, r)
	if err := x.checkPairs(); err != nil || r.Kind == validate.Pairs {
		return err
	}
	switch {
	case x.prompt.context == 0 && r.Truncate == validate.TruncateToFit:
		return nil
	case x.prompt.context > 0 && r.MaxTokens >= x.prompt.context:
		return apierr.MaxTokensTooLarge(limits.field, max(r.LongestPrompt, 1), limits.maxTokens, x.prompt.context)
	default:
		return limits.check(x.truncated(r.LongestPrompt, r.MaxTokens), true)
	}
}

// checkLength refuses a prompt that does not fit the model. Token ids are counted; text is bounded by its bytes, and
// counted by a backend's tokenizer only if the bound does not fit, so that no refusal rests on the bound, unless no
// backend has a tokenizer.
func (x *exchange) checkLength() error {
	r := x.request
	limits := lengthLimitsOf(x.model, r)
	x.setContext()
	if x.isChat() {
		return x.checkChatLength(limits)
	}
	if r.Kind == validate.Pairs {
		x.boundPairs()
		return nil
	}
	if r.Kind == validate.Tokens {
		x.prompt.tokens, x.prompt.exact = r.PromptTokens, true
		if r.Truncate != 0 {
			if err := x.growEach(); err != nil {
				return bufferFull(err)
			}
			x.setPrompt(r.PromptLengths(), true)
		}
		return limits.check(x.truncated(r.LongestPrompt, r.MaxTokens), true)
	}
	if bytes := int64(len(r.PromptJSON())); bytes > maxUncounted { // EachText copies a text that has escapes
		if err := x.memory.Grow(bytes); err != nil {
			return bufferFull(err)
		}
		defer x.memory.Shrink(bytes)
	}
	_, perPrompt := r.Total()
	if perPrompt = perPrompt || r.Truncate != 0; perPrompt {
		if err := x.growEach(); err != nil {
			return bufferFull(err)
		}
	}
	ctx, special := x.r.Context(), x.model.SpecialTokens()
	var refused error
	var sum int64
	var each, counted []int64
	r.EachText(func(text []byte) bool {
		tokens := textBound(ctx, text) + special
		if x.truncated(tokens, r.MaxTokens) > limits.prompt {
			var exact bool
			if tokens, exact, refused = x.countLong(ctx, text, tokens, &limits); exact {
				counted = append(counted, tokens)
			}
		}
		sum += tokens
		if perPrompt {
			each = append(each, tokens)
		}
		return refused == nil && ctx.Err() == nil
	})
	if x.cancelled() {
		return x.cancelErr()
	}
	switch {
	case len(counted) == r.Prompts:
		x.setPrompt(counted, true)
	case perPrompt:
		x.setPrompt(each, false)
	default:
		x.prompt.tokens = sum
	}
	return refused
}

// maxUncounted is the largest prompt whose copy without escapes is not counted, in bytes.
const maxUncounted = 64 << 10

// countLong counts a text whose bound does not fit, and checks its length. If it cannot be counted, it returns the bound,
// which decides only if no backend has a tokenizer.
func (x *exchange) countLong(ctx context.Context, text []byte, bound int64, limits *lengthLimits) (tokens int64, exact bool, refused error) {
	err := x.inTurn(ctx, func(ctx context.Context) (err error) {
		tokens, err = x.countText(ctx, text)
		return err
	})
	switch {
	case err == nil:
		return tokens, true, limits.check(x.truncated(tokens, x.request.MaxTokens), true)
	case errors.Is(err, fleet.ErrNoTokenizer):
		return bound, false, limits.check(x.truncated(bound, x.request.MaxTokens), false)
	case errors.Is(err, admission.ErrFull), limits.scored > 0 && x.truncated(bound, x.request.MaxTokens) > limits.scored: // vLLM does not know this limit; it checks the context itself
		return bound, false, x.uncountable(err)
	default:
		return bound, false, nil
	}
}

// uncountable returns the error of a request that depends on the prompt's length, and could not be counted. If the template
// refuses its messages, it is the one that the chat completion would get.
func (x *exchange) uncountable(cause error) error {
	switch {
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(cause, admission.ErrFull):
		return bufferFull(cause)
	}
	if refused, ok := errors.AsType[*fleet.RefusedError](cause); ok && x.isChat() {
		return x.outcomeErr(refused.Outcome)
	}
	return apierr.Unreachable(fmt.Sprintf("the tokenizer of %s did not answer, and without the prompt's length the request cannot be judged", x.model.ID()), 1, cause)
}

// lengthLimits are a model's limits for one prompt of a request, in tokens.
type lengthLimits struct {
	prompt    int64  // the longest prompt that fits every limit
	context   int64  // 0: not known
	scored    int64  // 0: no limit
	maxTokens int64  // that the prompt must leave room for
	field     string // the client's name of the field that asks for them; empty if max_tokens is what the prompt leaves
	subject   string // the field that holds the prompt
}

// unlimited is larger than any number of tokens.
const unlimited = 1 << 62

func lengthLimitsOf(m *fleet.Model, r *validate.Request) lengthLimits {
	limits := lengthLimits{prompt: unlimited, context: m.MaxModelLen(), subject: r.Subject()}
	limits.maxTokens, limits.field = requestedOutput(r)
	if limits.context > 0 {
		limits.prompt = limits.context - min(r.MaxTokens, limits.context)
	}
	if r.Scored() && m.MaxScoredPromptTokens() > 0 {
		limits.scored = m.MaxScoredPromptTokens()
		limits.prompt = min(limits.prompt, limits.scored)
	}
	return limits
}

// check refuses a prompt of that many tokens, or of up to that many if they are not exact, if it does not fit.
func (l lengthLimits) check(tokens int64, exact bool) error {
	if l.context > 0 && tokens+min(l.maxTokens, unlimited) > l.context {
		return apierr.ContextTooLong(l.subject, l.field, tokens, l.maxTokens, l.context, exact)
	}
	if l.scored == 0 || tokens <= l.scored {
		return nil
	}
	number := fmt.Sprint(tokens, " tokens")
	if !exact {
		number = fmt.Sprintf("up to %d tokens (%s)", tokens, apierr.ByBytes)
	}
	what := "to be scored (prompt_logprobs, or echo with logprobs)"
	if l.subject != "prompt" {
		what = "to be scored, its context and the continuation together"
	}
	return apierr.InvalidField(l.subject, fmt.Sprintf(
		"%s: got %s %s; expected at most %d, since scoring a longer one can exhaust the GPU", l.subject, number, what, l.scored))
}

// textBound returns an upper bound of the tokens of a text, without the special tokens that a tokenizer adds: one for each
// byte, of the text as it is or in NFC, whichever is longer. Some tokenizers normalise to NFC, which can lengthen a text;
// others keep decomposed characters, which NFC would shorten. If ctx ends first, the result is meaningless.
func textBound(ctx context.Context, text []byte) int64 {
	if isASCII(text) {
		return int64(len(text))
	}
	return int64(max(len(text), lengthNFC(ctx, text)))
}

// lengthNFC returns the length of a text in NFC, without holding it in memory. It stops when ctx ends: 16 MiB take seconds.
func lengthNFC(ctx context.Context, text []byte) int {
	var piece [4 << 10]byte
	length := norm.NFC.QuickSpan(text)
	for text = text[length:]; len(text) > 0 && ctx.Err() == nil; {
		written, read, _ := norm.NFC.Transform(piece[:], text, true) // the only error is a full piece
		length, text = length+written, text[read:]
	}
	return length
}

// isASCII tests eight bytes at a time. ASCII is invariant under every tokenizer's normalisation.
func isASCII(text []byte) bool {
	for ; len(text) >= 8; text = text[8:] {
		if binary.LittleEndian.Uint64(text)&0x8080808080808080 != 0 {
			return false
		}
	}
	for _, c := range text {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// requestedOutput returns the tokens that a prompt must leave room for, and the client's name of the field that asks for them: ""
// for a request whose max_tokens is what its prompt leaves.
func requestedOutput(r *validate.Request) (tokens int64, field string) {
	switch {
	case !r.HasDefaultMaxTokens():
		return r.MaxTokens, r.MaxTokensName()
	case r.MinTokens > 1:
		return r.MinTokens, "min_tokens"
	default:
		return r.MaxTokens, ""
	}
}

// totalName is the name of the total of prompt and output in the one form that has it.
const totalName = "max_tokens"

// checkTotal refuses a total of prompt and output that is larger than the context, if that is known.
func (x *exchange) checkTotal() error {
	if total, _ := x.request.Total(); x.prompt.context > 0 && total > x.prompt.context {
		return apierr.TotalTooLarge(totalName, total, x.prompt.context)
	}
	return nil
}

// resolveMaxTokens sets the max_tokens of a request that limits prompt and output together: to what the longest prompt leaves of the
// total, or of the context if the client sent none. The prompts are counted exactly, unless no backend has a tokenizer.
func (x *exchange) resolveMaxTokens() error {
	r := x.request
	total, hasTotal := r.Total()
	if !hasTotal {
		return nil
	}
	if err := x.checkTotal(); err != nil {
		return err
	}
	if err := x.inTurn(x.r.Context(), x.countPrompt); err != nil && !errors.Is(err, fleet.ErrNoTokenizer) {
		return x.uncountable(err)
	}
	longest := slices.Max(x.prompt.each)
	switch {
	case total > 0 && longest >= total:
		return apierr.TotalTooSmall(totalName, longest, total, x.prompt.exact)
	case total > 0:
		r.MaxTokens = total - longest
	case x.prompt.context > 0: // checkLength has found that the prompt fits
		r.MaxTokens = x.prompt.context - longest
	default:
		r.MaxTokens = validate.DefaultChatMaxTokens
	}
	return nil
}
