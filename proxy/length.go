package proxy

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/text/unicode/norm"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

const (
	// specialTokens bounds what a tokenizer adds to a text: a token for the beginning, one for a prefix space, and
	// some in reserve. Everything else of a text is at most one token a byte, once it is in NFC.
	specialTokens = 4
	// nfcGrowth is how many times longer NFC can make a text; the Unicode standard promises no more.
	nfcGrowth = 3
	// tokenizeTimeout bounds the question to /tokenize.
	tokenizeTimeout = 30 * time.Second
)

// judgeLength refuses a prompt that does not fit the model. Token ids are counted, text is bounded by its bytes, and
// only where the bound does not fit is a backend's tokenizer asked: no refusal rests on the bound.
func (x *exchange) judgeLength() error {
	r := x.request
	room := roomOf(x.model, r)
	if r.Kind == validate.Tokens {
		return room.judge(r.LongestPrompt())
	}
	if r.PromptBytes()*nfcGrowth+specialTokens <= room.most {
		return nil
	}
	var refused error
	r.EachText(func(text []byte) bool {
		if textBound(text) <= room.most {
			return true
		}
		tokens, err := countTokens(x.r.Context(), x.model, text)
		if err != nil {
			return true // vLLM will judge
		}
		refused = room.judge(tokens)
		return refused == nil
	})
	if x.over() {
		return x.ending()
	}
	return refused
}

// room is what a model has for one prompt, in tokens.
type room struct {
	most      int64 // the longest prompt that fits every limit
	context   int64 // 0: not known
	scored    int64 // 0: no limit
	maxTokens int64
}

const unlimited = 1 << 62

func roomOf(m *fleet.Model, r *validate.Request) room {
	out := room{most: unlimited, context: m.MaxModelLen(), maxTokens: r.MaxTokens}
	if out.context > 0 {
		out.most = out.context - min(r.MaxTokens, out.context)
	}
	if r.Scored() && m.MaxScoredPromptTokens() > 0 {
		out.scored = m.MaxScoredPromptTokens()
		out.most = min(out.most, out.scored)
	}
	return out
}

// judge refuses a prompt of so many tokens where it does not fit.
func (r room) judge(tokens int64) error {
	switch {
	case r.context > 0 && tokens+min(r.maxTokens, unlimited) > r.context:
		return apierr.ContextTooLong(tokens, r.maxTokens, r.context)
	case r.scored > 0 && tokens > r.scored:
		return apierr.InvalidField("prompt", fmt.Sprintf(
			"prompt: got %d tokens to be scored (prompt_logprobs, or echo with logprobs); expected at most %d, since scoring a longer one can exhaust the GPU",
			tokens, r.scored))
	default:
		return nil
	}
}

// textBound is a number of tokens that a text cannot exceed.
func textBound(text []byte) int64 {
	if norm.NFC.QuickSpan(text) == len(text) {
		return int64(len(text)) + specialTokens
	}
	return int64(len(norm.NFC.Bytes(text))) + specialTokens
}

// countTokens asks a ready backend's tokenizer.
func countTokens(ctx context.Context, m *fleet.Model, text []byte) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	err := fleet.ErrNoOther
	for _, b := range m.Backends() {
		if state, _ := b.State(); state != fleet.Ready {
			continue
		}
		var tokens int64
		if tokens, err = b.Tokenize(ctx, m.Checkpoint(), string(text)); err == nil {
			return tokens, nil
		}
	}
	return 0, err
}
