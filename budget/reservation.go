package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// ErrDuplicate says that another request has the same id. Its row is left alone, and there is none for this one.
var ErrDuplicate = errors.New("a request of this id is on the ledger already")

// Request is what the ledger writes down about a request.
type Request struct {
	ID        string
	KeyID     string // Reserve sets it to the payer's
	AccountID string // Reserve sets it to the payer's
	Model     string
	Endpoint  string
	Workload  string
	User      string
	Stream    bool

	// Time is when the request came; zero is now. Where a day has passed since, or the clock disagrees, the row bears the
	// time of admission, so that it lies in the windows that are charged.
	Time time.Time
}

// Outcome is how a request ended. A duration that does not apply is 0.
type Outcome struct {
	Prompt     int64 // tokens
	Completion int64 // tokens
	Status     int
	Code       string // of the error; empty for none
	Backend    string // empty: the last Attempt's
	Queue      time.Duration
	FirstToken time.Duration
	Total      time.Duration

	// Fallback is how it ends where this cannot be written at once, since then the client is told something else; nil is
	// the same.
	Fallback *Outcome
}

// Reservation is what a request holds of its caps until it ends. Settle ends it, or else Release; the first call counts
// and all later ones change nothing. It is safe for concurrent use.
type Reservation struct {
	ledger    *Ledger
	request   Request
	account   *party
	seat      seat
	input     int64
	output    int64
	maxTokens int64
	clamped   bool
	index     int // in the ledger's open ones, under its lock

	opening sync.Once         // makes the row, or finds that its end will be its only write
	opened  *database.Pending // set by opening; nil where the row's end is its only write
	later   *time.Timer       // opens the row of a request that is still there when it fires
	foreign bool              // the row of this id is another's; the writer's own

	prompt, completion atomic.Int64 // the latest known; prompt is unknown before CountPrompt
	backend            atomic.Pointer[string]
	saved              progress // what is on disk; the checkpoint's own

	once    sync.Once
	instead sync.Once // see unwritten
	ended   atomic.Bool
	closing *closing
	commit  *database.Pending // the first attempt at it; the closing's own may be a later one
}

// progress is what a checkpoint writes.
type progress struct {
	prompt, completion int64
	backend            string
}

// MaxTokens is how many tokens each candidate may have.
func (r *Reservation) MaxTokens() int64 { return r.maxTokens }

// Clamped tells whether that is fewer than asked for.
func (r *Reservation) Clamped() bool { return r.clamped }

// Wait opens the request's row and waits until it is on disk. A stream's first byte may go to its client when it has
// returned nil: when the error is database.ErrUnavailable the ledger cannot be written, and the request has to be
// refused. A plain answer need not wait, as Settle does.
func (r *Reservation) Wait(ctx context.Context) error {
	r.open(true)
	if r.opened == nil {
		return nil // it has ended
	}
	if err := r.opened.Wait(ctx); err != nil {
		return fmt.Errorf("open the request's row: %w", err)
	}
	return nil
}

// SetPromptTokens says how many tokens the prompt has, as soon as that is known and not only bounded.
func (r *Reservation) SetPromptTokens(tokens int64) { r.prompt.Store(max(tokens, 0)) }

// SetProgress says how many tokens have gone to the client so far. It is cheap enough for every event of a stream. What is
// known when the process dies, up to a second before, is what the request will have cost.
func (r *Reservation) SetProgress(completion int64) { r.completion.Store(max(completion, 0)) }

// SetBackend says which backend the request has gone to.
func (r *Reservation) SetBackend(backend string) { r.backend.Store(&backend) }

// unknown is a number of prompt tokens that nobody has told.
const unknown = -1

// latest is what a crash should leave. As long as nobody has told what the prompt takes, it is what was reserved for it.
func (r *Reservation) latest() progress {
	p := progress{prompt: r.prompt.Load(), completion: r.completion.Load()}
	if p.prompt == unknown {
		p.prompt = r.input
	}
	if backend := r.backend.Load(); backend != nil {
		p.backend = *backend
	}
	return p
}

// openAfter is when the row of a request is made that is still in flight. Most end sooner and are one write in place of
// two; a crash before that forgets a request of which its client has seen nothing.
const openAfter = 20 * time.Millisecond

// open submits the row, once, unless the request has ended; waited says that somebody waits for it.
func (r *Reservation) open(waited bool) {
	r.opening.Do(func() {
		r.opened = r.ledger.submit(waited, func(ctx context.Context, tx database.Execer) error {
			return r.insert(ctx, tx, row{request: r.request, state: inFlight, outcome: Outcome{Prompt: r.input}})
		})
	})
}

// insert makes the row, or finds that another's has this id.
func (r *Reservation) insert(ctx context.Context, tx database.Execer, one row) error {
	err := insertRequest(ctx, tx, one)
	if database.IsUnique(err) {
		r.foreign = true
		return ErrDuplicate
	}
	return err
}

// Settle ends the reservation: what was taken is charged at once, and Settle waits until that is on disk. The answer's
// last byte may follow when it has returned nil.
//
// When it returns an error, the end is not known to be on disk: the client must not be told that the answer is whole. It
// stands in memory, as o or as its Unwritten, and the ledger goes on trying to write it.
func (r *Reservation) Settle(ctx context.Context, o Outcome) error {
	r.end(Settled, o)
	began := time.Now()
	if err := r.commit.Wait(ctx); err != nil {
		if ctx.Err() == nil {
			r.instead.Do(r.unwritten)
		}
		r.ledger.adopt(r.closing)
		return fmt.Errorf("close the request's row: %w", err)
	}
	r.ledger.metrics.committed(time.Since(began))
	return nil
}

// unwritten puts in the end's place what it is where it could not be written. Nobody else has it in hand: its write has
// failed, and the ledger has not yet adopted it.
func (r *Reservation) unwritten() {
	row := &r.closing.row
	before, after := row.outcome, row.outcome.Fallback
	if after == nil || r.closing.of.foreign {
		return
	}
	row.outcome = *after
	if row.outcome.Backend == "" {
		row.outcome.Backend = before.Backend
	}
	l := r.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	r.seat.key.charge(r.seat.now.day, after.Prompt-before.Prompt, after.Completion-before.Completion)
	r.seat.account.charge(r.seat.now.day, after.Prompt-before.Prompt, after.Completion-before.Completion)
}

// Release ends a reservation that has not been settled, as interrupted, with what CountPrompt and Progress last said;
// with nothing if they never did. It is for defer, and does not wait for the disk.
func (r *Reservation) Release() {
	if r.ended.Load() {
		return
	}
	var o Outcome
	if r.prompt.Load() != unknown || r.completion.Load() > 0 {
		known := r.latest()
		o.Prompt, o.Completion = known.prompt, known.completion
	}
	r.end(Interrupted, o)
	r.ledger.adopt(r.closing)
}

// end charges and submits the row's end, once. Who comes second finds the first's.
func (r *Reservation) end(state State, o Outcome) {
	r.once.Do(func() {
		r.ended.Store(true)
		r.later.Stop()
		r.opening.Do(func() {}) // from here on there is nothing to open
		o.Prompt, o.Completion = max(o.Prompt, 0), max(o.Completion, 0)
		if o.Backend == "" {
			o.Backend = r.latest().backend
		}
		l := r.ledger
		l.mu.Lock()
		l.give(r, o.Prompt, o.Completion)
		l.mu.Unlock()
		l.metrics.ended(state)
		if o.Prompt > r.input || o.Completion > r.output {
			l.log.Warn("a request took more than was reserved for it", zap.String("request_id", r.request.ID),
				zap.Int64("prompt_tokens", o.Prompt), zap.Int64("completion_tokens", o.Completion),
				zap.Int64("reserved_prompt_tokens", r.input), zap.Int64("reserved_completion_tokens", r.output))
		}
		r.closing = &closing{of: r, row: row{request: r.request, state: state, outcome: o}}
		l.write(r.closing, state == Settled)
		r.commit = r.closing.pending
	})
}
