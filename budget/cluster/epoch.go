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

	"basegate/budget"
	"basegate/internal/wait"
)

// epoch is the time from when the gateway has joined until it leaves or another gateway declares it dead. Reservations
// belong to one epoch, and end with it.
type epoch struct {
	*Ledger

	gateway int32
	number  int64
	began   time.Time
	lanes   []*lane

	fenced chan struct{} // closed by fence
	once   sync.Once     // of fence
	cause  error         // set before fenced is closed, as is end
	end    time.Time     // of the fence
	over   chan struct{} // closed when the next epoch has begun, or none will

	group   sync.WaitGroup // of the work that ends with the epoch
	reaping atomic.Bool
}

// join begins an epoch in the database.
func (l *Ledger) join(ctx context.Context) (*epoch, error) {
	e := &epoch{Ledger: l, began: time.Now(), fenced: make(chan struct{}), over: make(chan struct{})}
	var left bool
	err := l.db.Pool().QueryRow(ctx, `SELECT gateway, epoch, "left" FROM ledger_join_v1($1, $2, $3)`,
		l.settings.Name, l.settings.Version, l.settings.Lanes).Scan(&e.gateway, &e.number, &left)
	if err != nil {
		return nil, fmt.Errorf("begin an epoch: %w", err)
	}
	if left {
		if _, err := l.endLeft(ctx); err != nil {
			return nil, fmt.Errorf("end what earlier epochs have left: %w", err)
		}
	}
	for n := range l.settings.Lanes {
		e.lanes = append(e.lanes, newLane(e, n))
	}
	return e, nil
}

// runEpochs runs one epoch after the other, until ctx ends.
func (l *Ledger) runEpochs(ctx context.Context, e *epoch) {
	defer func() { close(e.over) }()
	for {
		e.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(e.began) < l.settings.Dead && !wait.For(ctx, l.settings.Beat) { // two processes may have one name
			return
		}
		next := l.rejoin(ctx, e)
		if next == nil {
			return
		}
		l.epoch.Store(next)
		close(e.over)
		e = next
	}
}

// rejoin begins an epoch after one that has ended. It returns nil if ctx ends, or another process has the
// gateway's name.
func (l *Ledger) rejoin(ctx context.Context, ended *epoch) *epoch {
	replayed, checked := !errors.Is(ended.cause, ErrLostCommits), false
	for backoff := rejoinBackoff; ; backoff = min(2*backoff, maxRejoinBackoff) {
		var next *epoch
		var err error
		if !checked { // before the first attempt to join, whose reply may be lost
			var taken bool
			if taken, err = l.isTaken(ctx, ended); taken {
				return nil
			}
			checked = err == nil
		}
		if checked && !replayed {
			err = l.replay(ctx, ended)
			replayed = err == nil
		}
		if checked && replayed {
			next, err = l.join(ctx)
		}
		if err == nil {
			l.log.Info("the gateway has begun another epoch", zap.Int32("gateway", next.gateway), zap.Int64("epoch", next.number))
			return next
		}
		if ctx.Err() == nil {
			l.log.Warn("the gateway cannot begin another epoch yet", zap.Error(err))
		}
		if !wait.For(ctx, backoff) {
			return nil
		}
	}
}

// isTaken reports whether an epoch was ended by another process that has begun one under the same name, and not because
// another gateway declared this one dead. Two such processes would end each other's epochs for ever.
func (l *Ledger) isTaken(ctx context.Context, ended *epoch) (taken bool, err error) {
	const text = `SELECT alive AND epoch > $2 FROM gateway WHERE id = $1`
	if err := l.db.Pool().QueryRow(ctx, text, ended.gateway, ended.number).Scan(&taken); err != nil {
		return false, fmt.Errorf("read the gateway's epoch: %w", err)
	}
	if taken {
		l.log.Error("another process has this gateway's name", zap.String("name", l.settings.Name))
		if l.settings.NameTaken != nil {
			l.settings.NameTaken()
		}
	}
	return taken, nil
}

const (
	rejoinBackoff    = 100 * time.Millisecond
	maxRejoinBackoff = 2 * time.Second
)

// run does the work of the epoch until it or ctx ends.
func (e *epoch) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, lane := range e.lanes {
		e.group.Go(func() { lane.run(ctx) })
	}
	e.group.Go(func() { e.beat(ctx) })
	e.group.Go(func() { e.listen(ctx) })
	select {
	case <-e.fenced:
		stop()
	case <-ctx.Done():
	}
	e.group.Wait()
}

// fence ends the epoch's work.
func (e *epoch) fence(cause error) {
	e.once.Do(func() {
		e.cause, e.end = ErrFenced, time.Now()
		if !errors.Is(cause, ErrFenced) {
			e.cause = fmt.Errorf("%w: %w", ErrFenced, cause)
		}
		e.metrics.fenced.Inc()
		e.log.Error("the gateway's epoch has ended; its requests end with an error", zap.Int32("gateway", e.gateway),
			zap.Int64("epoch", e.number), zap.Error(e.cause))
		close(e.fenced)
		for _, lane := range e.lanes {
			lane.fail(e.cause)
		}
	})
}

// ended returns why the epoch's work ends: the fence, or Close.
func (e *epoch) ended() error {
	select {
	case <-e.fenced:
		return e.cause
	default:
		return budget.ErrClosed
	}
}

// awaitNext waits until the epoch after this one, which is fenced, has begun, and reports whether it has. It does not
// wait for long after the fence: if the database is away, requests are refused.
func (e *epoch) awaitNext(ctx context.Context) bool {
	limit := time.NewTimer(time.Until(e.end.Add(e.settings.Beat + time.Second)))
	defer limit.Stop()
	select {
	case <-e.over:
		return e.epoch.Load() != e
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}

// drain waits until everything that was submitted has been executed, but not for longer than limit.
func (e *epoch) drain(limit time.Duration) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for _, lane := range e.lanes {
		select {
		case <-lane.drained():
		case <-e.fenced:
			return
		case <-deadline.C:
			return
		}
	}
}

// lane returns the lane of an account.
func (e *epoch) lane(account string) *lane {
	h := fnv.New32a()
	_, _ = h.Write([]byte(account))
	return e.lanes[int(h.Sum32()%uint32(len(e.lanes)))]
}
