// Package budget is the token ledger: it enforces the caps of keys and accounts with reservations, and records what
// every request has used.
//
// A key and its account have four caps each. Before a request is sent to a backend, its worst-case cost is reserved
// against all eight caps in one decision, so used and reserved tokens together never exceed a cap, however many
// requests run at once. Used tokens alone cause a refusal or a lower max_tokens. If only the reservations of other
// requests stand in the way, the request waits, in order of arrival among the requests that the same caps block, and is
// evaluated again when a reservation ends. Settlement replaces the reservation by the exact count, once, however often
// it is called.
//
// Counters are held in memory. Every request is one row of the table requests, inserted when it ends. Settle returns
// when the row is on disk: a caller that withholds a response's last byte until then never completes a response that is
// not on the ledger. A request that runs for longer than a second has a row in the table inflight until it ends. Start
// moves the rows that a crash has left there to requests, as interrupted, with the tokens of their last checkpoint,
// which is about a second old.
//
// Windows are calendar days and months in UTC, by the clock at admission. A request is charged to the windows in which
// it was admitted, even if it ends later; its row's time lies in them. The used tokens of a window are always the sum
// over the rows whose times lie in it: when the clock enters a month, forward or back, the ledger reads the month's
// counters from the database before it admits a request. So if a clock was ahead and is corrected, today's window
// continues where it was, no window can be used twice, and none is skipped. Tokens used while the clock was ahead
// belong to the windows that it showed, and count when these begin.
//
// Only one Ledger may admit requests on a database; the gateway's lock ensures that. Rows hold tokens, times and names,
// and nothing of prompts and completions. Package quota defines the caps, package usage sums up and reads the rows; the
// limit on concurrent requests is package admission's.
package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

// ErrClosed is returned by Reserve before Start and after Close, and if Close is called while the request waits.
var ErrClosed = errors.New("the ledger is closed")

// ErrKeyDisabled is returned by Reserve if Settings.Payer refuses the key, which was valid when the request arrived.
var ErrKeyDisabled = errors.New("the key may no longer be used")

// Settings configure a Ledger.
type Settings struct {
	// Payer returns a key's current caps and slots and the caps of its account, or an error if the key may not be used.
	// It is called under the ledger's lock whenever a request is evaluated, so it must not block. If nil, the caps
	// passed to Reserve apply.
	Payer func(key string) (Payer, error)

	// Alarm is called when a cap is nearly used or used up, under the ledger's lock, so it must return at once and must
	// not call the ledger. It may be nil.
	Alarm func(Alarm)
}

// maxBacklog is how many settlements may be queued for retry while the database cannot be written; they take about 30 MB.
// Further settlements are charged in memory only; their rows stay in flight until the next Start marks them as interrupted.
const maxBacklog = 1 << 16

// maintenanceInterval is the time between retries of failed writes, and checks for a new window.
const maintenanceInterval = time.Second

// Ledger holds the counters of the caps and writes the rows of requests. It is safe for concurrent use.
type Ledger struct {
	db       *database.DB
	log      *zap.Logger
	settings Settings
	metrics  *Metrics
	clock    func() time.Time
	ctx      context.Context // Start's; of the statements of rows, which do not end with it

	maxBacklog int

	mu       sync.Mutex // guards the fields below and all owners and monthCounters; never held while waiting
	keys     map[string]*owner
	accounts map[string]*owner
	months   []int // whose counters the ledger holds
	open     []*reservation
	waiting  int   // requests
	reserved int64 // tokens
	backlog  []*pendingSettlement
	closed   bool

	loading sync.Mutex // held while a month is loaded; taken before mu

	maintenance wait.Loop
}

// New returns a Ledger. Before Start, Reserve returns ErrClosed.
func New(db *database.DB, log *zap.Logger, s Settings) *Ledger {
	l := &Ledger{
		db: db, log: log, settings: s, maxBacklog: maxBacklog, clock: time.Now, closed: true,
		keys: map[string]*owner{}, accounts: map[string]*owner{},
	}
	l.metrics = NewMetrics(l.load)
	return l
}

// Start marks the rows left in flight as interrupted, loads the counters of the current month, and admits requests until
// Close.
func (l *Ledger) Start(ctx context.Context) error {
	if err := l.recover(ctx); err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	l.mu.Lock()
	l.ctx, l.closed = ctx, false
	l.mu.Unlock()
	l.maintenance.Start(ctx, l.maintain)
	return nil
}

// Close refuses the requests that wait, with ErrClosed, retries the backlog once more, and waits until its writes are
// on disk or have failed. Open reservations can be settled until the database is closed; the next Start marks the
// others as interrupted.
func (l *Ledger) Close() {
	l.mu.Lock()
	l.closed = true
	for _, account := range l.accounts {
		for _, w := range account.queue {
			w.err = ErrClosed
			close(w.decided)
		}
		account.queue = nil
	}
	l.waiting = 0
	l.mu.Unlock()
	l.maintenance.Close()
}

// maintain does the periodic work until ctx ends, and writes what is outstanding then.
func (l *Ledger) maintain(ctx context.Context) {
	ticker := time.NewTicker(maintenanceInterval)
	defer ticker.Stop()
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	for {
		select {
		case <-ctx.Done():
			l.retryBacklog(context.WithoutCancel(ctx))
			l.writeLastUses(context.WithoutCancel(ctx))
			return
		case <-ticker.C:
			l.rollover(ctx)
			l.retryBacklog(ctx)
			l.writeLastUses(ctx)
		case <-progress.C:
			l.checkpoint(ctx)
		}
	}
}

// rollover evaluates the requests that have waited since before a new window began.
func (l *Ledger) rollover(ctx context.Context) {
	if l.loadMonth(ctx) != nil {
		return // Reserve returns the error to the next request
	}
	l.dispatchAll(func(account *owner, today date) bool { return account.dispatched != today })
}

// Waiting returns the number of requests that wait until reservations of others end.
func (l *Ledger) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// RefreshCaps evaluates all waiting requests again. Call it when caps have changed or keys were disabled.
func (l *Ledger) RefreshCaps() {
	l.dispatchAll(func(*owner, date) bool { return true })
}

// dispatchAll dispatches the queues of the accounts for which due returns true.
func (l *Ledger) dispatchAll(due func(account *owner, today date) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == 0 {
		return
	}
	today := dateOf(l.clock())
	for _, account := range l.accounts {
		if len(account.queue) > 0 && due(account, today) {
			l.dispatch(account)
		}
	}
}

// owners returns the counters of a payer's key and account, and creates those that do not exist.
func (l *Ledger) owners(p *Payer) (key, account *owner) {
	return ownerOf(l.keys, p.Key), ownerOf(l.accounts, p.Account)
}

func ownerOf(all map[string]*owner, id string) *owner {
	found := all[id]
	if found == nil {
		found = &owner{}
		all[id] = found
	}
	return found
}

// bucket returns the counters to which a request admitted at this time is charged.
func (l *Ledger) bucket(key, account *owner) bucket {
	now := l.clock()
	today := dateOf(now)
	return bucket{key: key.month(today.month), account: account.month(today.month), date: today, time: now}
}
