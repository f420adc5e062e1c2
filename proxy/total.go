package proxy

import (
	"errors"
	"slices"

	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// askedOutput returns the tokens that a prompt must leave room for, and the client's name of the field that asks for them: ""
// for a request whose max_tokens is what its prompt leaves.
func askedOutput(r *validate.Request) (tokens int64, field string) {
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

// setRest sets the max_tokens of a request that limits prompt and output together: to what the longest prompt leaves of the
// total, or of the context if the client sent none. The prompts are counted exactly, unless no backend has a tokenizer.
func (x *exchange) setRest() error {
	r := x.request
	total, hasTotal := r.Total()
	if !hasTotal {
		return nil
	}
	if err := x.checkTotal(); err != nil {
		return err
	}
	err := x.countPrompt(x.r.Context())
	switch {
	case err == nil, errors.Is(err, fleet.ErrNoTokenizer):
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(err, admission.ErrFull):
		return bufferFull(err)
	default:
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
