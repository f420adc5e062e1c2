// Package cluster is the token ledger of several gateways on one PostgreSQL database: it enforces the caps and slots of
// keys and accounts for all of them together, and records what every request has used.
//
// The rules are those of package budget, and of package admission for slots. They are evaluated in the database, by the
// function ledger_v1, under the lock of the account. Used and reserved tokens together never exceed a cap, and a key never
// runs more requests than it has slots, whichever gateways run them. A slot is one more cap: requests of a key that wait
// for either are admitted in the order of their tickets. Settlement charges a request once, in the windows in which it
// was admitted.
//
// A gateway has a few lanes. A lane is one connection; the operations of one account always take the same lane, and those
// that arrive while a call is in flight are the next call. Calls are numbered, and the database keeps the last reply of
// each lane, so that a call whose outcome is unknown is sent again. A gateway proves by heartbeats that it is alive. If
// they stop while those of another gateway succeed, that one ends its epoch: its requests in flight are charged by their
// last checkpoint, and whatever it sends later is refused with ErrFenced.
//
// The caps in a budget.Payer are not used: the database has them, from SetOwners. Package database/postgres connects and
// migrates.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database/postgres"
)

var (
	// ErrFenced is returned after the gateway's epoch has ended because another gateway took it for dead. Nothing is
	// settled any more.
	ErrFenced = errors.New("another gateway has ended this gateway's epoch")

	// ErrUnavailable is returned if the database does not respond in time.
	ErrUnavailable = errors.New("the database is not available")

	// ErrUnknownOwner is returned by Reserve for a key or an account that SetOwners has not recorded.
	ErrUnknownOwner = errors.New("the key or the account is not on the ledger")

	// ErrAbsent is returned by Settle if the request is not in flight in the database. It was charged already.
	ErrAbsent = errors.New("the request is not in flight")

	// ErrLostCommits is the cause of ErrFenced if the database has forgotten commits that it had acknowledged, as after a
	// failover to a standby that was behind.
	ErrLostCommits = errors.New("the database has lost commits that it had acknowledged")
)

// Settings configure a Ledger. Zero values mean the defaults.
type Settings struct {
	Name    string // of this gateway: unique among those that run, and the same after a restart
	Version string // of the program, for operators
	Lanes   int    // default 3

	Beat         time.Duration // interval of the heartbeats; default 2 s
	Dead         time.Duration // a gateway without heartbeats for so long is reaped; default 12 s
	AdmitTimeout time.Duration // how long Reserve waits for the database's reply; default 5 s
	CutOff       time.Duration // how long Settle waits for the database; default 60 s
}

func (s Settings) withDefaults() Settings {
	if s.Lanes == 0 {
		s.Lanes = defaultLanes
	}
	for _, d := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{
		{&s.Beat, 2 * time.Second}, {&s.Dead, 12 * time.Second}, {&s.AdmitTimeout, 5 * time.Second}, {&s.CutOff, time.Minute},
	} {
		if *d.value == 0 {
			*d.value = d.otherwise
		}
	}
	return s
}

// Ledger is one gateway's access to the ledger, for one epoch. It is safe for concurrent use.
type Ledger struct {
	db       *postgres.DB
	log      *zap.Logger
	settings Settings

	gateway int32
	epoch   int64
	lanes   []*lane

	counters sync.Map // owner's id → Counters
	stats    stats

	fenced chan struct{} // closed by fence
	once   sync.Once     // of fence
	cause  error         // set before fenced is closed

	stop       context.CancelFunc // of the background work
	background sync.WaitGroup
	closed     atomic.Bool
	reaping    atomic.Bool
}

// stats are the counters of Stats.
type stats struct{ calls, operations, resent, bisected, reaped, uncharged atomic.Int64 }

// Stats are totals since Start.
type Stats struct {
	Calls      int64 // of ledger_v1 that were executed
	Operations int64 // in them
	Resent     int64 // calls that were sent again
	Bisected   int64 // calls that were split because the database refused a value
	Reaped     int64 // gateways whose epochs this one has ended
	Uncharged  int64 // tokens sent to clients after the last checkpoint, and not charged since the epoch has ended
}

// New returns a Ledger. Start must be called before any other method.
func New(db *postgres.DB, log *zap.Logger, s Settings) *Ledger {
	return &Ledger{db: db, log: log, settings: s.withDefaults(), fenced: make(chan struct{})}
}

// Start begins an epoch, and ends the previous one of the gateway of this name. It starts the lanes, the heartbeats and the
// listener, which run until Close.
func (l *Ledger) Start(ctx context.Context) error {
	if l.settings.Name == "" {
		return errors.New("start ledger: the gateway has no name")
	}
	if err := l.createPartitions(ctx); err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	var interrupted int64
	err := l.db.Pool().QueryRow(ctx, `SELECT gateway, epoch, interrupted FROM ledger_join_v1($1, $2, $3)`,
		l.settings.Name, l.settings.Version, l.settings.Lanes).Scan(&l.gateway, &l.epoch, &interrupted)
	if err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	if interrupted > 0 {
		l.log.Info("requests of this gateway's previous epoch are marked as interrupted", zap.Int64("requests", interrupted))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	for n := range l.settings.Lanes {
		l.lanes = append(l.lanes, newLane(l, n))
	}
	for _, lane := range l.lanes {
		l.background.Go(func() { lane.run(running) })
	}
	l.background.Go(func() { l.beat(running) })
	l.background.Go(func() { l.listen(running) })
	l.background.Go(func() { l.maintain(running) })
	return nil
}

// closeTimeout limits the settlements that Close waits for, and the end of the epoch.
const closeTimeout = 5 * time.Second

// Close refuses new requests, waits for the settlements that have been submitted, up to five seconds, and ends the epoch:
// requests that are still open are charged by their last checkpoint.
func (l *Ledger) Close() {
	if l.stop == nil || l.closed.Swap(true) {
		return
	}
	deadline := time.NewTimer(closeTimeout)
	defer deadline.Stop()
	for _, lane := range l.lanes {
		select {
		case <-lane.drained():
		case <-l.fenced:
		case <-deadline.C:
			deadline.Reset(0)
		}
	}
	l.stop()
	l.background.Wait()
	for _, lane := range l.lanes {
		lane.fail(ErrClosed)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout) //nolint:forbidigo // the caller's has usually ended
	defer cancel()
	var interrupted int64
	err := l.db.Pool().QueryRow(ctx, `SELECT ledger_leave_v1($1, $2)`, l.gateway, l.epoch).Scan(&interrupted)
	if err != nil {
		l.log.Warn("the gateway's epoch could not be ended; another gateway will end it", zap.Error(err))
	}
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the ledger is closed")

// Fenced returns a channel that is closed when the gateway's epoch has ended. Its requests must end: nothing of them can be
// settled.
func (l *Ledger) Fenced() <-chan struct{} { return l.fenced }

// fence ends the gateway's work.
func (l *Ledger) fence(cause error) {
	l.once.Do(func() {
		l.cause = ErrFenced
		if !errors.Is(cause, ErrFenced) {
			l.cause = fmt.Errorf("%w: %w", ErrFenced, cause)
		}
		l.log.Error("the gateway's epoch has ended", zap.Int32("gateway", l.gateway), zap.Int64("epoch", l.epoch), zap.Error(l.cause))
		close(l.fenced)
		for _, lane := range l.lanes {
			lane.fail(l.cause)
		}
	})
}

// Stats returns the totals.
func (l *Ledger) Stats() Stats {
	return Stats{
		Calls: l.stats.calls.Load(), Operations: l.stats.operations.Load(), Resent: l.stats.resent.Load(),
		Bisected: l.stats.bisected.Load(), Reaped: l.stats.reaped.Load(), Uncharged: l.stats.uncharged.Load(),
	}
}

// Counters are an owner's tokens and requests, as of the latest call that concerned it.
type Counters struct {
	MonthInput, MonthOutput int64 // used
	Day                     int64 // used, input and output
	ReservedInput           int64 // by requests in flight that were admitted this month
	ReservedOutput          int64
	ReservedDay             int64 // by those that were admitted today
	Running, Waiting        int64 // requests
}

// Counters returns the latest known counters of a key or an account, and false if none are known.
func (l *Ledger) Counters(owner string) (Counters, bool) {
	found, ok := l.counters.Load(owner)
	if !ok {
		return Counters{}, false
	}
	return found.(Counters), true //nolint:errcheck // the map holds nothing else
}

// lane returns the lane of an account.
func (l *Ledger) lane(account string) *lane {
	h := fnv.New32a()
	_, _ = h.Write([]byte(account))
	return l.lanes[int(h.Sum32()%uint32(len(l.lanes)))] //nolint:gosec // a few lanes
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
