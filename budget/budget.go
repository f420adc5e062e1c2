// Package budget is the ledger: what requests may cost, what they have cost, and a promise that no cap is ever passed.
//
// A key and its account have four caps each. Before a request goes anywhere, the most that it can take is reserved
// against all eight in one decision: used and reserved together never pass a cap, whatever arrives at once. What is used
// alone refuses a request or lowers its max_tokens; where only reservations of others stand in the way it waits, in
// order of arrival among those whom the same caps hold up, and is judged again when one of them ends. When it ends
// itself, the exact count takes the reservation's place, once, whatever is called how often.
//
// Counters live in memory. Every request is one row, made soon after it is admitted and finished when it ends; Settle returns
// when that is on disk, so whoever holds back an answer's last byte until then has never finished an answer that is not
// on the ledger. Start closes what a crash left in flight, with the tokens last known, at most a second old, and counts
// the rows again.
//
// Windows are calendar days and months, UTC. A charge belongs to the windows in which its request was admitted, also
// when it ends after they have: its row's time lies in them. Months are kept apart by their number, so a clock that is
// set back comes back to what was spent then, and further back than the ledger remembers it stands still.
//
// One Ledger decides for a database. Rows hold tokens, times and names; nothing of prompts or completions.
package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// ErrClosed says that the ledger is closed, or not yet open, and admits nothing.
var ErrClosed = errors.New("the ledger is closed")

// ErrKeyDisabled says that a key may not ask any more that could when its request came.
var ErrKeyDisabled = errors.New("the key may not be used any more")

// Settings say what a Ledger goes by.
type Settings struct {
	// Payer says which caps of a key and its account are in force, or why the key may not be used. It is asked under the
	// ledger's lock whenever a request is judged, and so must not wait. Nil: those that a request came with stay in force.
	Payer func(key string) (Payer, error)

	// Backlog is how many rows may wait for a database that cannot be written; 0: DefaultBacklog. What ends when so many
	// wait is charged in memory, and its row stays open until the next start closes it as interrupted.
	Backlog int
}

// DefaultBacklog takes some 30 MB when it is full.
const DefaultBacklog = 1 << 16

// tick is how often checkpoints are made, rows that failed are tried again, and the calendar is looked at.
const tick = time.Second

// Ledger is the caps' counters and the requests' rows. It is safe for concurrent use.
type Ledger struct {
	db       *database.DB
	log      *zap.Logger
	settings Settings
	metrics  *metrics
	submit   submitter // nil before Start
	clock    func() time.Time

	mu       sync.Mutex // guards what follows, parties and periods included; never held while anything is waited for
	keys     map[string]*party
	accounts map[string]*party
	first    int // the earliest month that counts, as the ledger remembers all of it
	open     []*Reservation
	waiting  int
	reserved int64
	backlog  []*closing
	closed   bool

	stop context.CancelFunc // nil before Start
	done chan struct{}
}

// submitter hands a write of one statement to the database, with a context that does not end. Where somebody goes on to
// wait for it, it need not be told to the writer.
type submitter func(waited bool, apply func(context.Context, database.Execer) error) *database.Pending

// New makes a Ledger. Before Start it answers Usage and Rows and admits nothing.
func New(db *database.DB, log *zap.Logger, s Settings) *Ledger {
	if s.Backlog == 0 {
		s.Backlog = DefaultBacklog
	}
	return &Ledger{
		db: db, log: log, settings: s, metrics: newMetrics(), clock: time.Now, closed: true,
		keys: map[string]*party{}, accounts: map[string]*party{},
	}
}

// Start closes the rows that were left in flight, counts what has been used in the present month, and admits requests
// until Close.
func (l *Ledger) Start(ctx context.Context) error {
	if err := l.recover(ctx); err != nil {
		return fmt.Errorf("start ledger: %w", err)
	}
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	writing := context.WithoutCancel(ctx)
	l.mu.Lock()
	l.submit = func(waited bool, apply func(context.Context, database.Execer) error) *database.Pending {
		write := func(tx database.Execer) error { return apply(writing, tx) }
		if waited {
			return l.db.EnqueueStatement(write)
		}
		return l.db.SubmitStatement(write)
	}
	l.closed = false
	l.mu.Unlock()
	l.stop, l.done = stop, make(chan struct{})
	go l.keep(lasting)
	return nil
}

// Close turns away who waits, tries once more to write what could not be written, and waits until what has been
// submitted is on disk or has failed. Reservations that are still open can be settled until the database closes; those
// that are not are for the next start to close.
func (l *Ledger) Close() {
	l.mu.Lock()
	already := l.closed
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
	if l.stop == nil || already {
		return
	}
	l.stop()
	<-l.done
}

// keep does once a second what is not anybody's own to do.
func (l *Ledger) keep(ctx context.Context) {
	defer close(l.done)
	beat := time.NewTicker(tick)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			l.rewrite(context.WithoutCancel(ctx))
			l.writeUses(context.WithoutCancel(ctx))
			return
		case <-beat.C:
			l.turn()
			l.rewrite(ctx)
			l.checkpoint(ctx)
			l.writeUses(ctx)
		}
	}
}

// turn judges again who has waited since before a new window began.
func (l *Ledger) turn() {
	l.rejudge(func(account *party, now moment) bool { return account.turned != now })
}

// now is the present, but not before the first month that counts.
func (l *Ledger) now() (moment, time.Time) {
	at := l.clock()
	now := momentOf(at)
	if now.month < l.first {
		now = moment{month: l.first}
		at = now.start()
	}
	return now, at
}

// RefreshCaps judges everybody who waits again, since caps have changed, or keys may not be used any more.
func (l *Ledger) RefreshCaps() {
	l.rejudge(func(*party, moment) bool { return true })
}

// rejudge judges those again who wait in the accounts for which due says so.
func (l *Ledger) rejudge(due func(account *party, now moment) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == 0 {
		return
	}
	now, _ := l.now()
	for _, account := range l.accounts {
		if len(account.queue) > 0 && due(account, now) {
			l.pump(account)
		}
	}
}

// inForce brings a payer's caps up to the present. The error is ErrBarred.
func (l *Ledger) inForce(p *Payer) error {
	if l.settings.Payer == nil {
		return nil
	}
	now, err := l.settings.Payer(p.Key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeyDisabled, err)
	}
	p.KeyCaps, p.AccountCaps = now.KeyCaps, now.AccountCaps
	return nil
}

// parties finds who pays, or makes them.
func (l *Ledger) parties(p *Payer) (key, account *party) {
	return partyOf(l.keys, p.Key), partyOf(l.accounts, p.Account)
}

func partyOf(all map[string]*party, id string) *party {
	found := all[id]
	if found == nil {
		found = &party{}
		all[id] = found
	}
	return found
}

// seat is where a charge made at this time goes.
func (l *Ledger) seat(key, account *party) seat {
	now, at := l.now()
	return seat{key: l.period(key, now.month), account: l.period(account, now.month), now: now, at: at}
}

// period is a party's month. One month that is forgotten makes all before it count as forgotten.
func (l *Ledger) period(p *party, month int) *period {
	found, dropped := p.period(month)
	l.first = max(l.first, dropped+1)
	return found
}

// Spent tells whether some cap has no token left, by what is used alone: nil when none has.
func (l *Ledger) Spent(p Payer) *Exceeded {
	if !p.KeyCaps.Any() && !p.AccountCaps.Any() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seat(l.parties(&p))
	var worst *gauge
	caps := s.gauges(&p)
	for i := range caps.all() {
		g := &caps.list[i]
		if g.room() <= 0 && (worst == nil || g.before(*worst)) {
			worst = g
		}
	}
	if worst == nil {
		return nil
	}
	return worst.exceeded(s.now)
}

// Tightest is the total cap that leaves least, for the headers that tell a client; ok is false where none is set.
func (l *Ledger) Tightest(p Payer) (h Headroom, ok bool) {
	if !p.KeyCaps.Any() && !p.AccountCaps.Any() {
		return Headroom{}, false
	}
	if l.inForce(&p) != nil {
		return Headroom{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seat(l.parties(&p))
	caps := s.gauges(&p)
	for _, g := range caps.all() {
		left := max(g.room(), 0)
		if g.meter == Total && (!ok || left < h.Remaining) {
			h, ok = Headroom{Limit: g.limit, Remaining: left, ResetsAt: s.now.resets(g.window)}, true
		}
	}
	return h, ok
}
