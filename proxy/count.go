package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"basegate/budget/admission"
	"basegate/fleet"
	"basegate/validate"
)

const (
	// tokenizeTimeout limits the requests to /tokenize for one client request, and tokenizeConcurrency how many run at a time.
	tokenizeTimeout     = 30 * time.Second
	tokenizeConcurrency = 8
	// countAfter is how long a request must run for its prompt to be counted meanwhile.
	countAfter = 500 * time.Millisecond
	// maxCounted is the most prompts, or choices, that are counted for the charge alone; more are charged by their bounds.
	maxCounted = 1024
)

var errTooMany = errors.New("more texts than are counted for a charge")

// countPrompt makes x.prompt exact by counting with the tokenizer, unless it is exact already.
func (x *exchange) countPrompt(ctx context.Context) error {
	if x.prompt.exact {
		return nil
	}
	switch {
	case x.request.Kind == validate.Pairs:
		return fleet.ErrNoOtherBackend // the model is cold, or they would have been tokenized
	case x.isChat():
		tokens, err := x.countMessages(ctx)
		if err == nil {
			x.prompt.tokens, x.prompt.exact = tokens, true
		}
		return err
	}
	var each []int64
	if _, rest := x.request.Total(); rest || x.request.Echo || x.request.Truncate != 0 {
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
	return x.memory.Grow(8 * int64(x.request.Prompts))
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
	if !x.prompt.exact && !x.prompt.final && x.request.Prompts <= maxCounted {
		ctx := x.r.Context()
		x.prompt.counter.timer = time.AfterFunc(countAfter, func() { x.countInBackground(ctx) })
	}
}

func (x *exchange) countInBackground(ctx context.Context) {
	ctx, done := x.prompt.counter.start(ctx)
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

// awaitTurn waits until the key and its account may call the tokenizer once more at this gateway, for a request that has no
// slot and is no line of a batch: each may make as many calls at a time as it has slots. The caller must call release. The error
// is admission.ErrFull, or that of the context.
func (x *exchange) awaitTurn(ctx context.Context) (release func(), err error) {
	if err := x.memory.Grow(admission.WaitingCost); err != nil {
		return nil, err
	}
	defer x.memory.Shrink(admission.WaitingCost)
	began, p := time.Now(), &x.caller.payer
	defer func() { x.timings.queued += time.Since(began) }()
	ofKey, err := x.turns.AcquireUpTo(ctx, p.Key, p.Slots)
	if err != nil {
		return nil, err
	}
	if p.AccountSlots == 0 {
		return ofKey.Release, nil
	}
	ofAccount, err := x.turns.AcquireUpTo(ctx, p.Account, p.AccountSlots)
	if err != nil {
		ofKey.Release()
		return nil, err
	}
	return func() { ofAccount.Release(); ofKey.Release() }, nil
}

// inTurn calls count, which calls the tokenizer unless the prompt has been counted, for a request that has no reservation yet.
func (x *exchange) inTurn(ctx context.Context, count func(context.Context) error) error {
	if x.prompt.exact || x.caller.line != nil {
		return count(ctx)
	}
	release, err := x.awaitTurn(ctx)
	if err != nil {
		return err
	}
	defer release()
	return count(ctx)
}

// withoutSpecial leaves out the special tokens that the tokenizer adds to a prompt.
const withoutSpecial = false

// textCounter counts the tokens of texts with the tokenizers of ready backends, several texts at a time.
type textCounter struct {
	ctx     context.Context
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

// add counts a text of at most that many bytes, which it copies, and passes the result to done, which must be safe for
// concurrent use. It returns false if no further text can be counted.
func (c *textCounter) add(bytes int, text func() string, done func(tokens int64)) bool {
	return c.query(bytes, text, func(b *fleet.Backend, text string) error {
		tokens, err := b.CountTokens(c.ctx, text, c.special)
		if err == nil {
			done(tokens)
		}
		return err
	})
}

// query is add with another request to the tokenizer.
func (c *textCounter) query(bytes int, text func() string, send func(*fleet.Backend, string) error) bool {
	held := int64(memoryPerCount + copiesPerText*bytes)
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
		return c.model.QueryReady(func(b *fleet.Backend) error { return send(b, copied) })
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

func (x *exchange) countText(ctx context.Context, text []byte) (tokens int64, err error) {
	counter := newTextCounter(ctx, x, !x.request.NoSpecialTokens)
	defer counter.stop()
	counter.add(len(text), func() string { return string(text) }, func(n int64) { tokens = n })
	return tokens, counter.wait()
}
