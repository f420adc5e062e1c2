// Package budget is the token ledger: it enforces the caps of keys and accounts with reservations, and records what
// every request has used.
//
// A key, the key that has made it, if one has, and its account have caps: those of quota.Table. Before a request is sent to a
// backend, its worst-case cost is reserved against all of them in one decision, so used and reserved tokens together never exceed
// a cap, however many requests run at once. Used tokens alone cause a refusal or a lower max_tokens. If only reservations of
// others stand in the way, or their slots, of which a reservation holds one of each owner, the request waits in order of arrival:
// reserve.go has the steps, account.go the order, and evaluate.go judges the caps. settlement.go writes the rows.
// Settlement replaces the reservation by the exact count, once, however often it is called.
//
// Counters are held in memory. Every request is one row of the table requests, inserted when it ends. A request that runs for
// longer than a second has a row in the table inflight until it ends. Start moves the rows that a crash has left there to
// requests, as interrupted, with the tokens of their last checkpoint, which is about a second old.
//
// Windows are calendar days and months in UTC, by the clock at admission. A request is charged to the windows in which
// it was admitted, even if it ends later; its row's time lies in them. The used tokens of a window are always the sum
// over the rows whose times lie in it: when the clock enters a month, forward or back, the ledger reads the month's
// counters from the database before it admits a request. So if a clock was ahead and is corrected, no window can be used
// twice, and none is skipped. What a key has ever used, for its caps for life, is added up once, by Start.
//
// Only one Ledger may admit requests on a database; the gateway's lock ensures that. Rows hold tokens, times and names,
// and nothing of prompts and completions. Package quota defines the caps, package usage sums up and reads the rows, and
// package admission limits the memory of requests.
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
	// It is called under the ledger's lock for a new request, and by RefreshCaps for those that wait, so it must not block.
	// If nil, the caps passed to Reserve apply.
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

	mu       sync.Mutex        // guards the fields below and all accounts and keys; never held while waiting
	keys     map[string]*Owner // of all accounts
	accounts map[string]*Account
	active   map[*Account]struct{} // that have requests which run or wait
	months   []int                 // whose counters the ledger holds
	open     []*reservation
	backlog  []*pendingSettlement
	closed   bool
	closing  chan struct{} // closed by Close

	loading sync.Mutex // held while a month is loaded; taken before mu

	maintenance wait.Loop
}

// New returns a Ledger. Before Start, Reserve returns ErrClosed.
func New(db *database.DB, log *zap.Logger, s Settings) *Ledger {
	l := &Ledger{
		db: db, log: log, settings: s, clock: time.Now, closed: true,
		closing: make(chan struct{}), keys: map[string]*Owner{}, accounts: map[string]*Account{}, active: map[*Account]struct{}{},
	}
	l.metrics = NewMetrics(l.Load)
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
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
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
	l.grantAll(false)
}

// RefreshCaps evaluates all waiting requests again. Call it when caps or slots have changed or keys were disabled.
func (l *Ledger) RefreshCaps() { l.grantAll(true) }

// grantAll evaluates the requests that wait of all accounts: of all keys, or of accounts for which a new day has begun.
func (l *Ledger) grantAll(all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	today := DateOf(l.clock())
	for a := range l.active {
		if a.Waiting > 0 && (all || a.Granted != today) {
			l.grant(a, all)
		}
	}
}

// account returns an account, and adds it if there is none.
func (l *Ledger) account(id string) *Account {
	a := l.accounts[id]
	if a == nil {
		a = NewAccount(id, l.keys)
		l.accounts[id] = a
	}
	return a
}
