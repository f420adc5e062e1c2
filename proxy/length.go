package proxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"golang.org/x/text/unicode/norm"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

const (
	// tokenizeTimeout bounds the questions to /tokenize about one request, and tokenizeAtOnce how many are put at a time.
	tokenizeTimeout = 30 * time.Second
	tokenizeAtOnce  = 8
)

// promptCount is what is known of how many tokens the prompts take.
type promptCount struct {
	tokens int64   // of all of them: the count, or a bound that the count does not pass
	exact  bool    // whether it is the count
	each   []int64 // of each text, once they have been counted
}

// judgeLength refuses a prompt that does not fit the model. Token ids are counted, text is bounded by its bytes, and
// only where the bound does not fit is a backend's tokenizer asked: no refusal rests on the bound.
func (x *exchange) judgeLength() error {
	r := x.request
	room := roomOf(x.model, r)
	if r.Kind == validate.Tokens {
		x.prompt = promptCount{tokens: r.PromptTokens, exact: true}
		return room.judge(r.LongestPrompt())
	}
	var refused error
	var counted []int64
	r.EachText(func(text []byte) bool {
		tokens := textBound(text) + x.model.SpecialTokens()
		if tokens > room.most {
			counts, err := countTexts(x.r.Context(), x.model, []string{string(text)}, withSpecial)
			switch {
			case err == nil:
				tokens, counted = counts[0], append(counted, counts[0])
				refused = room.judge(tokens)
			case room.scored > 0 && tokens > room.scored: // vLLM does not know of this limit; of the context it will judge
				refused = x.uncounted(err)
			}
		}
		x.prompt.tokens += tokens
		return refused == nil
	})
	if x.over() {
		return x.ending()
	}
	if len(counted) == r.Prompts {
		x.prompt.exact, x.prompt.each = true, counted
	}
	return refused
}

// uncounted is the refusal where the prompt's length decides and the tokenizer does not answer.
func (x *exchange) uncounted(cause error) error {
	return apierr.Unreachable(fmt.Sprintf("the tokenizer of %s did not answer, and without the prompt's length the request cannot be judged", x.model.ID()), 1, cause)
}

// countPrompts has the tokenizer count what is only bounded.
func (x *exchange) countPrompts(ctx context.Context) error {
	if x.prompt.exact {
		return nil
	}
	each, err := countTexts(ctx, x.model, x.texts(), withSpecial)
	if err != nil {
		return err
	}
	x.prompt = promptCount{exact: true, each: each}
	for _, n := range each {
		x.prompt.tokens += n
	}
	return nil
}

// countLater is how long a request must last for its prompt to be counted while it runs.
const countLater = 500 * time.Millisecond

// counting is a prompt's being counted while its request runs. Most requests are over before it begins, so that it takes
// no context and no channel until then.
type counting struct {
	timer *time.Timer // begins it; nil where nothing is to be counted

	mu      sync.Mutex
	stopped bool
	cancel  context.CancelFunc // nil before it has begun
	done    chan struct{}      // closed when it has ended
}

// countMeanwhile has the prompt of a request that lasts counted, so that a crash charges what it takes and not its
// bound. Only behind stopCounting is x.prompt the caller's again.
func (x *exchange) countMeanwhile() {
	if !x.prompt.exact {
		x.counting.timer = time.AfterFunc(countLater, x.countNow)
	}
}

func (x *exchange) countNow() {
	ctx, done := x.counting.begin(x.r.Context())
	if done == nil {
		return
	}
	defer close(done)
	if x.countPrompts(ctx) == nil {
		x.reservation.SetPromptTokens(x.prompt.tokens)
	}
}

// begin returns what to close in the end, or nil where it has been stopped already.
func (c *counting) begin(ctx context.Context) (context.Context, chan<- struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return ctx, nil
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.done = make(chan struct{})
	return ctx, c.done
}

// stopCounting ends what countMeanwhile began, and may be called again.
func (x *exchange) stopCounting() {
	c := &x.counting
	if c.timer == nil || c.timer.Stop() {
		return
	}
	c.mu.Lock()
	c.stopped = true
	cancel, done := c.cancel, c.done
	c.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// texts are the text prompts.
func (x *exchange) texts() []string {
	var all []string
	x.request.EachText(func(text []byte) bool {
		all = append(all, string(text))
		return true
	})
	return all
}

// echoes tells of each choice how many of its tokens are the prompt's: unlimited where nobody has counted them. It is nil
// without an echo. While the prompt is being counted it is not to be called.
func (x *exchange) echoes() func(choice int) int64 {
	if !x.request.Echo {
		return nil
	}
	each, n := x.prompt.each, int(x.request.N)
	if each == nil {
		each = x.request.PromptLengths()
	}
	return func(choice int) int64 {
		if prompt := choice / n; prompt < len(each) {
			return each[prompt]
		}
		return unlimited
	}
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

// textBound is a number of tokens that a text cannot exceed, less what a tokenizer adds to every prompt: one a byte, as it
// stands or in NFC. Some tokenizers bring a text into that form, which can make it longer; others leave decomposed text
// as it is, which NFC would make shorter.
func textBound(text []byte) int64 {
	if isASCII(text) || norm.NFC.QuickSpan(text) == len(text) {
		return int64(len(text))
	}
	return int64(max(len(text), len(norm.NFC.Bytes(text))))
}

// isASCII tells what every tokenizer's normalisation leaves alone, eight bytes at a time.
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

// Whether the special tokens that the tokenizer adds to a prompt count.
const (
	withSpecial    = true
	withoutSpecial = false
)

// countTexts asks the tokenizer of a ready backend, some texts at a time.
func countTexts(ctx context.Context, m *fleet.Model, texts []string, special bool) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	counts := make([]int64, len(texts))
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(tokenizeAtOnce)
	for i, text := range texts {
		asking.Go(func() (err error) {
			counts[i], err = countText(ctx, m, text, special)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, fmt.Errorf("count tokens: %w", err)
	}
	return counts, nil
}

func countText(ctx context.Context, m *fleet.Model, text string, special bool) (tokens int64, err error) {
	err = m.QueryReady(func(b *fleet.Backend) error {
		tokens, err = b.CountTokens(ctx, text, special)
		return err
	})
	return tokens, err
}
