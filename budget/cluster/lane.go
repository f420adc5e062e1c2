package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database/postgres"
	"basegate/internal/wait"
)

// batchSize is the largest number of operations of one call.
const batchSize = 64

// maxCallSize limits the operations of one call of several, in bytes, so that a socket's buffers take the call and its reply.
const maxCallSize = 48 << 10

// callTimeout limits one call, including the time to notice that the connection is lost. It is longer than the server's
// statement_timeout.
const callTimeout = 5 * time.Second

// lane sends the operations of some of the accounts, one call after the other.
type lane struct {
	epoch *epoch
	n     int
	wake  chan struct{} // capacity 1; holds a token if run should look at the queue

	mu         sync.Mutex // guards the fields below, and what operations and Reservations say
	queue      []*operation
	waiting    map[string]*operation // admissions that wait, by request
	open       map[*reservation]struct{}
	collect    bool      // decisions on waiters may be in the database
	calling    bool      // a call is in flight
	failed     error     // of the ledger: fenced or closed
	outage     time.Time // when the calls began to fail; zero while they succeed
	unanswered time.Time // in an outage: when the first call that failed was sent
	lost       context.Context
	lose       context.CancelFunc
	idle       chan struct{} // closed when the queue is empty and no call is in flight; nil unless Close waits

	putOff map[string]*holdOff // accounts that others hold

	// Used by run alone.
	conn      connection // nil unless there is one
	seq       int64
	held      map[string]*account // as of the lane's last transaction on them
	contended map[string]int      // how many transactions on an account are to lock it, since somebody else has changed it
}

// holdOff says that operations on an account wait since another session holds its row.
type holdOff struct {
	since time.Time
	until time.Time
}

func newLane(e *epoch, n int) *lane {
	l := &lane{
		epoch: e, n: n, wake: make(chan struct{}, 1), waiting: map[string]*operation{}, open: map[*reservation]struct{}{},
		putOff: map[string]*holdOff{}, held: map[string]*account{}, contended: map[string]int{},
	}
	l.lost, l.lose = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with the epoch
	return l
}

// enqueue adds an operation to the next call. The error is that of the ledger's end.
func (l *lane) enqueue(o *operation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enqueueLocked(o)
}

func (l *lane) enqueueLocked(o *operation) error {
	if l.failed != nil {
		return l.failed
	}
	l.queue = append(l.queue, o)
	l.signal()
	return nil
}

func (l *lane) signal() { wait.Wake(l.wake) }

// requestGrant makes the next call evaluate the requests of an account that wait.
func (l *lane) requestGrant(account string) { _ = l.enqueue(&operation{account: account}) }

// requestCollect makes the next call fetch decisions on waiters.
func (l *lane) requestCollect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.collect = true
	l.signal()
}

// ready returns why the lane can send no call at present: the epoch's end, or database.ErrUnavailable if calls have failed for
// longer than a second.
func (l *lane) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.outage.IsZero() && time.Since(l.outage) > time.Second {
		return errTimeout
	}
	return l.failed
}

// cutOff ends the requests that run if calls have failed for too long, and those that come with them.
func (l *lane) cutOff() {
	if !l.outage.IsZero() && time.Since(l.unanswered) > l.epoch.settings.CutOff {
		l.lose()
		l.lost, l.lose = context.WithCancel(context.Background()) //nolint:forbidigo // as in newLane
	}
}

// cancelWaiters ends the waits of all requests: of the last one first, so that none of them is granted meanwhile.
func (l *lane) cancelWaiters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := func(x, y *operation) int {
		return cmp.Or(cmp.Compare(y.ticket, x.ticket), cmp.Compare(x.account, y.account))
	}
	for _, o := range slices.SortedFunc(maps.Values(l.waiting), last) {
		delete(l.waiting, o.admit.ID)
		_ = l.enqueueLocked(o.cancellation()) // if the epoch has ended, so have its waits
		o.complete(decision{err: budget.ErrClosed})
	}
}

// addLoad adds what the lane holds. No other lane has the same keys.
func (l *lane) addLoad(sum *budget.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := map[string]struct{}{}
	for r := range l.open {
		sum.Reserved += r.Input + r.Output
		if r.row.admission.Batch == "" {
			sum.Running++
			keys[r.key] = struct{}{}
		}
	}
	for _, o := range l.waiting {
		keys[o.key] = struct{}{}
	}
	for _, o := range l.queue {
		if o.settle != nil {
			sum.Backlog++
		}
	}
	sum.Open, sum.Waiting, sum.Keys = sum.Open+len(l.open), sum.Waiting+len(l.waiting), sum.Keys+len(keys)
}

// drained returns a channel that is closed when nothing is left to send.
func (l *lane) drained() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := make(chan struct{})
	if len(l.queue) == 0 && !l.calling || l.failed != nil {
		close(done)
	} else {
		l.idle = done
	}
	return done
}

// fail ends all operations with the ledger's error.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
		l.lose()
	}
	failAll(l.queue, notSent(err))
	for _, o := range l.waiting {
		o.complete(decision{err: err})
	}
	l.queue, l.waiting = nil, map[string]*operation{}
	l.signal()
}

// run sends calls until ctx ends or the ledger is fenced.
func (l *lane) run(ctx context.Context) {
	defer func() {
		if l.conn != nil {
			l.conn.close(ctx)
		}
	}()
	for {
		batch, due, collect := l.take()
		if len(batch) == 0 && !collect {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		l.execute(ctx, batch, due, collect)
		if l.finish() != nil || ctx.Err() != nil {
			return
		}
	}
}

// take removes the next operations from the queue, but those on accounts that others hold. due are the accounts on which requests wait.
func (l *lane) take() (batch []*operation, due []string, collect bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, size, full := time.Now(), 0, false
	l.queue = slices.DeleteFunc(l.queue, func(o *operation) bool {
		if h := l.putOff[o.account]; full || h != nil && now.Before(h.until) {
			return false
		}
		// What follows one that has no place stays behind it.
		if full = len(batch) == batchSize || len(batch) > 0 && size+o.size() > maxCallSize; full {
			return false
		}
		size += o.size()
		o.sent = true
		batch = append(batch, o)
		return true
	})
	if collect = l.collect; collect {
		accounts := map[string]bool{}
		for _, o := range l.waiting {
			accounts[o.account] = true
		}
		due = slices.Sorted(maps.Keys(accounts))
	}
	l.collect = false
	l.calling = len(batch) > 0 || collect
	return batch, due, collect
}

// finish ends a call, and returns the ledger's error.
func (l *lane) finish() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calling = false
	if l.idle != nil && len(l.queue) == 0 {
		close(l.idle)
		l.idle = nil
	}
	return l.failed
}

// execute makes one transaction and delivers its results. If the database refuses a value, each half is sent by itself, so that
// only the operation with that value fails.
func (l *lane) execute(ctx context.Context, batch []*operation, due []string, collect bool) {
	t, r, err := l.send(ctx, batch, due, collect)
	switch {
	case err == nil:
		l.deliver(t, r, batch)
	case errors.Is(err, errHeld):
		l.returnHeld(batch, nil, collect)
	case errors.Is(err, ErrFenced) || errors.Is(err, ErrLostCommits):
		l.epoch.fence(err)
		failAll(batch, l.epoch.cause)
	case ctx.Err() != nil:
		failAll(batch, l.epoch.ended())
	case len(batch) > 1:
		l.epoch.metrics.bisected.Inc()
		half := len(batch) / 2
		l.execute(ctx, batch[:half], nil, false)
		l.execute(ctx, batch[half:], due, collect)
	case len(batch) == 1:
		l.epoch.log.Error("the database refuses an operation of the ledger", zap.Error(err))
		if batch[0].settle != nil {
			l.epoch.metrics.Lost.Inc()
		}
		batch[0].complete(decision{err: fmt.Errorf("the database refuses the request: %w", err)})
	}
}

// returnHeld puts operations on accounts that others hold back to the front of the queue.
func (l *lane) returnHeld(held []*operation, free map[string]*account, collect bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for account := range free {
		delete(l.putOff, account)
	}
	for _, o := range held {
		o.sent = false // nothing of it was executed
		h := l.putOff[o.account]
		if h == nil {
			h = &holdOff{since: now}
			l.putOff[o.account] = h
		}
		if now.Before(h.until) {
			continue
		}
		h.until = now.Add(min(max(now.Sub(h.since)/2, minHoldOff), maxHoldOff))
		time.AfterFunc(time.Until(h.until), l.signal)
	}
	if l.failed != nil { // meanwhile
		failAll(held, notSent(l.failed))
		return
	}
	l.queue = slices.Concat(held, l.queue)
	l.collect = l.collect || collect
}

const (
	minHoldOff = 2 * time.Millisecond
	maxHoldOff = 500 * time.Millisecond
	// laneIdle is how long the server lets a lane be between the two steps of a transaction.
	laneIdle = "2s"
)

// errHeld is returned for a transaction all of whose accounts are held by others. Nothing was done.
var errHeld = errors.New("others hold the accounts")

// errConflict is returned for a transaction on rows that somebody else has changed, or on requests that are not, or already, in flight.
// Nothing was done.
var errConflict = errors.New("the rows have changed")

// send makes one transaction, until one of its attempts has been executed, and returns that attempt and its reply. The error is
// ErrFenced, ErrLostCommits, errHeld, that of a value that the database refuses, or that of ctx.
//
// An attempt whose outcome is not known may still be executed later: the lane's sequence lets one of them pass, and its reply says which.
func (l *lane) send(ctx context.Context, batch []*operation, due []string, collect bool) (*transaction, *reply, error) {
	l.seq++
	var attempts []*transaction
	locking, inDoubt, backoff, partitioned := !l.holds(batch), false, resendBackoff, false
	for failures := 0; ; {
		if failures > 0 {
			l.epoch.metrics.resent.Inc()
			if !wait.For(ctx, backoff) {
				return nil, nil, context.Cause(ctx)
			}
			backoff = min(2*backoff, maxResendBackoff)
		}
		sent := time.Now()
		t := newTransaction(l.epoch.Ledger, l.epoch.gateway, l.epoch.number, l.n)
		attempts = append(attempts, t)
		r, err := l.try(ctx, t, len(attempts)-1, batch, due, collect, locking)
		if err == nil && r.Attempt >= len(attempts) {
			err = fmt.Errorf("%w: the reply is that of another call", ErrLostCommits)
		}
		if err != nil {
			l.forget(batch)
			locking = true
		}
		switch {
		case err == nil:
			l.recordOutage(nil, sent)
			if executed := attempts[r.Attempt]; executed != t {
				l.forget(batch)
				return executed, r, nil
			}
			l.keep(t, r)
			return t, r, nil
		case errors.Is(err, ErrFenced), errors.Is(err, ErrLostCommits):
			l.recordOutage(nil, sent)
			return nil, nil, err
		case errors.Is(err, errConflict), len(attempts) == 1 && postgres.Code(err) == lockNotAvailable:
			l.epoch.metrics.conflicts.Inc()
			continue
		case errors.Is(err, errHeld):
			if !inDoubt { // else an earlier attempt may still be executed
				l.seq--
				return nil, nil, err
			}
		case !partitioned && postgres.Code(err) == checkViolation:
			// Perhaps the month has no partition yet. Without one, to give up would lose a settlement.
			failure := l.epoch.createPartitions(ctx)
			err, partitioned = errors.Join(err, failure), failure == nil
		case postgres.IsData(err):
			return l.useUp(ctx, attempts, err)
		case postgres.IsConnection(err):
			l.disconnect()
			inDoubt = true
		}
		failures++
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if !errors.Is(err, errHeld) {
			l.recordOutage(err, sent)
		}
	}
}

// useUp makes an empty transaction in place of one whose value the database refuses. Until then, an earlier attempt of the refused
// one may be on its way, and might succeed when it arrives. If one has, it is returned, or else refused.
func (l *lane) useUp(ctx context.Context, attempts []*transaction, refused error) (*transaction, *reply, error) {
	for {
		t := newTransaction(l.epoch.Ledger, l.epoch.gateway, l.epoch.number, l.n)
		r, err := l.try(ctx, t, len(attempts), nil, nil, false, false)
		switch {
		case err == nil && r.Attempt < len(attempts):
			return attempts[r.Attempt], r, nil
		case err == nil:
			return nil, nil, refused
		case errors.Is(err, ErrFenced), errors.Is(err, ErrLostCommits):
			return nil, nil, err
		}
		l.disconnect()
		if !wait.For(ctx, resendBackoff) {
			return nil, nil, context.Cause(ctx)
		}
	}
}

// holds reports whether all rows that a batch needs are held, so that it needs no lock.
func (l *lane) holds(batch []*operation) bool {
	for _, o := range batch {
		if o.checkpoint != nil {
			continue
		}
		a := l.held[o.account]
		if a == nil || !a.has(o.key) || o.cancel != nil || l.contended[o.account] > 0 {
			return false
		}
	}
	return true
}

// has reports whether the rows of a key and its parent were read.
func (a *account) has(key string) bool {
	row := a.owners[key]
	return row != nil && (row.Parent == "" || a.owners[row.Parent] != nil)
}

// forget drops the rows of accounts, which may have changed.
func (l *lane) forget(batch []*operation) {
	for _, o := range batch {
		delete(l.held, o.account)
		l.contended[o.account] = lockedAfterConflict
	}
}

const (
	// lockedAfterConflict is how many transactions on an account lock it before they read, after somebody else has changed it.
	lockedAfterConflict = 16
	// maxHeldAccounts and maxHeldKeys limit the rows that a lane holds.
	maxHeldAccounts, maxHeldKeys = 5_000, 1_000
)

// keep holds the rows of a transaction that has been executed.
func (l *lane) keep(t *transaction, r *reply) {
	if len(l.held) > maxHeldAccounts {
		clear(l.held)
		clear(l.contended)
	}
	for id, a := range t.accounts {
		if l.contended[id]--; l.contended[id] <= 0 {
			delete(l.contended, id)
		}
		before := l.held[id]
		delete(l.held, id)
		a.touched = false
		if a.Waiting > 0 || len(a.owners) > maxHeldKeys { // others may change what waits
			continue
		}
		if before != nil && before != a {
			a.adopt(before)
		}
		l.held[id] = a
	}
	for _, row := range t.changed {
		row.Version = r.Version
	}
}

const (
	resendBackoff    = 10 * time.Millisecond
	maxResendBackoff = time.Second

	checkViolation   = "23514"
	lockNotAvailable = "55P03"
)

// recordOutage records and logs the beginning and the end of an outage, from the result of a call and when it was sent.
func (l *lane) recordOutage(err error, sent time.Time) {
	l.mu.Lock()
	began := l.outage
	switch {
	case err == nil:
		l.outage = time.Time{}
	case began.IsZero():
		l.outage, l.unanswered = time.Now(), sent
	}
	l.mu.Unlock()
	switch {
	case err != nil && began.IsZero():
		l.epoch.log.Warn("a call to the ledger has failed and is sent again", zap.Int("lane", l.n), zap.Error(err))
	case err == nil && !began.IsZero():
		l.epoch.log.Info("calls to the ledger succeed again", zap.Int("lane", l.n), zap.Duration("outage", time.Since(began)))
	}
}

func (l *lane) disconnect() {
	if l.conn != nil {
		l.conn.abandon()
		l.conn = nil
	}
}

// try makes a transaction once. If locking is set, it locks and reads the accounts first.
func (l *lane) try(ctx context.Context, t *transaction, attempt int, batch []*operation, due []string, collect, locking bool) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if l.conn == nil {
		conn, err := l.epoch.db.connect(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, `SELECT set_config('idle_in_transaction_session_timeout', $1, false)`, laneIdle); err != nil {
			conn.close(ctx)
			return nil, fmt.Errorf("connect to the database: %w", err)
		}
		l.conn = conn
	}
	call := &call{seq: l.seq, attempt: attempt, due: due, collect: collect}
	l.epoch.metrics.calls.Inc()
	if locking {
		return l.tryLocking(ctx, t, call, batch)
	}
	for _, o := range batch {
		if a := l.held[o.account]; o.checkpoint == nil {
			t.accounts[o.account] = a
			t.concerns(a, a.owners[o.account])
			key := a.owners[o.key]
			t.concerns(a, key)
			if key.Parent != "" {
				t.concerns(a, a.owners[key.Parent])
			}
		}
	}
	t.apply(batch)
	return t.commit(ctx, func(ctx context.Context, text string, args []any, into ...any) error {
		return l.conn.QueryRow(ctx, text, args...).Scan(into...)
	}, call)
}

// tryLocking makes a transaction in two round trips.
func (l *lane) tryLocking(ctx context.Context, t *transaction, c *call, batch []*operation) (r *reply, err error) {
	defer func() {
		if err == nil || l.conn == nil {
			return
		}
		if _, failed := l.conn.Exec(ctx, `ROLLBACK`); failed != nil {
			l.disconnect()
		}
	}()
	s := selectionOf(batch)
	begun := false
	query := func(ctx context.Context, text string, args []any, into ...any) error {
		if begun {
			return l.conn.QueryRow(ctx, text, args...).Scan(into...)
		}
		begun = true
		begin := &pgx.Batch{}
		begin.Queue(`BEGIN`)
		begin.Queue(text, args...).QueryRow(func(row pgx.Row) error { return row.Scan(into...) })
		return l.conn.SendBatch(ctx, begin).Close()
	}
	for {
		executed, err := t.lock(ctx, query, c, s)
		if executed != nil {
			_, err = l.conn.Exec(ctx, `ROLLBACK`)
		}
		if err != nil || executed != nil {
			return executed, err
		}
		free := t.split(batch)
		if len(free) == 0 && len(batch) > 0 {
			return nil, errHeld
		}
		t.apply(free)
		if !t.incomplete(s) {
			break
		}
	}
	l.epoch.metrics.calls.Inc()
	return t.commit(ctx, func(ctx context.Context, text string, args []any, into ...any) error {
		end := &pgx.Batch{}
		end.Queue(text, args...).QueryRow(func(row pgx.Row) error { return row.Scan(into...) })
		end.Queue(`COMMIT`)
		return l.conn.SendBatch(ctx, end).Close()
	}, c)
}
