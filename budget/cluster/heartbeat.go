package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/internal/wait"
)

// observation is when another gateway was first seen with its current beat.
type observation struct {
	epoch, beat int64
	since       time.Time
}

// beat sends heartbeats and reaps the gateways that do not, until ctx ends or the epoch has ended.
func (e *epoch) beat(ctx context.Context) {
	var (
		conn   connection
		latest time.Time // when the latest own heartbeat succeeded; zero after one that failed
		warned bool
		others = map[int32]observation{}
	)
	defer func() {
		if conn != nil {
			conn.close(ctx)
		}
	}()
	for wait.For(ctx, e.settings.Beat) {
		began := time.Now()
		var err error
		var left bool
		if conn, left, err = e.beatOnce(ctx, conn, began, others, &warned); err != nil {
			if ctx.Err() == nil && !latest.IsZero() {
				e.log.Warn("a heartbeat has failed", zap.Error(err))
			}
			latest = time.Time{}
			continue
		}
		select {
		case <-e.fenced:
			return
		default:
		}
		// After a gap in the own heartbeats, or one that took long, the database may have kept the others from beating too:
		// what was seen before counts no longer.
		ended := time.Now()
		if latest.IsZero() || ended.Sub(latest) > e.settings.Dead/2 {
			for id, o := range others {
				o.since = ended
				others[id] = o
			}
		}
		latest = ended
		if left {
			e.startEnding(ctx, e.endWhatIsLeft)
		}
		for _, id := range slices.Sorted(maps.Keys(others)) {
			if o := others[id]; time.Since(o.since) >= e.settings.Dead {
				e.startEnding(ctx, func(ctx context.Context) { e.reap(ctx, id, o) })
			}
		}
	}
}

// beatOnce sends one heartbeat and updates what is known of the others. left says that an epoch that has ended has left something.
func (e *epoch) beatOnce(ctx context.Context, conn connection, now time.Time, others map[int32]observation, warned *bool) (_ connection, left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if conn == nil || conn.IsClosed() {
		if conn, err = e.db.connect(ctx); err != nil {
			return nil, false, err
		}
	}
	rows, _ := conn.Query(ctx, `SELECT gateway, epoch, beat, alive, "left", "time" FROM ledger_beat_v1($1, $2)`, e.gateway, e.number) // see ForEachRow
	alive := map[int32]bool{}
	var (
		id                 int32
		epoch, beat, clock int64
		lives, hasLeft     bool
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &epoch, &beat, &lives, &hasLeft, &clock}, func() error {
		left = left || hasLeft
		if !lives {
			return nil
		}
		alive[id] = true
		if o := others[id]; id != e.gateway && (o.epoch != epoch || o.beat != beat) {
			others[id] = observation{epoch, beat, now}
		}
		return nil
	})
	if err != nil {
		return conn, false, fmt.Errorf("send a heartbeat: %w", err)
	}
	for id := range others {
		if !alive[id] {
			delete(others, id)
		}
	}
	if !alive[e.gateway] {
		e.fence(ErrFenced)
		return conn, false, nil
	}
	e.balances.setClock(clock, now)
	e.checkClock(clock, now, warned)
	return conn, left, nil
}

// maxClockSkew is the difference between the clocks of the gateway and of the database at which the gateway warns.
const maxClockSkew = time.Second

// checkClock warns once if this machine's clock is off. began is when the database was asked.
func (e *epoch) checkClock(databaseMicros int64, began time.Time, warned *bool) {
	database := time.UnixMicro(databaseMicros)
	off := max(began.Sub(database), time.Until(database)) // what the round trip does not explain
	if off < maxClockSkew || *warned {
		return
	}
	*warned = true
	e.log.Warn("this machine's clock differs from the database's by more than a second; windows and times of requests are "+
		"the database's", zap.Time("database", database), zap.Time("here", began))
}

// startEnding ends something of other gateways without delaying the heartbeats. If it fails, a later heartbeat does it again.
func (e *epoch) startEnding(ctx context.Context, end func(ctx context.Context)) {
	if e.reaping.Swap(true) {
		return
	}
	e.group.Go(func() {
		defer e.reaping.Store(false)
		ctx, cancel := context.WithTimeout(ctx, reapTimeout)
		defer cancel()
		end(ctx)
	})
}

// reapTimeout limits the end of another gateway's epoch, which may concern many requests.
const reapTimeout = 30 * time.Second

// endWhatIsLeft ends what a reaper has not finished to end.
func (e *epoch) endWhatIsLeft(ctx context.Context) {
	if _, err := e.endLeft(ctx); err != nil && ctx.Err() == nil {
		e.log.Warn("requests of epochs that have ended could not be ended", zap.Error(err))
	}
}

// reap ends the epoch of a gateway that has sent no heartbeats for too long.
func (e *epoch) reap(ctx context.Context, id int32, o observation) {
	var reaped bool
	err := e.db.Pool().QueryRow(ctx, `SELECT ledger_reap_v1($1, $2, $3, $4, $5)`, e.gateway, e.number, id, o.epoch, o.beat).Scan(&reaped)
	switch {
	case err != nil:
		e.log.Warn("the epoch of a gateway without heartbeats could not be ended", zap.Int32("gateway", id), zap.Error(err))
	case reaped:
		e.metrics.reaped.Inc()
		e.log.Warn("a gateway sends no heartbeats; its epoch is ended", zap.Int32("gateway", id), zap.Int64("epoch", o.epoch))
		e.endWhatIsLeft(ctx)
	}
}

// relistenPause is the time between attempts to listen again after the connection was lost.
const relistenPause = 250 * time.Millisecond

// listen fetches decisions on waiters when the database notifies this gateway, until ctx ends.
func (e *epoch) listen(ctx context.Context) {
	for {
		_ = e.listenOnce(ctx) // until it listens again, waiters are polled
		if !wait.For(ctx, relistenPause) {
			return
		}
	}
}

func (e *epoch) listenOnce(ctx context.Context) error {
	conn, err := e.db.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.close(ctx)
	if _, err := conn.Exec(ctx, fmt.Sprintf("LISTEN basegate_gateway_%d", e.gateway)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		// Also at first: notifications may have been missed. Also if none waits: the reply that a request waits may be
		// on its way.
		for _, lane := range e.lanes {
			lane.requestCollect()
		}
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
		if n.Payload != "" { // an account whose caps, slots or keys have changed
			e.lane(n.Payload).requestGrant(n.Payload)
		}
	}
}
