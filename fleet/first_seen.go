package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/gateway/config"
)

// FirstSeen returns when the model was first configured, or the adapter first added. It is the same after a restart.
func (m *Model) FirstSeen() time.Time {
	if m.adapter != nil {
		return m.adapter.CreatedAt
	}
	if at, ok := (*m.fleet.firstSeen.Load())[m.ID()]; ok {
		return at
	}
	return m.fleet.made
}

// recordTimeout limits the writes of recordNewModels.
const recordTimeout = 2 * time.Second

// recordNewModels records the models and their adapters at a reload. If it fails, the new models count as first configured at the
// start of this process until the next start or reload, and the new adapters wait for the next poll.
func (f *Fleet) recordNewModels(models []*Model, configs []config.Model) {
	if f.db == nil {
		f.adapters = withConfigured(slices.Clone(f.adapters), configs)
		return
	}
	if !f.started {
		return
	}
	ctx, cancel := context.WithTimeout(f.writeCtx, recordTimeout)
	defer cancel()
	if err := errors.Join(f.recordModels(ctx, models), f.syncAdapters(ctx, configs)); err != nil {
		f.log.Warn("new models not recorded", zap.Error(err))
	}
}

// recordModels stores the current time for the models that are new, and reads the times of all.
func (f *Fleet) recordModels(ctx context.Context, models []*Model) error {
	now, known := time.Now().UnixMicro(), map[string]time.Time{}
	err := f.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for _, m := range models {
			const text = `INSERT INTO known_models (id, first_seen_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`
			if err := database.Exec(ctx, tx, text, m.ID(), now); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		_, err = database.List(ctx, f.db.Read(), func(row database.Scanner) (id string, err error) {
			var at int64
			err = row.Scan(&id, &at)
			known[id] = time.UnixMicro(at)
			return id, err
		}, `SELECT id, first_seen_at FROM known_models`)
	}
	if err != nil {
		return fmt.Errorf("record models: %w", err)
	}
	f.firstSeen.Store(&known)
	return nil
}
