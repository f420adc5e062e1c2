package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"basegate/budget/usage"
	"basegate/database"
)

// ErrDuplicate is returned by Wait and Settle if another request has the same id. Its row is left unchanged, and this
// request has none.
var ErrDuplicate = errors.New("a request with this id is on the ledger already")

// ErrNotReserved is returned by Settlement.Write if another gateway has ended the request's reservation. The transaction
// must be given up, and the settlement abandoned.
var ErrNotReserved = errors.New("the request is not in flight any longer")

// Request describes a request in its row.
type Request struct {
	ID        string
	KeyID     string // set by Reserve from the payer
	AccountID string // set by Reserve from the payer
	Model     string
	Endpoint  string
	Workload  string
	User      string
	Stream    bool
	Batch     string // the id of the batch of which the request is a line; empty for a live request
	ChainID   string // of EternalAI's form; empty if the client sent none
	Run       string // the name of the run that the request is part of; empty if it has none
	Address   string // of the client, for LastUse alone; empty for a line of a batch

	// Time is when the request arrived; zero means now. If the request is admitted on another date, the row gets the
	// time of admission, so that it lies in the windows that are charged.
	Time time.Time
}

// Outcome is how a request ended. Durations that do not apply are 0.
type Outcome struct {
	Prompt     int64  // tokens
	Completion int64  // tokens
	Status     int    // of the HTTP response
	Code       string // of the error; empty if there was none
	Backend    string // empty means the one of the last SetBackend
	Queue      time.Duration
	FirstToken time.Duration
	Total      time.Duration

	Reported usage.Reported  // by the backend
	Boot     time.Duration   // waiting for the model's boot
	Attempts []usage.Attempt // if there was more than one, or one that failed; must not be changed afterwards

	// Receipt is an entry of the receipt log, which is inserted in the transaction of the settlement: its leaf hash and nonce, of
	// 32 bytes each, and its text; nil: none. It is not inserted again if the settlement has to be retried.
	Receipt []byte

	// Queued, if not nil, is called by Settle when the write is queued and before it is waited for. With several gateways, it is not.
	Queued func()

	// Fallback is the outcome to charge and record if this one cannot be written at once, because the client then gets
	// a different response. If nil, this outcome is charged and recorded.
	Fallback *Outcome
}

// Reservation is a request's share of its caps until it ends. It is ended by Settle or Prepare, or else by Release; the
// first call counts and later calls have no effect. It is safe for concurrent use. Package budget/cluster has another
// implementation.
type Reservation interface {
	// MaxTokens returns how many tokens each candidate may have.
	MaxTokens() int64

	// Clamped reports whether MaxTokens is lower than demanded.
	Clamped() bool

	// Reserved returns the tokens reserved for the prompt, and for all candidates together. No outcome charges more, or the
	// caps could be exceeded.
	Reserved() (prompt, completion int64)

	// WriteError returns why the ledger cannot be written, or nil if nothing is known against it. A stream that begins now
	// might not be charged.
	WriteError() error

	// Lost returns a context that ends if the request has to end at once, with an error: its tokens belong to others, or the
	// database has been away for too long. It is nil if that cannot happen.
	Lost() context.Context

	// SetPromptTokens records the exact number of prompt tokens when it becomes known.
	SetPromptTokens(tokens int64)

	// SetProgress records how many completion tokens have been sent to the client. It is cheap enough for every event of a
	// stream. If the process dies, the request is charged the numbers of the last checkpoint, about a second old, and nothing
	// if it ran for less than a second.
	SetProgress(completion int64)

	// SetBackend records which backend the request is sent to.
	SetBackend(backend string)

	// Settle charges the outcome and waits until that is on disk. The last byte of the response may be sent when Settle has
	// returned nil. If it returns an error, the client must not receive a complete response.
	Settle(ctx context.Context, o Outcome) error

	// Prepare ends the request as Settle does, but writes nothing and charges nothing yet. It returns nil if the reservation
	// has been ended.
	Prepare(o Outcome) Settlement

	// Drop ends a reservation whose demand was SlotOnly, and leaves no row.
	Drop()

	// Release ends a reservation that has not been settled, as interrupted. It charges the tokens last recorded by
	// SetPromptTokens and SetProgress, or nothing if neither was called. It is meant for defer and does not wait for the
	// disk.
	Release()
}

// Grant is what a reservation allows, and the progress of its request. It implements the methods of Reservation that are the same
// in all ledgers.
type Grant struct {
	Input   int64 // reserved tokens of the prompt
	Output  int64 // reserved tokens of all candidates
	Max     int64 // tokens of each candidate
	Lowered bool  // Max is lower than demanded

	prompt, completion atomic.Int64 // tokens, the latest known; prompt is valid if counted is set
	counted            atomic.Bool
	backend            atomic.Pointer[string]
}

// Progress is what a checkpoint of a request records.
type Progress struct {
	Prompt     int64  `json:"prompt"`
	Completion int64  `json:"completion"`
	Backend    string `json:"backend"`
}

// MaxTokens implements Reservation.
func (g *Grant) MaxTokens() int64 { return g.Max }

// Clamped implements Reservation.
func (g *Grant) Clamped() bool { return g.Lowered }

// Reserved implements Reservation.
func (g *Grant) Reserved() (prompt, completion int64) { return g.Input, g.Output }

// SetPromptTokens implements Reservation.
func (g *Grant) SetPromptTokens(tokens int64) {
	g.prompt.Store(within(tokens, g.Input))
	g.counted.Store(true)
}

// SetProgress implements Reservation.
func (g *Grant) SetProgress(completion int64) { g.completion.Store(within(completion, g.Output)) }

// within returns what is charged of a number of tokens for which that many are reserved.
func within(tokens, reserved int64) int64 { return min(max(tokens, 0), reserved) }

// SetBackend implements Reservation.
func (g *Grant) SetBackend(backend string) { g.backend.Store(&backend) }

// Progress returns what a crash should leave on disk. While the prompt's tokens are unknown, they are those reserved.
func (g *Grant) Progress() Progress {
	p := Progress{Prompt: g.Input, Completion: g.completion.Load()}
	if g.counted.Load() {
		p.Prompt = g.prompt.Load()
	}
	if backend := g.backend.Load(); backend != nil {
		p.Backend = *backend
	}
	return p
}

// Interrupted returns the outcome of a request that ends without one: it is charged for its progress, or nothing if there was none.
func (g *Grant) Interrupted() (o Outcome) {
	if p := g.Progress(); g.counted.Load() || p.Completion > 0 {
		o.Prompt, o.Completion = p.Prompt, p.Completion
	}
	return o
}

// Limit returns an outcome that charges no more than is reserved, with the backend of the last SetBackend if it has none.
func (g *Grant) Limit(o Outcome) Outcome {
	o.Prompt, o.Completion = within(o.Prompt, g.Input), within(o.Completion, g.Output)
	if o.Backend == "" {
		o.Backend = g.Progress().Backend
	}
	return o
}

// reservation is the Reservation of a Ledger.
type reservation struct {
	Grant

	ledger  *Ledger
	request Request
	account *Account
	lease   Lease
	index   int  // in Ledger.open; guarded by the ledger's lock
	rowless bool // the demand was SlotOnly

	openOnce  sync.Once         // inserts the row, or decides that the settlement will be its only write
	openWrite *database.Pending // set by openOnce; nil if the settlement is the row's only write
	admitted  time.Time
	duplicate bool // another request's row has this id; accessed by writes, which run one at a time, and after them

	checkpointed Progress  // on disk
	writtenAt    time.Time // when the row in flight was last written; zero before it was inserted. Both are checkpoint's

	endOnce      sync.Once
	fallbackOnce sync.Once
	ended        atomic.Bool
	settlement   *pendingSettlement // set by endOnce
	settleWrite  *database.Pending  // set by endOnce: its first attempt; retries are in settlement.write
}

// WriteError implements Reservation. The error is database.ErrUnavailable.
func (r *reservation) WriteError() error {
	if err := r.ledger.db.WriteError(); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// Lost implements Reservation: one gateway alone has no other that could end its requests.
func (*reservation) Lost() context.Context { return nil }

// open inserts the row with the progress, once, unless the request has ended. It reports whether it did.
func (r *reservation) open(p Progress) (inserted bool) {
	r.openOnce.Do(func() {
		inserted = true
		r.openWrite = r.ledger.db.SubmitStatement(func(tx database.Execer) error {
			return r.asDuplicate(insertInFlight(r.ledger.ctx, tx, &r.request, p))
		})
	})
	return inserted
}

// asDuplicate returns the error of an insertion: ErrDuplicate, which it records, if another request has the same id.
func (r *reservation) asDuplicate(inserted bool, err error) error {
	if database.IsUnique(err) || err == nil && !inserted {
		r.duplicate = true
		return ErrDuplicate
	}
	return err
}

// Settle implements Reservation. If it returns an error, the settlement may not be on disk; the outcome, or its Fallback, is
// charged in memory, and the ledger retries the write.
func (r *reservation) Settle(ctx context.Context, o Outcome) error {
	r.end(usage.Settled, o)
	start := time.Now()
	if o.Queued != nil {
		o.Queued()
	}
	if err := r.settleWrite.Wait(ctx); err != nil {
		r.fallbackOnce.Do(r.applyFallback)
		r.ledger.enqueueRetry(r.settlement)
		return fmt.Errorf("close the request's row: %w", err)
	}
	r.ledger.metrics.ObserveCommit(time.Since(start))
	return nil
}

// applyFallback replaces the outcome by its Fallback and charges the difference. Nothing else accesses the settlement
// meanwhile: its write has failed, and it is not queued for retry yet.
func (r *reservation) applyFallback() {
	row := &r.settlement.row
	before, after := row.outcome, row.outcome.Fallback
	if after == nil || r.duplicate {
		return
	}
	row.outcome = *after
	if row.outcome.Backend == "" {
		row.outcome.Backend = before.Backend
	}
	l := r.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	r.account.Correct(&r.lease, after.Prompt-before.Prompt, after.Completion-before.Completion)
}

func (r *reservation) Release() {
	if r.ended.Load() {
		return
	}
	r.end(usage.Interrupted, r.Interrupted())
	r.ledger.enqueueRetry(r.settlement)
}

func (r *reservation) Drop() {
	r.endOnce.Do(func() {
		r.ledger.mu.Lock()
		defer r.ledger.mu.Unlock()
		r.ledger.release(r, 0, 0)
	})
}

// end charges the outcome and submits the write of the settlement, once.
func (r *reservation) end(state usage.State, o Outcome) {
	r.endOnce.Do(func() {
		r.settlement = &pendingSettlement{reservation: r, row: r.close(state, o)}
		r.charge(r.settlement.row.outcome.Prompt, r.settlement.row.outcome.Completion, state)
		r.ledger.writeSettlement(r.settlement, state == usage.Settled)
		r.settleWrite = r.settlement.write
	})
}

// close ends the progress of the request and returns its final row. The caller has the turn of endOnce.
func (r *reservation) close(state usage.State, o Outcome) row {
	r.ended.Store(true)
	r.openOnce.Do(func() {}) // if the row has not been inserted yet, the settlement inserts it
	return row{request: r.request, state: state, outcome: r.Limit(o)}
}

// charge replaces the reservation by a charge.
func (r *reservation) charge(prompt, completion int64, state usage.State) {
	l := r.ledger
	l.mu.Lock()
	l.release(r, prompt, completion)
	l.mu.Unlock()
	l.metrics.CountEnded(state)
}
