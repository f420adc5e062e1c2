package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"basegate/budget"
	"basegate/usage"
)

// Reservation is a request's share of its caps, and its slot, until it ends. It is ended by Settle, or else by Release; the
// first call counts and later calls have no effect. It is safe for concurrent use.
type Reservation struct {
	lane         *lane
	id           string
	account, key string
	input        int64 // reserved tokens of the prompt
	output       int64 // reserved tokens of all candidates
	maxTokens    int64
	clamped      bool
	admitted     time.Time

	prompt, completion atomic.Int64 // tokens, the latest known; prompt may be promptUnknown
	backend            atomic.Pointer[string]

	// Guarded by the lane's lock.
	written   time.Time  // when the latest checkpoint was submitted; zero before the first
	submitted checkpoint // the latest checkpoint
	writing   *operation // the checkpoint that is not done yet, or nil
	durable   int64      // tokens of the latest checkpoint that is in the database

	once   sync.Once
	ending *operation // set by once
}

// promptUnknown is the number of prompt tokens before SetPromptTokens.
const promptUnknown = -1

// addOpen returns the Reservation of a request that was admitted.
func (l *lane) addOpen(o *operation, d *Demand, got decision) *Reservation {
	r := &Reservation{
		lane: l, id: o.admit.ID, account: o.account, key: o.key, input: got.Prompt, output: product(d.Candidates, got.Max),
		maxTokens: got.Max, clamped: got.Max < d.MaxTokens, admitted: time.Now(),
	}
	r.prompt.Store(promptUnknown)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[r] = struct{}{}
	return r
}

// MaxTokens returns how many tokens each candidate may have.
func (r *Reservation) MaxTokens() int64 { return r.maxTokens }

// Clamped reports whether MaxTokens is lower than demanded.
func (r *Reservation) Clamped() bool { return r.clamped }

// WriteError returns ErrUnavailable, ErrFenced or ErrClosed if the settlement could not be written at present. A stream
// that begins then might not be charged.
func (r *Reservation) WriteError() error {
	r.lane.mu.Lock()
	failed := r.lane.failed
	r.lane.mu.Unlock()
	if failed != nil {
		return failed
	}
	return r.lane.unavailable()
}

// SetPromptTokens records the exact number of prompt tokens when it becomes known.
func (r *Reservation) SetPromptTokens(tokens int64) { r.prompt.Store(max(tokens, 0)) }

// SetProgress records how many completion tokens have been sent to the client. It is cheap enough for every event of a
// stream. If the gateway dies, the request is charged the numbers of the last checkpoint, about a second old, and nothing
// if it ran for less than a second.
func (r *Reservation) SetProgress(completion int64) { r.completion.Store(max(completion, 0)) }

// SetBackend records which backend the request is sent to.
func (r *Reservation) SetBackend(backend string) { r.backend.Store(&backend) }

// progress returns what a checkpoint records. While the prompt's tokens are unknown, they are those reserved.
func (r *Reservation) progress() checkpoint {
	c := checkpoint{ID: r.id, Prompt: r.prompt.Load(), Completion: r.completion.Load()}
	if c.Prompt == promptUnknown {
		c.Prompt = r.input
	}
	if backend := r.backend.Load(); backend != nil {
		c.Backend = escape(*backend)
	}
	return c
}

// Settle ends the reservation: it charges the outcome and waits until that is committed. The last byte of the response may
// be sent when Settle has returned nil.
//
// If Settle returns an error, the client must not receive a complete response. After ErrUnavailable or the end of ctx, the
// settlement is sent when the database is available again: with the outcome's Fallback, unless it has been sent before and
// may have been executed. After ErrFenced, nothing is charged but the last checkpoint.
func (r *Reservation) Settle(ctx context.Context, o budget.Outcome) error {
	r.end(usage.Settled, &o)
	limit := time.NewTimer(r.lane.ledger.settings.CutOff)
	defer limit.Stop()
	var err error
	select {
	case got := <-r.ending.done:
		r.ending.done <- got // for a second call
		err = got.err
	case <-ctx.Done():
		r.lane.replace(r.ending, r.id, o.Fallback)
		err = context.Cause(ctx)
	case <-limit.C:
		r.lane.replace(r.ending, r.id, o.Fallback)
		err = ErrUnavailable
	}
	if errors.Is(err, ErrFenced) {
		r.lane.countUncharged(r)
	}
	if err != nil {
		return fmt.Errorf("settle the request: %w", err)
	}
	return nil
}

// replace charges another outcome, if the settlement has not been sent.
func (l *lane) replace(ending *operation, id string, fallback *budget.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fallback != nil && !ending.sent {
		settle := newSettlement(id, usage.Settled, fallback)
		if settle.Backend == "" {
			settle.Backend = ending.settle.Backend
		}
		ending.settle = settle
	}
}

// countUncharged counts, once, the tokens that were sent to the client and are not charged since the epoch has ended.
func (l *lane) countUncharged(r *Reservation) {
	p := r.progress()
	l.mu.Lock()
	defer l.mu.Unlock()
	if tokens := p.Completion; tokens > 0 || r.prompt.Load() != promptUnknown {
		l.ledger.stats.uncharged.Add(max(p.Prompt+tokens-r.durable, 0))
	}
	r.durable = p.Prompt + p.Completion
}

// Release ends a reservation that has not been settled, as interrupted. It charges the tokens last recorded by
// SetPromptTokens and SetProgress, or nothing if neither was called. It is meant for defer and does not wait for the
// database.
func (r *Reservation) Release() {
	var o budget.Outcome
	if r.prompt.Load() != promptUnknown || r.completion.Load() > 0 {
		known := r.progress()
		o.Prompt, o.Completion = known.Prompt, known.Completion
	}
	r.end(usage.Interrupted, &o)
}

// end submits the settlement, once.
func (r *Reservation) end(state usage.State, o *budget.Outcome) {
	r.once.Do(func() {
		settle := newSettlement(r.id, state, o)
		if settle.Backend == "" {
			settle.Backend = r.progress().Backend
		}
		r.ending = &operation{account: r.account, key: r.key, settle: settle, done: make(chan decision, 1)}
		l := r.lane
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, r)
		if err := l.enqueueLocked(r.ending); err != nil {
			r.ending.complete(decision{err: err})
		}
	})
}
