package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"basegate/fleet"
	"basegate/validate"
)

const (
	// tokenizeTimeout limits the requests to /tokenize for one client request, and tokenizeConcurrency how many run at a time.
	tokenizeTimeout     = 30 * time.Second
	tokenizeConcurrency = 8
	// countAfter is how long a request must run for its prompt to be counted meanwhile.
	countAfter = 500 * time.Millisecond
)

// countPrompt makes x.prompt exact by counting with the tokenizer, unless it is exact already.
func (x *exchange) countPrompt(ctx context.Context) error {
	if x.prompt.exact {
		return nil
	}
	each, err := countTexts(ctx, x.model, x.texts(), !x.request.NoSpecialTokens)
	if err != nil {
		return err
	}
	x.setPrompt(each, true)
	return nil
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
	if !x.prompt.exact {
		x.counter.timer = time.AfterFunc(countAfter, x.countInBackground)
	}
}

func (x *exchange) countInBackground() {
	ctx, done := x.counter.start(x.r.Context())
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
	c := &x.counter
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

// texts returns the text prompts.
func (x *exchange) texts() []string {
	var all []string
	x.request.EachText(func(text []byte) bool {
		all = append(all, string(text))
		return true
	})
	return all
}

// echoedTokens returns a function from a choice to the number of its tokens that echo the prompt: unlimited if they have
// not been counted. It returns nil for a request without echo. It must not be called while the prompt is counted.
func (x *exchange) echoedTokens() func(choice int) int64 {
	if !x.request.Echo {
		return nil
	}
	each, n, maxTokens := x.request.PromptLengths(), int(x.request.N), x.maxTokens()
	if x.request.Kind == validate.Text && x.prompt.exact {
		each = x.prompt.each
	}
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
	r, choices := x.request, x.charge.choices
	var prompts []string
	wholeEcho := r.Kind == validate.Text && r.Truncate == 0 // the echo begins with the prompt as the client sent it
	if r.Echo && wholeEcho {
		prompts = x.texts()
	}
	if echoed := x.echoedTokens(); echoed != nil {
		for i := range choices {
			choices[i].Echoed = echoed(i)
		}
	}
	tokens := make([]int64, len(choices))
	var texts []string
	var indexes []int // of the choices that texts belong to
	for i := range choices {
		c := &choices[i]
		tokens[i] = c.MinTokens()
		if c.Scored > 0 || !c.HasText() {
			continue
		}
		prompt := ""
		if p := i / int(r.N); p < len(prompts) {
			prompt = prompts[p]
		}
		texts, indexes = append(texts, c.Text(prompt)), append(indexes, i)
	}
	counts, err := countTexts(ctx, x.model, texts, withoutSpecial)
	if err != nil {
		return 0, err
	}
	for j, i := range indexes {
		n := counts[j]
		if r.Echo && !wholeEcho {
			n -= choices[i].Echoed
		}
		tokens[i] = max(tokens[i], n)
	}
	var sum int64
	for _, n := range tokens {
		sum += min(n, x.reservation.MaxTokens())
	}
	return sum, nil
}

// withoutSpecial leaves out the special tokens that the tokenizer adds to a prompt.
const withoutSpecial = false

// countTexts returns the number of tokens of each text, from the tokenizers of ready backends. It counts several texts
// at a time.
func countTexts(ctx context.Context, m *fleet.Model, texts []string, special bool) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	counts := make([]int64, len(texts))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tokenizeConcurrency)
	for i, text := range texts {
		group.Go(func() (err error) {
			counts[i], err = countText(ctx, m, text, special)
			return err
		})
	}
	if err := group.Wait(); err != nil {
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
