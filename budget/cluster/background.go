package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// maintenanceInterval is the time between searches for checkpoints that are due, and for outages that have lasted for too long.
	maintenanceInterval = 100 * time.Millisecond
	// checkpointAge is how old the last checkpoint of a request, or its admission, becomes before the next one.
	checkpointAge = time.Second
	// pollEvery is after how many of these intervals decisions on waiters are fetched while any wait: a notification may be lost, and a
	// new day notifies nobody.
	pollEvery = 5
	// partitionInterval is the time between checks for the partitions of the coming months.
	partitionInterval = 6 * time.Hour
	// maxSilence is how long a gateway may be silent in a transaction that holds locks. It is longer than laneIdle, and with silenceInterval
	// and maxHoldOff shorter than the default of Settings.AdmitTimeout, so that requests on a held account are admitted.
	maxSilence = 3 * time.Second
	// silenceInterval is the time between searches for such transactions.
	silenceInterval = time.Second
	// pruneInterval is the time between removals of settlements that are too old to be written again.
	pruneInterval = 10 * time.Second
)

// maintain submits checkpoints, polls and ends requests after a long outage, until ctx ends. It never waits for the database.
func (l *Ledger) maintain(ctx context.Context) {
	ticker := time.NewTicker(maintenanceInterval)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, lane := range l.epoch.Load().lanes {
				lane.maintain(now, n%pollEvery == 0)
			}
		}
	}
}

// maintain does what is due in one lane, all at once: its next call carries all of it.
func (l *lane) maintain(now time.Time, poll bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return
	}
	l.submitCheckpoints(now)
	l.cutOff()
	if poll && len(l.waiting) > 0 {
		l.collect = true
		l.signal()
	}
}

// watch forgets old settlements, ends sessions that hold locks and are silent, and creates partitions until ctx ends.
func (l *Ledger) watch(ctx context.Context) {
	prune := time.NewTicker(pruneInterval)
	defer prune.Stop()
	silence := time.NewTicker(silenceInterval)
	defer silence.Stop()
	partitions := time.NewTicker(partitionInterval)
	defer partitions.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-prune.C:
			l.recent.prune(now)
		case <-silence.C:
			l.endSilent(ctx)
		case <-partitions.C:
			if err := l.createPartitions(ctx); err != nil {
				l.log.Error("the coming months have no partitions yet", zap.Error(err))
			}
		}
	}
}

// endSilent ends the sessions of all gateways that hold locks in a transaction and have sent nothing for too long. The server does so
// only between two messages: a gateway that is stopped in the middle of one, or before the end of several that belong together, would hold
// accounts, and other locks, until it continues. That of a transaction that waits for a standby is not silent.
func (l *Ledger) endSilent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	const text = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity a
		WHERE usename = current_user AND datname = current_database() AND application_name = current_setting('application_name')
		AND wait_event_type = 'Client' AND xact_start IS NOT NULL AND state_change < clock_timestamp() - $1::bigint * interval '1 ms'
		AND (backend_xid IS NOT NULL OR EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid = a.pid AND locktype = 'advisory'))`
	var ended int64
	err := l.db.Pool().QueryRow(ctx, text, maxSilence.Milliseconds()).Scan(&ended)
	if err == nil && ended > 0 {
		l.log.Warn("sessions that held locks in silence are ended", zap.Int64("sessions", ended))
	}
}

// submitCheckpoints enqueues the progress of the requests whose last checkpoint is done and old, and that have advanced. The
// lock is held, also of cutOff.
func (l *lane) submitCheckpoints(now time.Time) {
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
		p := r.Progress()
		if now.Sub(last) < checkpointAge || p == r.submitted {
			continue
		}
		r.written, r.submitted = now, p
		r.writing = r.checkpoint(p)
		_ = l.enqueueLocked(r.writing) // checked above
	}
}
