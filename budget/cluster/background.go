package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"
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
	// pruneInterval is the time between removals of settlements that are too old to be written again.
	pruneInterval = 10 * time.Second
)

// maintain submits checkpoints, polls and ends requests after a long outage, until ctx ends. It never waits for the database.
func (l *Ledger) maintain(ctx context.Context) {
	checkpoints := time.NewTicker(maintenanceInterval)
	defer checkpoints.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-checkpoints.C:
			for _, lane := range l.epoch.Load().lanes {
				lane.submitCheckpoints(now)
				lane.cutOff()
			}
		case <-poll.C:
			for _, lane := range l.epoch.Load().lanes {
				lane.poll()
			}
		}
	}
}

// watch forgets old settlements and creates partitions until ctx ends.
func (l *Ledger) watch(ctx context.Context) {
	prune := time.NewTicker(pruneInterval)
	defer prune.Stop()
	partitions := time.NewTicker(partitionInterval)
	defer partitions.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-prune.C:
			l.recent.prune(now)
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
		p := r.Progress()
		if now.Sub(last) < checkpointAge || p == r.submitted {
			continue
		}
		r.written, r.submitted = now, p
		r.writing = r.checkpoint(p)
		_ = l.enqueueLocked(r.writing) // checked above
	}
}
