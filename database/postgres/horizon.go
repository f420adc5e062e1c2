package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Horizon observes the oldest snapshot that a session, a replica's slot or a prepared transaction holds. While it is held
// PostgreSQL removes no version of a row that was replaced since, so the ledger's counters get slower with each request.
type Horizon struct {
	db *DB

	mu     sync.Mutex
	oldest int64     // the transaction before which versions could be removed, at the last observation; 0 if all could
	since  time.Time // when it was first observed
}

// NewHorizon returns a Horizon.
func NewHorizon(db *DB) *Horizon { return &Horizon{db: db} }

// Age returns how old the oldest snapshot is at least: since when Age has observed it, or since its transaction began if the
// role may see that.
func (h *Horizon) Age(ctx context.Context) (time.Duration, error) {
	// A session without a user is a worker of the server, such as that of autovacuum, whose snapshot delays nothing.
	const text = `
		SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, coalesce(max(age(held)), 0),
			coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)::float8
		FROM (
			SELECT backend_xmin, xact_start FROM pg_stat_activity
			WHERE backend_xmin IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
			UNION ALL SELECT xmin, NULL FROM pg_replication_slots WHERE xmin IS NOT NULL
			UNION ALL SELECT transaction, prepared FROM pg_prepared_xacts
		) AS s(held, since)`
	var (
		next    int64
		behind  int64
		seconds float64
	)
	if err := h.db.pool.QueryRow(ctx, text).Scan(&next, &behind, &seconds); err != nil {
		return 0, fmt.Errorf("read the oldest snapshot: %w", err)
	}
	return max(h.observe(next, behind, time.Now()), time.Duration(seconds*float64(time.Second))), nil
}

// observe returns how long the oldest snapshot has been observed. next is the next transaction, and behind the number of
// transactions since the snapshot; one behind which there is none delays nothing.
func (h *Horizon) observe(next, behind int64, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if behind <= 1 {
		h.oldest = 0
		return 0
	}
	if oldest := next - behind; oldest != h.oldest {
		h.oldest, h.since = oldest, now
	}
	return now.Sub(h.since)
}
