package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/internal/wait"
)

const (
	// maintenanceInterval is the time between searches for checkpoints that are due.
	maintenanceInterval = 100 * time.Millisecond
	// checkpointAge is how old the last checkpoint of a request, or its admission, becomes before the next one.
	checkpointAge = time.Second
	// pollInterval is how often decisions on waiters are fetched while any wait: a notification may be lost, and a new day
	// notifies nobody.
	pollInterval = 500 * time.Millisecond
	// partitionInterval is the time between checks for the partitions of the coming months.
	partitionInterval = 6 * time.Hour
)

// maintain submits checkpoints, polls, and creates partitions, until ctx ends.
func (l *Ledger) maintain(ctx context.Context) {
	checkpoints := time.NewTicker(maintenanceInterval)
	defer checkpoints.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	partitions := time.NewTicker(partitionInterval)
	defer partitions.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.fenced:
			return
		case now := <-checkpoints.C:
			for _, lane := range l.lanes {
				lane.submitCheckpoints(now)
			}
		case <-poll.C:
			for _, lane := range l.lanes {
				lane.poll()
			}
		case <-partitions.C:
			if err := l.createPartitions(ctx); err != nil {
				l.log.Error("the coming months have no partitions yet", zap.Error(err))
			}
		}
	}
}

// submitCheckpoints enqueues the progress of the requests whose last checkpoint is done and old, and that have advanced.
func (l *lane) submitCheckpoints(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return
	}
	for r := range l.open {
		if r.writing != nil {
			select {
			case got := <-r.writing.done:
				if got.err == nil {
					r.durable = r.submitted.Prompt + r.submitted.Completion
				}
				r.writing = nil
			default:
				continue
			}
		}
		last := r.written
		if last.IsZero() {
			last = r.admitted
		}
		p := r.progress()
		if now.Sub(last) < checkpointAge || p == r.submitted {
			continue
		}
		r.written, r.submitted = now, p
		r.writing = &operation{account: r.account, key: r.key, checkpoint: &p, done: make(chan decision, 1)}
		_ = l.enqueueLocked(r.writing) // checked above
	}
}

// observation is when another gateway was first seen with its current beat.
type observation struct {
	epoch, beat int64
	since       time.Time
}

// beat sends heartbeats and reaps the gateways that do not, until ctx ends or the epoch has ended.
func (l *Ledger) beat(ctx context.Context) {
	var (
		conn   *pgx.Conn
		latest time.Time // when the latest own heartbeat succeeded; zero after one that failed
		warned bool
		others = map[int32]observation{}
	)
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for wait.For(ctx, l.settings.Beat) {
		began := time.Now()
		var err error
		if conn, err = l.beatOnce(ctx, conn, began, others, &warned); err != nil {
			if ctx.Err() == nil && !latest.IsZero() {
				l.log.Warn("a heartbeat has failed", zap.Error(err))
			}
			latest = time.Time{}
			continue
		}
		select {
		case <-l.fenced:
			return
		default:
		}
		// After a gap in the own heartbeats, or one that took long, the database may have kept the others from beating too:
		// what was seen before counts no longer.
		ended := time.Now()
		if latest.IsZero() || ended.Sub(latest) > l.settings.Dead/2 {
			for id, o := range others {
				o.since = ended
				others[id] = o
			}
		}
		latest = ended
		for id, o := range others {
			if time.Since(o.since) >= l.settings.Dead {
				l.startReap(ctx, id, o)
			}
		}
	}
}

// beatOnce sends one heartbeat and updates what is known of the others.
func (l *Ledger) beatOnce(ctx context.Context, conn *pgx.Conn, now time.Time, others map[int32]observation, warned *bool) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if conn == nil || conn.IsClosed() {
		var err error
		if conn, err = l.db.Connect(ctx); err != nil {
			return nil, err //nolint:wrapcheck // has its context
		}
	}
	rows, err := conn.Query(ctx, `SELECT gateway, epoch, beat, "time" FROM ledger_beat_v1($1, $2)`, l.gateway, l.epoch)
	if err != nil {
		return conn, fmt.Errorf("send a heartbeat: %w", err)
	}
	alive := map[int32]bool{}
	var (
		id                int32
		epoch, beat, time int64
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &epoch, &beat, &time}, func() error {
		alive[id] = true
		if o := others[id]; id != l.gateway && (o.epoch != epoch || o.beat != beat) {
			others[id] = observation{epoch, beat, now}
		}
		return nil
	})
	if err != nil {
		return conn, fmt.Errorf("send a heartbeat: %w", err)
	}
	for id := range others {
		if !alive[id] {
			delete(others, id)
		}
	}
	if !alive[l.gateway] {
		l.fence(ErrFenced)
		return conn, nil
	}
	l.checkClock(time, now, warned)
	return conn, nil
}

// maxClockSkew is the difference between the clocks of the gateway and of the database at which the gateway warns.
const maxClockSkew = time.Second

// checkClock warns once if this machine's clock is off. began is when the database was asked.
func (l *Ledger) checkClock(databaseMicros int64, began time.Time, warned *bool) {
	database := time.UnixMicro(databaseMicros)
	if early, late := database.Sub(began), time.Since(database); early > -maxClockSkew && late > -maxClockSkew &&
		early < maxClockSkew+time.Since(began) || *warned {
		return
	}
	*warned = true
	l.log.Warn("this machine's clock differs from the database's by more than a second; windows and times of requests are "+
		"the database's", zap.Time("database", database), zap.Time("here", began))
}

// startReap calls reap without delaying the heartbeats. If it fails, it is called again with a later heartbeat.
func (l *Ledger) startReap(ctx context.Context, id int32, o observation) {
	if l.reaping.Swap(true) {
		return
	}
	l.background.Go(func() {
		defer l.reaping.Store(false)
		l.reap(ctx, id, o)
	})
}

// reapTimeout limits the end of another gateway's epoch, which may concern many requests.
const reapTimeout = 30 * time.Second

// reap ends the epoch of a gateway that has sent no heartbeats for too long.
func (l *Ledger) reap(ctx context.Context, id int32, o observation) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	var interrupted *int64
	err := l.db.Pool().QueryRow(ctx, `SELECT ledger_reap_v1($1, $2, $3, $4, $5)`, l.gateway, l.epoch, id, o.epoch, o.beat).Scan(&interrupted)
	switch {
	case err != nil:
		l.log.Warn("the epoch of a gateway without heartbeats could not be ended", zap.Int32("gateway", id), zap.Error(err))
	case interrupted != nil:
		l.stats.reaped.Add(1)
		l.log.Warn("a gateway sends no heartbeats; its epoch is ended", zap.Int32("gateway", id), zap.Int64("epoch", o.epoch),
			zap.Int64("interrupted_requests", *interrupted))
	}
}

// relistenPause is the time between attempts to listen again after the connection was lost.
const relistenPause = 250 * time.Millisecond

// listen fetches decisions on waiters when the database notifies this gateway, until ctx ends.
func (l *Ledger) listen(ctx context.Context) {
	for {
		_ = l.listenOnce(ctx) // until it listens again, waiters are polled
		if !wait.For(ctx, relistenPause) {
			return
		}
	}
}

func (l *Ledger) listenOnce(ctx context.Context) error {
	conn, err := l.db.Connect(ctx)
	if err != nil {
		return err //nolint:wrapcheck // has its context
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, fmt.Sprintf("LISTEN basegate_gateway_%d", l.gateway)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		// Also at first: notifications may have been missed. Also if none waits: the reply that a request waits may be on its way.
		for _, lane := range l.lanes {
			lane.requestCollect()
		}
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
	}
}
