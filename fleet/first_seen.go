package fleet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// firstSeen holds when each model was first configured, by its id. The database keeps the times across restarts.
type firstSeen struct {
	started time.Time // for models that are not in the database
	times   atomic.Pointer[map[string]time.Time]
}

// begin sets the time of all models until the database has been read.
func (s *firstSeen) begin(now time.Time) {
	s.started = now
	s.times.Store(&map[string]time.Time{})
}

// FirstSeen returns when the model was first configured. It is the same after a restart.
func (m *Model) FirstSeen() time.Time {
	if at, ok := (*m.firstSeen.times.Load())[m.ID()]; ok {
		return at
	}
	return m.firstSeen.started
}

// Aliases returns the further ids that clients may use. The slice must not be modified.
func (m *Model) Aliases() []string { return m.config.Aliases }

// recordTimeout limits the writes of recordNewModels.
const recordTimeout = 2 * time.Second

// recordNewModels is recordModels for a reload. If it fails, the new models count as first configured at the start of
// this process until the next start or reload.
func (f *Fleet) recordNewModels(models []*Model) {
	if !f.started || f.store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(f.store.writeCtx, recordTimeout)
	defer cancel()
	if err := f.recordModels(ctx, models); err != nil {
		f.log.Warn("new models not recorded", zap.Error(err))
	}
}

// recordModels stores the current time for the models that are new, and reads the times of all.
func (f *Fleet) recordModels(ctx context.Context, models []*Model) error {
	known, err := f.store.readFirstSeen(ctx)
	if err != nil {
		return err
	}
	var added []string
	for _, m := range models {
		if _, ok := known[m.ID()]; !ok {
			added = append(added, m.ID())
		}
	}
	if len(added) > 0 {
		if err := f.store.insertFirstSeen(ctx, added, time.Now()); err != nil {
			return err
		}
		if known, err = f.store.readFirstSeen(ctx); err != nil { // another gateway may have been first
			return err
		}
	}
	f.firstSeen.times.Store(&known)
	return nil
}

// readFirstSeen returns the time of every model that has ever been configured.
func (s *store) readFirstSeen(ctx context.Context) (map[string]time.Time, error) {
	rows, err := s.db.Read().QueryContext(ctx, `SELECT id, first_seen_at FROM known_models`)
	if err != nil {
		return nil, fmt.Errorf("read known models: %w", err)
	}
	defer rows.Close()
	times := map[string]time.Time{}
	for rows.Next() {
		var (
			id string
			at int64
		)
		if err := rows.Scan(&id, &at); err != nil {
			return nil, fmt.Errorf("read known models: %w", err)
		}
		times[id] = time.UnixMicro(at)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read known models: %w", err)
	}
	return times, nil
}

// insertFirstSeen stores a time for models, unless another gateway has stored one.
func (s *store) insertFirstSeen(ctx context.Context, ids []string, at time.Time) error {
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for _, id := range ids {
			const text = `INSERT INTO known_models (id, first_seen_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`
			if _, err := tx.ExecContext(ctx, text, id, at.UnixMicro()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record models: %w", err)
	}
	return nil
}
