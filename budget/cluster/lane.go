package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
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

	// Used by run alone.
	conn *pgx.Conn
	seq  int64
}

func newLane(e *epoch, n int) *lane {
	l := &lane{
		epoch: e, n: n, wake: make(chan struct{}, 1), waiting: map[string]*operation{}, open: map[*reservation]struct{}{},
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

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// requestCollect makes the next call fetch decisions on waiters.
func (l *lane) requestCollect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.collect = true
	l.signal()
}

// poll calls requestCollect if a request waits.
func (l *lane) poll() {
	l.mu.Lock()
	waits := len(l.waiting) > 0
	l.mu.Unlock()
	if waits {
		l.requestCollect()
	}
}

// unavailable returns database.ErrUnavailable if calls of an epoch that has not ended have failed for longer than a second.
func (l *lane) unavailable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.outage.IsZero() && time.Since(l.outage) > time.Second {
		return errTimeout
	}
	return nil
}

// cutOff ends the requests that run if calls have failed for too long, and those that come with them.
func (l *lane) cutOff() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.outage.IsZero() && time.Since(l.unanswered) > l.epoch.settings.CutOff {
		l.lose()
		l.lost, l.lose = context.WithCancel(context.Background()) //nolint:forbidigo // as in newLane
	}
}

// cancelWaiters ends the waits of all requests.
func (l *lane) cancelWaiters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, o := range l.waiting {
		delete(l.waiting, id)
		_ = l.enqueueLocked(o.cancellation()) // if the epoch has ended, so have its waits
		o.complete(decision{err: budget.ErrClosed})
	}
}

// load returns what the lane holds.
func (l *lane) load() budget.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := budget.Load{Open: len(l.open), Waiting: len(l.waiting)}
	for r := range l.open {
		held.Reserved += r.Input + r.Output
	}
	for _, o := range l.queue {
		if o.settle != nil {
			held.Backlog++
		}
	}
	return held
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
	for _, o := range l.queue {
		o.complete(decision{err: notSent(err)})
	}
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
			postgres.CloseConn(ctx, l.conn)
		}
	}()
	for {
		batch, wakeAccounts, collect := l.take()
		if len(batch) == 0 && !collect {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		l.execute(ctx, batch, wakeAccounts, collect)
		if l.finish() != nil || ctx.Err() != nil {
			return
		}
	}
}

// take removes the next operations from the queue.
func (l *lane) take() (batch []*operation, wakeAccounts []string, collect bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < min(len(l.queue), batchSize) && (n == 0 || size+l.queue[n].size() <= maxCallSize) {
		size += l.queue[n].size()
		n++
	}
	batch = slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	for _, o := range batch {
		o.sent = true
	}
	if collect = l.collect; collect {
		accounts := map[string]bool{}
		for _, o := range l.waiting {
			accounts[o.account] = true
		}
		wakeAccounts = slices.Sorted(maps.Keys(accounts))
	}
	l.collect = false
	l.calling = n > 0 || collect
	return batch, wakeAccounts, collect
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

// execute sends one call and delivers its results. If the database refuses a value, each half is sent by itself, so that
// only the operation with that value fails.
func (l *lane) execute(ctx context.Context, batch []*operation, wakeAccounts []string, collect bool) {
	c, err := newCall(batch, wakeAccounts, collect)
	var r *reply
	if err == nil {
		r, err = l.send(ctx, c)
	}
	switch {
	case err == nil:
		l.deliver(batch, r)
	case errors.Is(err, ErrFenced) || errors.Is(err, ErrLostCommits):
		l.epoch.fence(err)
		for _, o := range batch {
			o.complete(decision{err: l.epoch.cause})
		}
	case ctx.Err() != nil:
		err := l.epoch.ended()
		for _, o := range batch {
			o.complete(decision{err: err})
		}
	case len(batch) > 1:
		l.epoch.metrics.bisected.Inc()
		half := len(batch) / 2
		l.execute(ctx, batch[:half], nil, false)
		l.execute(ctx, batch[half:], wakeAccounts, collect)
	case len(batch) == 1:
		l.epoch.log.Error("the database refuses an operation of the ledger", zap.Error(err))
		if batch[0].settle != nil {
			l.epoch.metrics.Lost.Inc()
		}
		batch[0].complete(decision{err: fmt.Errorf("the database refuses the request: %w", err)})
	}
}

// send sends one call until it has been executed, and returns its reply. The error is ErrFenced, ErrLostCommits, that of a
// value that the database refuses, or that of ctx.
func (l *lane) send(ctx context.Context, c *call) (*reply, error) {
	l.seq++
	backoff, partitioned := resendBackoff, false
	for attempt := 0; ; attempt++ {
		if attempt > 0 {
			l.epoch.metrics.resent.Inc()
			if !wait.For(ctx, backoff) {
				return nil, context.Cause(ctx)
			}
			backoff = min(2*backoff, maxResendBackoff)
		}
		sent := time.Now()
		r, err := l.try(ctx, c)
		switch {
		case err == nil, errors.Is(err, ErrFenced), errors.Is(err, ErrLostCommits):
			l.recordOutage(nil, sent)
			return r, err
		case !partitioned && postgres.Code(err) == checkViolation:
			// Perhaps the month has no partition yet. Without one, to give up would lose a settlement.
			failure := l.epoch.createPartitions(ctx)
			err, partitioned = errors.Join(err, failure), failure == nil
		case postgres.IsData(err):
			return l.useUp(ctx, c, err)
		case postgres.IsConnection(err):
			l.disconnect()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l.recordOutage(err, sent)
	}
}

// useUp executes an empty call in place of one whose value the database refuses. Until then, an earlier copy of the refused
// call may be on its way, and might succeed when it arrives. If one has, its reply is returned, or else refused.
func (l *lane) useUp(ctx context.Context, c *call, refused error) (*reply, error) {
	if c.empty() {
		return nil, refused
	}
	l.seq-- // send counts again
	r, err := l.send(ctx, &call{})
	if err == nil && r.Empty {
		return nil, refused
	}
	return r, err
}

const (
	resendBackoff    = 10 * time.Millisecond
	maxResendBackoff = time.Second

	checkViolation = "23514"
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
		_ = l.conn.PgConn().Conn().Close() // without a farewell, which could block
		l.conn = nil
	}
}

// try sends a call once.
func (l *lane) try(ctx context.Context, c *call) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if l.conn == nil {
		conn, err := l.epoch.db.Connect(ctx)
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	const text = `SELECT status, reply, owners, counters FROM ledger_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	var (
		status   string
		body     []byte
		owners   []string
		counters pgtype.FlatArray[int64]
	)
	err := l.conn.QueryRow(ctx, text, l.epoch.gateway, l.epoch.number, l.n, l.seq, c.accounts, c.keys,
		c.settle, c.checkpoint, c.cancel, c.admit, c.collect, c.wake).Scan(&status, &body, &owners, &counters)
	if err != nil {
		return nil, fmt.Errorf("call the ledger: %w", err)
	}
	l.epoch.metrics.calls.Inc()
	switch status {
	case "fenced":
		return nil, ErrFenced
	case "lost":
		return nil, ErrLostCommits
	}
	l.epoch.balances.store(owners, counters)
	r := &reply{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("%w: read the ledger's reply: %w", ErrLostCommits, err)
	}
	if !c.empty() && r.Settled+len(r.Absent) != c.settlements {
		return nil, fmt.Errorf("%w: the reply is that of another call", ErrLostCommits)
	}
	return r, nil
}
