package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"basegate/admission"
	"basegate/fleet"
	"basegate/stream"
	"basegate/validate"
)

const (
	// tokenizeTimeout limits the requests to /tokenize for one client request, and tokenizeConcurrency how many run at a time.
	tokenizeTimeout     = 30 * time.Second
	tokenizeConcurrency = 8
	// countAfter is how long a request must run for its prompt to be counted meanwhile.
	countAfter = 500 * time.Millisecond
	// maxCounted is the largest number of prompts, or of choices, that are counted only for the charge. More of them are
	// charged by their upper and lower bounds.
	maxCounted = 1024
)

var errTooMany = errors.New("more texts than are counted for a charge")

// prompt is the number of tokens of the prompts, and what makes it exact.
type prompt struct {
	promptCount
	counter promptCounter // counts while the request runs
}

// countPrompt makes x.prompt exact by counting with the tokenizer, unless it is exact already.
func (x *exchange) countPrompt(ctx context.Context) error {
	if x.prompt.exact {
		return nil
	}
	var each []int64
	if x.request.Echo || x.request.Truncate != 0 {
		if x.prompt.each == nil {
			if err := x.growEach(); err != nil {
				return err
			}
		}
		each = make([]int64, x.request.Prompts)
	}
	var total atomic.Int64
	counter := newTextCounter(ctx, x, !x.request.NoSpecialTokens)
	defer counter.stop()
	index := 0
	x.request.EachText(func(text []byte) bool {
		i := index
		index++
		return counter.add(len(text), func() string { return string(text) }, func(tokens int64) {
			total.Add(tokens)
			if each != nil {
				each[i] = tokens
			}
		})
	})
	if err := counter.wait(); err != nil {
		return err
	}
	if each != nil {
		x.setPrompt(each, true)
	} else {
		x.prompt.tokens, x.prompt.exact = total.Load(), true
	}
	return nil
}

// growEach counts the memory of a number for each prompt.
func (x *exchange) growEach() error {
	return x.memory.Grow(8 * int64(x.request.Prompts)) //nolint:wrapcheck // compared by the callers
}

// promptCounter counts a prompt in the background while its request runs. Most requests end before it starts, so it
// allocates no context and no channel until then.
type promptCounter struct {
	timer *time.Timer // starts the count; nil if there is nothing to count

	mu      sync.Mutex
	stopped bool
	cancel  context.CancelFunc // nil before the count starts
	done    chan struct{}      // closed when the count has ended
}

// startCounting counts the prompt of a request that runs for longer than countAfter, so that a crash charges the exact
// count and not the upper bound. Until stopCounting returns, x.prompt must not be used.
func (x *exchange) startCounting() {
	if !x.prompt.exact && x.request.Prompts <= maxCounted {
		x.prompt.counter.timer = time.AfterFunc(countAfter, x.countInBackground)
	}
}

func (x *exchange) countInBackground() {
	ctx, done := x.prompt.counter.start(x.r.Context())
	if done == nil {
		return
	}
	defer close(done)
	if x.countPrompt(ctx) == nil {
		x.reservation.SetPromptTokens(x.prompt.tokens)
	}
}

// start returns the channel to close at the end of the count, or nil if the counter has been stopped.
func (c *promptCounter) start(ctx context.Context) (context.Context, chan<- struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return ctx, nil
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.done = make(chan struct{})
	return ctx, c.done
}

// stopCounting cancels the background count and waits for it. It may be called more than once.
func (x *exchange) stopCounting() {
	c := &x.prompt.counter
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

// echoedTokens returns a function from a choice to the number of its tokens that echo the prompt: unlimited if they have
// not been counted. It returns nil for a request without echo. It must not be called while the prompt is counted.
func (x *exchange) echoedTokens() func(choice int) int64 {
	if !x.request.Echo {
		return nil
	}
	if x.prompt.each == nil && x.request.Kind == validate.Tokens && x.growEach() == nil {
		x.prompt.each = x.request.PromptLengths()
	}
	var each []int64
	if x.prompt.exact { // bounds of the prompts say nothing about their echo
		each = x.prompt.each
	}
	n, maxTokens := int(x.request.N), x.maxTokens()
	return func(choice int) int64 {
		if prompt := choice / n; prompt < len(each) {
			return x.truncated(each[prompt], maxTokens)
		}
		return unlimited
	}
}

// countCompletion counts the completion tokens in what has been received of each choice: never fewer than its events with
// text, more if an event held several tokens, and never more than was reserved.
func (x *exchange) countCompletion(ctx context.Context) (int64, error) {
	choices := x.charge.choices
	if len(choices) > maxCounted {
		return 0, errTooMany
	}
	prompts, err := x.echoedTexts()
	if err != nil {
		return 0, err
	}
	if echoed := x.echoedTokens(); echoed != nil {
		for i := range choices {
			choices[i].Echoed = echoed(choices[i].Index)
		}
	}
	tokens := make([]int64, len(choices))
	counter := newTextCounter(ctx, x, withoutSpecial)
	defer counter.stop()
	for i := range choices {
		c := &choices[i]
		tokens[i] = c.MinTokens()
		if c.Scored > 0 || c.TextBytes() == 0 {
			continue
		}
		counter.add(c.TextBytes(), func() string { return c.Text(x.echoedText(c, prompts)) }, func(n int64) {
			if x.request.Echo && prompts == nil { // the text may begin with the prompt's own tokens
				n -= c.Echoed
			}
			tokens[i] = max(tokens[i], n)
		})
	}
	if err := counter.wait(); err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range tokens {
		sum += min(n, x.reservation.MaxTokens())
	}
	return sum, nil
}

// echoedTexts returns the text prompts if the choices begin with them as the client sent them.
func (x *exchange) echoedTexts() ([]string, error) {
	r := x.request
	if !r.Echo || r.Kind != validate.Text || r.Truncate != 0 {
		return nil, nil
	}
	if r.Prompts > maxCounted {
		return nil, errTooMany
	}
	if err := x.memory.Grow(2 * r.PromptBytes()); err != nil { // the texts, and their last one without escapes
		return nil, err //nolint:wrapcheck // compared by the callers
	}
	all := make([]string, 0, r.Prompts)
	r.EachText(func(text []byte) bool {
		all = append(all, string(text))
		return true
	})
	return all, nil
}

// echoedText returns the prompt that a choice repeats, or "".
func (x *exchange) echoedText(c *stream.ChoiceUsage, prompts []string) string {
	if p := c.Index / int(x.request.N); p < len(prompts) {
		return prompts[p]
	}
	return ""
}

// withoutSpecial leaves out the special tokens that the tokenizer adds to a prompt.
const withoutSpecial = false

// textCounter counts the tokens of texts with the tokenizers of ready backends, several texts at a time.
type textCounter struct {
	ctx     context.Context //nolint:containedctx // of one count
	stop    context.CancelFunc
	model   *fleet.Model
	memory  *admission.Allocation
	special bool
	group   *errgroup.Group
	failed  error // why a text could not be added
}

// newTextCounter returns a textCounter of a request, whose memory it counts. The caller must call wait and stop.
func newTextCounter(ctx context.Context, x *exchange, special bool) *textCounter {
	ctx, stop := context.WithTimeout(ctx, tokenizeTimeout)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tokenizeConcurrency)
	return &textCounter{ctx: ctx, stop: stop, model: x.model, memory: &x.memory, special: special, group: group}
}

const (
	// Counting a text takes a few copies of it: unescaped, as a string, as JSON, and its tokens in the response.
	copiesPerText = 6
	// memoryPerCount is what a request to /tokenize takes besides, in bytes.
	memoryPerCount = 4 << 10
)

// add counts a text of at most that many bytes and passes the result to done, which must be safe for concurrent use. It
// returns false if no further text can be counted.
func (c *textCounter) add(bytes int, text func() string, done func(tokens int64)) bool {
	held := memoryPerCount + copiesPerText*int64(bytes)
	switch {
	case c.failed != nil:
		return false
	case c.ctx.Err() != nil:
		c.failed = context.Cause(c.ctx)
		return false
	}
	if c.failed = c.memory.Grow(held); c.failed != nil {
		return false
	}
	copied := text()
	c.group.Go(func() error {
		defer c.memory.Shrink(held)
		tokens, err := c.count(copied)
		if err == nil {
			done(tokens)
		}
		return err
	})
	return true
}

// wait waits until all texts have been counted. Its error is admission.ErrFull, that of the context, or a backend's.
func (c *textCounter) wait() error {
	err := c.group.Wait()
	if err == nil {
		err = c.failed
	}
	if err != nil {
		return fmt.Errorf("count tokens: %w", err)
	}
	return nil
}

func (c *textCounter) count(text string) (tokens int64, err error) {
	err = c.model.QueryReady(func(b *fleet.Backend) error {
		tokens, err = b.CountTokens(c.ctx, text, c.special)
		return err
	})
	return tokens, err
}

// countText counts the tokens of one text.
func (x *exchange) countText(ctx context.Context, text []byte) (tokens int64, err error) {
	counter := newTextCounter(ctx, x, !x.request.NoSpecialTokens)
	defer counter.stop()
	counter.add(len(text), func() string { return string(text) }, func(n int64) { tokens = n })
	return tokens, counter.wait()
}
