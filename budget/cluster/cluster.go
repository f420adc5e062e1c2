// Package cluster is the token ledger of several gateways on one PostgreSQL database: it enforces the caps and slots of
// keys and accounts for all of them together, and records what every request has used.
//
// The rules are those of package budget. They are evaluated in the database, by the
// function ledger_v1, under the lock of the account. Used and reserved tokens together never exceed a cap, and a key
// never runs more requests than it has slots, whichever gateways run them. A slot is one more cap: requests of a key
// that wait for either are admitted in the order of their tickets. Settlement charges a request once, in the windows in
// which it was admitted.
//
// A gateway has a few lanes. A lane is one connection; the operations of one account always take the same lane, and those
// that arrive while a call is in flight are the next call. Calls are numbered, and the database keeps the last reply of
// each lane, so that a call whose outcome is unknown is sent again. A gateway proves by heartbeats that it is alive. If
// they stop while those of another gateway succeed, that one ends its epoch: its requests in flight are charged by their
// last checkpoint, and whatever it sends later is refused with ErrFenced.
//
// Caps are evaluated in the database only: triggers copy those of keys and accounts, so that a change is in force, in
// every gateway, when it is committed. Queries about caps without a reservation are evaluated here, by the caps
// of budget.Payer and the counters that the latest replies of the database carried. Package database/postgres connects
// and migrates.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/database/postgres"
)

var (
	// ErrFenced is returned after an epoch of the gateway has ended because another gateway declared it dead. No
	// request of it is settled afterwards. The gateway begins another one.
	ErrFenced = fmt.Errorf("%w: the gateway's epoch has ended", database.ErrUnavailable)

	// ErrUnknownOwner is returned by Reserve for a key or an account that is not on the ledger.
	ErrUnknownOwner = fmt.Errorf("%w: it or its account is not on the ledger", budget.ErrKeyDisabled)

	// ErrAbsent is returned by Settle if the request is not in flight in the database. It was charged already.
	ErrAbsent = errors.New("the request is not in flight")

	// ErrLostCommits is the cause of ErrFenced if the database has forgotten commits that it had acknowledged, as after a
	// failover to a standby that was behind.
	ErrLostCommits = errors.New("the database has lost commits that it had acknowledged")

	errTimeout = fmt.Errorf("%w: it does not reply", database.ErrUnavailable)
)

// Settings configure a Ledger. Zero values mean the defaults.
type Settings struct {
	Name    string // of this gateway: unique among those that run, and the same after a restart
	Version string // of the program, for operators
	Lanes   int    // default 3

	// Payer returns a key's current caps and those of its account, or an error if the key may not be used, as in
	// budget.Settings. The database does not need it.
	Payer func(key string) (budget.Payer, error)

	// Alarm is called when a cap is nearly used or used up, in one gateway. It may be nil.
	Alarm func(budget.Alarm)

	// NameTaken is called once if another process has begun an epoch under the gateway's name. The ledger then admits
	// nothing any more. It may be nil.
	NameTaken func()

	Beat         time.Duration // interval of the heartbeats; default 2 s
	Dead         time.Duration // a gateway without heartbeats for so long is reaped; default 12 s
	AdmitTimeout time.Duration // how long Reserve waits for the database's reply; default 5 s
	CutOff       time.Duration // how long requests that run go on without the database; default 60 s
}

// defaultDead is the default of Settings.Dead.
const defaultDead = 12 * time.Second

func (s Settings) withDefaults() Settings {
	s.Lanes = cmp.Or(s.Lanes, defaultLanes)
	s.Beat = cmp.Or(s.Beat, 2*time.Second)
	s.Dead = cmp.Or(s.Dead, defaultDead)
	s.AdmitTimeout = cmp.Or(s.AdmitTimeout, 5*time.Second)
	s.CutOff = cmp.Or(s.CutOff, time.Minute)
	return s
}

// Ledger is one gateway's access to the ledger. It is safe for concurrent use.
type Ledger struct {
	db       store
	log      *zap.Logger
	settings Settings
	metrics  *metrics
	balances balances
	recent   recentSettlements

	epoch  atomic.Pointer[epoch] // the current one, or the latest if that has ended; nil before Start
	closed atomic.Bool

	stop       context.CancelFunc // of the background work; nil before Start
	background sync.WaitGroup
}

// New returns a Ledger. Before Start, Reserve returns budget.ErrClosed.
func New(db *postgres.DB, log *zap.Logger, s Settings) *Ledger { return newLedger(server{db}, log, s) }

func newLedger(db store, log *zap.Logger, s Settings) *Ledger {
	l := &Ledger{db: db, log: log, settings: s.withDefaults(), balances: balances{wake: make(chan struct{}, 1)}}
	l.metrics = newMetrics(l.Load)
	return l
}

// Start begins an epoch, and ends the previous one of the gateway of this name. It starts the lanes, the heartbeats and
// the listener, which run until Close.
func (l *Ledger) Start(ctx context.Context) error {
	if l.settings.Name == "" {
		return errors.New("start ledger: the gateway has no name")
	}
	if err := l.createPartitions(ctx); err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	if err := l.loadBalances(ctx); err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	first, err := l.join(ctx)
	if err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	l.epoch.Store(first)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.background.Go(func() { l.runEpochs(running, first) })
	l.background.Go(func() { l.maintain(running) })
	l.background.Go(func() { l.watch(running) })
	l.background.Go(func() { l.readBalances(running) })
	return nil
}

// closeTimeout limits the settlements that Close waits for, and the end of the epoch.
const closeTimeout = 5 * time.Second

// Close refuses new requests and those that wait, with budget.ErrClosed, waits for the settlements that have been
// submitted, up to five seconds, and ends the epoch: requests that are still open are charged by their last checkpoint.
func (l *Ledger) Close() {
	if l.stop == nil || l.closed.Swap(true) {
		return
	}
	e := l.epoch.Load()
	for _, lane := range e.lanes {
		lane.cancelWaiters()
	}
	e.drain(closeTimeout)
	l.stop()
	l.background.Wait()
	e = l.epoch.Load()
	for _, lane := range e.lanes {
		lane.fail(budget.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout) //nolint:forbidigo // the caller's has usually ended
	defer cancel()
	if _, err := l.db.Pool().Exec(ctx, `SELECT ledger_leave_v1($1, $2)`, e.gateway, e.number); err != nil {
		l.log.Warn("the gateway's epoch could not be ended; another gateway will end it", zap.Error(err))
		return
	}
	if _, err := l.endLeft(ctx); err != nil {
		l.log.Warn("requests of the gateway's epoch could not be ended; another gateway will end them", zap.Error(err))
	}
}

// raise passes alarms on. Those of a gateway that ends between their commit and this call are lost.
func (l *Ledger) raise(alarms []budget.Alarm) {
	if l.settings.Alarm == nil {
		return
	}
	for _, alarm := range alarms {
		l.settings.Alarm(alarm)
	}
}

// Ready returns database.ErrUnavailable if requests cannot be admitted at present: the database does not reply, or the
// gateway's epoch has ended and the next one has not begun.
func (l *Ledger) Ready() error {
	e := l.epoch.Load()
	if e == nil || l.closed.Load() {
		return budget.ErrClosed
	}
	for _, lane := range e.lanes {
		if err := lane.ready(); err != nil {
			return err
		}
	}
	return nil
}

// Epoch returns the number of this gateway and of its epoch, for what else ends with it: the leases of batches, say. ok is
// false while the gateway has no epoch.
func (l *Ledger) Epoch() (gateway int32, number int64, ok bool) {
	e := l.epoch.Load()
	if e == nil {
		return 0, 0, false
	}
	select {
	case <-e.fenced:
		return 0, 0, false
	default:
		return e.gateway, e.number, true
	}
}

// RefreshCaps does nothing: the transaction that changes caps evaluates the waiting requests of all gateways.
func (*Ledger) RefreshCaps() {}

// Load returns what the lanes of the present epoch hold. Requests that wait for a slot and those that wait for tokens are not
// told apart.
func (l *Ledger) Load() (sum budget.Load) {
	e := l.epoch.Load()
	if e == nil {
		return sum
	}
	for _, lane := range e.lanes {
		lane.addLoad(&sum)
	}
	sum.Queued, sum.Blocked = sum.Waiting, sum.Waiting
	return sum
}

// createPartitions creates the partitions of the coming months.
func (l *Ledger) createPartitions(ctx context.Context) error {
	if _, err := l.db.Pool().Exec(ctx, `SELECT ledger_partitions_v1($1)`, partitionsAhead); err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	return nil
}

// partitionsAhead is how many months have a partition before they begin.
const partitionsAhead = 3
